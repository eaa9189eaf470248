//! What was observed of a cluster, reduced to what decisions need. No IO.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Node, Pod, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{Resource, ResourceExt};

use super::build::CONTAINER;
use super::server::fitness::Facts;
use crate::api::RedisLockCluster;
use crate::api::cluster::{MasterState, MasterStatus};
use crate::contract::credentials::RootKey;
use crate::contract::names::{self, SPEC_HASH_ANNOTATION, STARTED_AT_ANNOTATION};

/// All that was observed of a cluster in one look-up.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The cluster itself.
    pub(crate) cluster: RedisLockCluster,
    /// Its Secret.
    pub(crate) secret: Existing<Secret>,
    /// The root key: the one in its Secret, else the one that this process remembers; `None` where both are missing.
    pub(crate) key: Option<RootKey>,
    /// Its `PodDisruptionBudget`. That of a cluster with a single master is not asked for.
    pub(crate) budget: Existing<PodDisruptionBudget>,
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
    /// The Kubernetes node of its pod; without a pod, the one in its record.
    pub(crate) machine: ObservedMachine,
    /// An administrator vouches that the server in its record has ended.
    pub(crate) is_vouched_gone: bool,
    /// Time since this operator process last saw that the master was gone, by its monotonic clock; `None` if it did not.
    pub(crate) since_gone: Option<Duration>,
    /// For how long this operator process has seen, without a break, that it does not vote; `None` if it did not.
    pub(crate) out_for: Option<Duration>,
    /// How long to wait before its pod is created again, because pods before it could not be created, or ended at once.
    pub(crate) backoff: Option<Duration>,
}

/// What is known of a Kubernetes node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ObservedMachine {
    /// Nothing was asked, or it may not be.
    Unknown,
    /// There is no such Kubernetes node.
    Deleted,
    /// It exists.
    Present {
        /// Identifies the time since the machine was started.
        boot_id: Option<String>,
        /// It has the taint by which an administrator declares that the machine does not run.
        is_out_of_service: bool,
    },
}

/// Who owns an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ownership {
    /// This cluster.
    Ours,
    /// A former cluster of the same name, or nobody: the object is of this operator's making, and is taken over.
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
    /// The object of a former cluster of the same name, which has no owner any more.
    Orphan(T),
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
    /// Its Kubernetes node, once it has one.
    pub(crate) node_name: Option<String>,
    /// Where it is in its life.
    pub(crate) stage: Stage,
    /// Its deletion was requested.
    pub(crate) is_deleting: bool,
    /// Its finalizers.
    pub(crate) finalizers: Vec<String>,
    /// Digest of what it was made from.
    pub(crate) hash: Option<String>,
    /// What its readiness gate was set to, if it was.
    pub(crate) gate: Option<bool>,
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
    /// Its container has ended for certain, by the report of its kubelet, or never started. The object still exists.
    Ended,
    /// The control plane has declared it dead, after its Kubernetes node was deleted or tainted `out-of-service`. That is an
    /// administrator's word, or a cloud's, that the machine does not run.
    DeclaredDead,
    /// It is being deleted, or was declared failed, but its container may still run. Where the Kubernetes node does not
    /// answer, the pod remains like this for as long as that is away.
    Doubtful,
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
    /// It has answered nothing, or has been busy with one script, for so long that it counts as crashed.
    Stuck(String),
    /// It replied.
    Up(Facts),
}

// === impl Snapshot ===

impl Snapshot {
    /// Whether a master of this cluster was started at some time, so that there may be servers which know only its present root
    /// key. What a former cluster of this name has left is no sign of that: all its masters are replaced.
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
    /// Whether it has, or may have, a pod that was made by this cluster. The Service of a former cluster is taken over only once there
    /// is a root key, so one of ours is a sign. The record of a place that is empty, or is being emptied, is none by itself: a
    /// tombstone is such a record.
    fn has_had_a_pod(&self) -> bool {
        let is_emptied =
            |state| matches!(state, MasterState::Quarantined | MasterState::Vanished | MasterState::Terminating);
        self.pod.ours().is_some()
            || self.row.as_ref().is_some_and(|row| row.pod_uid.is_some() && !is_emptied(row.state))
            || self.service.ours().is_some_and(|service| service.annotations().contains_key(STARTED_AT_ANNOTATION))
    }
}

