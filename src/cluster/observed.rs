//! What was observed of a cluster, reduced to what decisions need. No IO.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, Secret, Service};
use kube::{Resource, ResourceExt};

use super::build::CONTAINER;
use super::server::fitness::Facts;
use crate::api::RedisLockCluster;
use crate::api::cluster::MasterStatus;
use crate::contract::credentials::RootKey;
use crate::contract::names::{SPEC_HASH_ANNOTATION, STARTED_AT_ANNOTATION};

/// All that was observed of a cluster in one look-up.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The cluster itself.
    pub(crate) cluster: RedisLockCluster,
    /// Its Secret.
    pub(crate) secret: Existing<Secret>,
    /// The root key: the one in its Secret, else the one that this process remembers; `None` where both are missing.
    pub(crate) key: Option<RootKey>,
    /// Its masters, in order.
    pub(crate) masters: Vec<ObservedMaster>,
    /// Namespaces whose clients may log in: those that exist and that the cluster admits, as far as they have a lock on it, or a user
    /// on a master.
    pub(crate) namespaces: BTreeMap<String, ClientNamespace>,
    /// Time since this operator process put new passwords into force, by its monotonic clock; `None` if it did not.
    pub(crate) since_rotation: Option<Duration>,
}

/// A namespace whose clients may log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientNamespace {
    /// Its `metadata.uid`.
    pub(crate) uid: String,
    /// It has a lock that is, or may be, on the cluster.
    pub(crate) in_use: bool,
}

/// What is known of one master.
#[derive(Clone, Debug)]
pub(crate) struct ObservedMaster {
    /// Its name.
    pub(crate) name: String,
    /// DNS name and port of its Service.
    pub(crate) address: String,
    /// Its record in the status.
    pub(crate) row: Option<MasterStatus>,
    /// Its Service says that it was started at some time.
    pub(crate) started_before: bool,
    /// Its Service.
    pub(crate) service: Existing<Service>,
    /// Its pod.
    pub(crate) pod: Existing<ObservedPod>,
    /// Its server.
    pub(crate) server: ObservedServer,
    /// Time since this operator process last saw that the master was gone, by its monotonic clock; `None` if it did not.
    pub(crate) since_gone: Option<Duration>,
}

/// Who owns an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ownership {
    /// This cluster.
    Ours,
    /// A former cluster of the same name: the garbage collector is about to delete the object.
    Orphan,
    /// Somebody else: the object is never touched.
    Foreign,
}

/// What exists under the name of an object: nothing, ours, or one that is in the way.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Existing<T> {
    /// Nothing.
    Absent,
    /// The object of this cluster.
    Ours(T),
    /// The object of a former cluster of the same name. The garbage collector is about to delete it.
    Orphan,
    /// The object of somebody else, named as `<Kind> <name>`.
    Foreign(String),
}

/// A master's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedPod {
    /// Its `metadata.uid`.
    pub(crate) uid: String,
    /// Its IP address, once it has one.
    pub(crate) ip: Option<String>,
    /// Where it is in its life.
    pub(crate) stage: Stage,
    /// Digest of what it was made from.
    pub(crate) hash: Option<String>,
    /// What the kubelet or the scheduler says: why it waits, or how it ended.
    pub(crate) note: Option<String>,
}

/// Where a pod is in its life. What matters is whether its server may still run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its container has not started.
    Pending,
    /// Its container runs, according to the last report of its Kubernetes node.
    Running,
    /// Its container has ended for certain. The object still exists.
    Ended {
        /// Its deletion was requested.
        deleting: bool,
    },
    /// It is being deleted, or was declared failed, but its container may still run. Where the Kubernetes node does not
    /// answer, the pod remains like this for as long as that is away.
    Doubtful {
        /// Its deletion was requested.
        deleting: bool,
    },
}

/// What the operator got from a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ObservedServer {
    /// Nothing was asked: there is no pod, or it does not run, or it has no address.
    NotAsked,
    /// No connection, or no reply in time.
    Unreachable(String),
    /// It refuses the operator.
    Refused(String),
    /// The root key is lost, so there is no password to log in with.
    KeyLost,
    /// It replied.
    Up(Facts),
}

// === impl Snapshot ===

impl Snapshot {
    /// Whether a master of this cluster was started at some time, so that there may be servers which know only its present root
    /// key. A Service or a pod of a former cluster of this name is no sign of that.
    pub(crate) fn was_started(&self) -> bool {
        self.masters.iter().any(ObservedMaster::has_had_a_pod)
    }

