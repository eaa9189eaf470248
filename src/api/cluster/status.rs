//! The status of a cluster: what the operator reports of it, and records of its masters and passwords.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The state of a cluster, as the operator reports it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RedisLockClusterStatus {
    /// Summary in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<ClusterPhase>,
    /// Armed masters and all masters, such as `5/5`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// Votes that a lock needs: floor(masters/2)+1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quorum: Option<i32>,
    /// Masters in quarantine, and when their restart delay ends, in one line for `kubectl get -o wide`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returning: Option<String>,
    /// `metadata.generation` to which this status refers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// One row per master. It is also the record that keeps a crashed master out when the operator is restarted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 7))]
    pub masters: Vec<MasterStatus>,
    /// Which passwords of clients are in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<CredentialsStatus>,
    /// `Available` (a majority is armed), `Ready` (all are armed), `Progressing`, `ConfigValid`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Which passwords of clients are in force. It is also the record by which a replacement goes on when the operator is restarted.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialsStatus {
    /// Generation of the passwords in the Secrets for clients. Masters accept them.
    pub generation: i64,
    /// A higher generation that masters are being told of. When all that answer know it, it becomes `generation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_generation: Option<i64>,
    /// The former generation, which masters accept until `previousValidUntil`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_generation: Option<i64>,
    /// Until when the passwords of `previousGeneration` are valid, by the operator's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_valid_until: Option<MicroTime>,
    /// Namespaces without a `DistributedLock` on the cluster any more, whose clients may still hold leases: until when each of
    /// them keeps its user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub leaving: Vec<LeavingNamespace>,
}

/// A namespace without a `DistributedLock` on the cluster any more.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeavingNamespace {
    /// Name of the namespace.
    pub name: String,
    /// When its user is removed from the masters: maxTTL after its last `DistributedLock` was seen gone.
    pub until: MicroTime,
}

/// Summary of a cluster.
#[derive(schemars::JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClusterPhase {
    /// The cluster is new: not every master has been armed yet.
    Pending,
    /// Every master votes.
    Ready,
    /// A majority votes, but not every master.
    Degraded,
    /// No majority votes: no lock can be granted.
    Unavailable,
}

/// One master of a cluster.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MasterStatus {
    /// Name of the master, its pod and its Service: `<cluster>-<index>`.
    pub name: String,
    /// State of the master.
    pub state: MasterState,
    /// DNS name and port of the master's Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// UID of the master's pod; of the last one while there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// Kubernetes node of that pod, recorded before its server is armed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Boot id of that Kubernetes node then. With another one the machine has restarted, and the server has ended.
    #[serde(default, rename = "bootID", skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// `run_id` of the server process that the operator last armed. It is recorded before the marker is written: a server
    /// with this `run_id` and no marker has lost its data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// Since when the server has been armed without interruption. A rolling change waits until every master has been armed
    /// for maxTTL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub armed_since: Option<MicroTime>,
    /// How often the master went away or lost its data.
    #[serde(default)]
    pub crashes: i64,
    /// When the operator last saw that the master was gone, or had lost its data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_crash_time: Option<MicroTime>,
    /// Until when the master is in quarantine: `lastCrashTime` plus the restart delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_not_before: Option<MicroTime>,
    /// Why the master is in this state, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// State of a master.
#[derive(schemars::JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MasterState {
    /// Its pod is being created or is starting.
    Starting,
    /// It votes.
    Armed,
    /// It may not vote until `restartNotBefore`.
    Quarantined,
    /// Its pod is being deleted, or its Kubernetes node does not answer. It is not replaced until the pod is surely gone.
    Terminating,
    /// The object of its pod is gone, and nothing proves that its server has ended. It is not replaced until that is proven.
    Vanished,
    /// Its pod runs, but the operator cannot reach it.
    Unreachable,
    /// It runs, but must not keep locks (a replica, an eviction policy, a wrong clock, foreign data): it is not armed.
    Misconfigured,
}

impl MasterStatus {
    /// A master about which nothing else is known.
    #[must_use]
    pub fn new(name: &str, state: MasterState) -> Self {
        Self {
            name: name.to_owned(),
            state,
            address: None,
            pod_uid: None,
            node_name: None,
            boot_id: None,
            run_id: None,
            armed_since: None,
            crashes: 0,
            last_crash_time: None,
            restart_not_before: None,
            message: None,
        }
    }
}