// === impl ObservedServer ===

impl ObservedServer {
    /// What it said of itself, if it replied.
    pub(crate) fn up_mut(&mut self) -> Option<&mut Facts> {
        match self {
            Self::Up(facts) => Some(facts),
            _ => None,
        }
    }

    /// The same, or stuck where it did not reply and there is a reason to call it so.
    pub(crate) fn or_stuck(self, why: Option<&str>) -> Self {
        match (self, why) {
            (Self::Unreachable(_), Some(why)) => Self::Stuck(why.to_owned()),
            (server, _) => server,
        }
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
            // As a restored backup, or a deletion that leaves its dependents, leaves it.
            None if names::labels_name(object.labels(), &cluster.name_any()) => Self::Orphan,
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
            Ownership::Orphan => Self::Orphan(read(object)),
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

    /// The object, if it is ours, or of a former cluster of the same name.
    pub(crate) fn of_our_making(&self) -> Option<&T> {
        match self {
            Self::Ours(object) | Self::Orphan(object) => Some(object),
            Self::Absent | Self::Foreign(_) => None,
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
            node_name: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            stage: stage(pod, container),
            is_deleting: pod.metadata.deletion_timestamp.is_some(),
            finalizers: pod.finalizers().to_vec(),
            hash: pod.annotations().get(SPEC_HASH_ANNOTATION).cloned(),
            gate: gate(pod),
            note: note(pod, container),
        }
    }

    /// Whether its object stays until the operator has read how it ended.
    pub(crate) fn is_protected(&self) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == names::MASTER_FINALIZER)
    }
}

// === impl ObservedMachine ===

impl ObservedMachine {
    /// What its Kubernetes node says; `None`: there is none.
    pub(crate) fn of(kubernetes_node: Option<&Node>) -> Self {
        let Some(machine) = kubernetes_node else { return Self::Deleted };
        let info = machine.status.as_ref().and_then(|status| status.node_info.as_ref());
        let mut taints = machine.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        Self::Present {
            boot_id: info.map(|info| info.boot_id.clone()).filter(|id| !id.is_empty()),
            is_out_of_service: taints.any(|taint| taint.key == OUT_OF_SERVICE),
        }
    }

    /// The boot id, if the machine is known and has one.
    pub(crate) fn boot_id(&self) -> Option<&String> {
        match self {
            Self::Present { boot_id, .. } => boot_id.as_ref(),
            Self::Unknown | Self::Deleted => None,
        }
    }
}

/// The taint of a Kubernetes node whose machine does not run.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Why the control plane declares a pod dead: reasons of the condition `DisruptionTarget`. (Another reason, `TerminationByKubelet`,
/// is an eviction by the kubelet, which reports how the container ended.)
const DECLARED_DEAD: [&str; 2] = ["DeletionByPodGC", "DeletionByTaintManager"];

fn stage(pod: &Pod, container: Option<&ContainerStatus>) -> Stage {
    let state = container.and_then(|container| container.state.as_ref());
    if state.is_some_and(|state| state.terminated.is_some()) {
        // The kubelet never restarts it. Other containers of the pod may go on, such as an injected sidecar's.
        return Stage::Ended;
    }
    let status = pod.status.as_ref();
    let may_run = state.is_some_and(|state| state.running.is_some());
    let is_scheduled = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let mut conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
    match status.and_then(|status| status.phase.as_deref()) {
        Some("Failed" | "Succeeded") if !may_run => Stage::Ended,
        Some("Failed")
            if conditions.any(|condition| {
                condition.type_ == "DisruptionTarget"
                    && condition.status == "True"
                    && condition.reason.as_deref().is_some_and(|reason| DECLARED_DEAD.contains(&reason))
            }) =>
        {
            Stage::DeclaredDead
        }
        // Not only the kubelet declares a pod failed.
        Some("Failed" | "Succeeded") => Stage::Doubtful,
        _ if pod.metadata.deletion_timestamp.is_some() => {
            if is_scheduled {
                Stage::Doubtful
            } else {
                Stage::Ended
            }
        }
        None | Some("Pending") => Stage::Pending,
        Some(_) => Stage::Running,
    }
}

fn gate(pod: &Pod) -> Option<bool> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == names::ARMED_GATE).map(|condition| condition.status == "True")
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