    /// Whether a server has let the operator in with the root key.
    pub(crate) fn is_key_proven(&self) -> bool {
        self.masters.iter().any(|master| matches!(master.server, ObservedServer::Up(_)))
    }
}

// === impl ObservedMaster ===

impl ObservedMaster {
    fn has_had_a_pod(&self) -> bool {
        let service = self.service.ours();
        self.pod.ours().is_some()
            || self.row.as_ref().is_some_and(|row| row.pod_uid.is_some())
            || service.is_some_and(|service| service.annotations().contains_key(STARTED_AT_ANNOTATION))
    }
}

// === impl Ownership ===

impl Ownership {
    /// Who owns `object`, from the point of view of `cluster`.
    fn of<K: Resource<DynamicType = ()>>(object: &K, cluster: &RedisLockCluster) -> Self {
        let controller = object.meta().owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        match controller {
            Some(owner) if Some(&owner.uid) == cluster.meta().uid.as_ref() => Self::Ours,
            Some(owner)
                if owner.kind == RedisLockCluster::kind(&())
                    && owner.api_version == RedisLockCluster::api_version(&())
                    && owner.name == cluster.name_any() =>
            {
                Self::Orphan
            }
            _ => Self::Foreign,
        }
    }
}

// === impl Existing ===

impl<T> Existing<T> {
    /// What `object` is, from the point of view of `cluster`. `read` takes what is needed from an object of ours.
    pub(crate) fn of<K: Resource<DynamicType = ()>>(
        object: Option<&K>,
        cluster: &RedisLockCluster,
        read: impl FnOnce(&K) -> T,
    ) -> Self {
        let Some(object) = object else { return Self::Absent };
        match Ownership::of(object, cluster) {
            Ownership::Ours => Self::Ours(read(object)),
            Ownership::Orphan => Self::Orphan,
            Ownership::Foreign => Self::Foreign(format!("{} {}", K::kind(&()), object.name_any())),
        }
    }

    /// The object, if it is ours.
    pub(crate) fn ours(&self) -> Option<&T> {
        match self {
            Self::Ours(object) => Some(object),
            _ => None,
        }
    }

    /// The name of the object, if it is somebody else's.
    pub(crate) fn foreign(&self) -> Option<&str> {
        match self {
            Self::Foreign(name) => Some(name),
            _ => None,
        }
    }
}

// === impl ObservedPod ===

impl ObservedPod {
    /// What `pod` says.
    pub(crate) fn of(pod: &Pod) -> Self {
        let status = pod.status.as_ref();
        let container = status
            .and_then(|status| status.container_statuses.as_ref())
            .and_then(|all| all.iter().find(|container| container.name == CONTAINER));
        Self {
            uid: pod.uid().unwrap_or_default(),
            ip: status.and_then(|status| status.pod_ip.clone()).filter(|ip| !ip.is_empty()),
            stage: stage(pod, container),
            hash: pod.annotations().get(SPEC_HASH_ANNOTATION).cloned(),
            note: note(pod, container),
        }
    }
}

fn stage(pod: &Pod, container: Option<&ContainerStatus>) -> Stage {
    let deleting = pod.metadata.deletion_timestamp.is_some();
    let may_run = container.and_then(|c| c.state.as_ref()).is_some_and(|state| state.running.is_some());
    match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
        // Not only the kubelet declares a pod failed: others do so while its Kubernetes node is away.
        Some("Failed" | "Succeeded") if may_run => Stage::Doubtful { deleting },
        Some("Failed" | "Succeeded") => Stage::Ended { deleting },
        _ if deleting => Stage::Doubtful { deleting },
        None | Some("Pending") => Stage::Pending,
        Some(_) => Stage::Running,
    }
}

fn note(pod: &Pod, container: Option<&ContainerStatus>) -> Option<String> {
    let status = pod.status.as_ref()?;
    let state = container.and_then(|c| c.state.as_ref());
    if let Some(ended) = state.and_then(|state| state.terminated.as_ref()) {
        let reason = ended.reason.as_deref().unwrap_or("Error");
        return Some(format!("its container ended: {reason} (exit code {})", ended.exit_code));
    }
    if let Some(reason) = &status.reason {
        return Some(match &status.message {
            Some(message) => format!("{reason}: {message}"),
            None => reason.clone(),
        });
    }
    if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
        return waiting.reason.as_ref().map(|reason| format!("its container waits: {reason}"));
    }
    let unscheduled = status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
    Some(format!("not scheduled: {}", unscheduled.message.as_deref().unwrap_or("no reason given")))
}

#[cfg(test)]
mod tests;
