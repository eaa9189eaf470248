//! What was found of a cluster, reduced to what decisions need. No IO.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{Resource, ResourceExt};

use super::build::CONTAINER;
use crate::api::RedisLockCluster;
use crate::contract::names::SPEC_HASH_ANNOTATION;

/// Whose an existing object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// This cluster's.
    Ours,
    /// A former cluster's of the same name: the garbage collector is about to remove it.
    Orphan,
    /// Somebody else's: it is never touched.
    Foreign,
}

/// An object by name: none, ours, or one that is in the way.
#[derive(Clone, Debug, PartialEq)]
pub enum Slot<T> {
    /// There is none.
    Free,
    /// It belongs to this cluster.
    Ours(T),
    /// It belongs to a former cluster of the same name and will go by itself.
    Orphan,
    /// Somebody else's, named `<Kind> <name>`.
    Foreign(String),
}

/// A master's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFound {
    /// Its `metadata.uid`.
    pub uid: String,
    /// Its address, once it has one.
    pub ip: Option<String>,
    /// How far it is.
    pub stage: Stage,
    /// Digest of what it was made from.
    pub hash: Option<String>,
    /// What the kubelet or the scheduler says of it: why it waits, or how it ended.
    pub note: Option<String>,
}

/// How far a pod is, seen from the question whether its server may still be running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its container has not started.
    Pending,
    /// Its container runs as far as its machine told last.
    Running,
    /// Its container has surely ended. The object is still there.
    Ended {
        /// Its deletion has been asked for.
        deleting: bool,
    },
    /// It is being deleted, or was declared failed, but its container may still run: a machine that does not answer keeps it
    /// so for as long as it is away.
    Doubtful {
        /// Its deletion has been asked for.
        deleting: bool,
    },
}

/// A server as the operator found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerFound {
    /// There is none to ask: no pod, or one without an address.
    NotAsked,
    /// No connection, or no answer in time.
    Unreachable(String),
    /// It answers, but refuses the operator or is not fit to be asked.
    Refused(String),
    /// It answered.
    Up(Facts),
}

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Names the server process; another after each restart.
    pub run_id: String,
    /// The armed marker, whoever's process it names.
    pub marker: Option<ArmedMarker>,
    /// Why it may not be armed; `None` if it may.
    pub unfit: Option<String>,
    /// Namespaces whose clients can log in.
    pub namespaces: Vec<String>,
    /// It has `CLIENT SETINFO`.
    pub knows_setinfo: bool,
}

/// The value of the armed marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArmedMarker {
    /// The server process that was armed.
    pub run_id: String,
    /// Longest lease it may keep, in milliseconds.
    pub cap_millis: u128,
}

// === impl Ownership ===

impl Ownership {
    /// Whose `object` is, seen from `cluster`.
    #[must_use]
    pub fn of<K: Resource<DynamicType = ()>>(object: &K, cluster: &RedisLockCluster) -> Self {
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

// === impl Slot ===

impl<T> Slot<T> {
    /// The slot that `object` fills, seen from `cluster`.
    #[must_use]
    pub fn of<K: Resource<DynamicType = ()>>(
        object: Option<&K>,
        cluster: &RedisLockCluster,
        ours: impl FnOnce(&K) -> T,
    ) -> Self {
        let Some(object) = object else { return Self::Free };
        match Ownership::of(object, cluster) {
            Ownership::Ours => Self::Ours(ours(object)),
            Ownership::Orphan => Self::Orphan,
            Ownership::Foreign => Self::Foreign(format!("{} {}", K::kind(&()), object.name_any())),
        }
    }

    /// The object, if it is ours.
    #[must_use]
    pub fn ours(&self) -> Option<&T> {
        match self {
            Self::Ours(object) => Some(object),
            _ => None,
        }
    }

    /// What is in the way, if somebody else's object is.
    #[must_use]
    pub fn foreign(&self) -> Option<&str> {
        match self {
            Self::Foreign(name) => Some(name),
            _ => None,
        }
    }
}

// === impl Facts ===

impl Facts {
    /// Whether the marker names this very process. One that names another came back with old data and says nothing.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.marker.as_ref().is_some_and(|marker| marker.run_id == self.run_id)
    }
}

// === impl PodFound ===

impl PodFound {
    /// What `pod` says.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
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
        // Something other than the kubelet can declare a pod failed while its machine is away.
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
#[path = "snapshot_tests.rs"]
mod tests;
