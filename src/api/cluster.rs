//! `RedisLockCluster`: N independent Redis masters. A lock is held on a majority of them.

use std::time::Duration as StdDuration;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime};
use kube::core::Duration;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// Default of `maxTTL`.
pub const DEFAULT_MAX_TTL: StdDuration = StdDuration::from_secs(60);
/// What the default restart delay adds to `maxTTL`: a margin for clocks that differ between Kubernetes nodes.
pub const RESTART_DELAY_MARGIN: StdDuration = StdDuration::from_secs(5);
/// Default of `callTimeout`.
pub const DEFAULT_CALL_TIMEOUT: StdDuration = StdDuration::from_millis(50);

/// Independent Redis masters that keep locks by majority (the RedLock algorithm).
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "redlock.dev",
    version = "v1alpha1",
    kind = "RedisLockCluster",
    namespaced,
    status = "RedisLockClusterStatus",
    shortname = "rlc",
    category = "redlock",
    derive = "PartialEq",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.ready"),
    printcolumn(name = "Quorum", type_ = "integer", json_path = ".status.quorum"),
    printcolumn(name = "Max TTL", type_ = "string", json_path = ".spec.maxTTL", priority = 1),
    printcolumn(name = "Returning", type_ = "string", json_path = ".status.returning", priority = 1,
        description = "Masters in quarantine, and when their restart delay ends"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 50")
        .message("metadata.name must have at most 50 characters: the names of pods and Services are made from it"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must begin with a letter and have lower-case letters, digits and - only: Services are named by it")
)]
#[cfg_attr(test, kube(cel))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new(
    "!has(self.restartDelay) || duration(self.restartDelay) >= duration(has(self.maxTTL) ? self.maxTTL : '60s')"
).message("restartDelay must be at least maxTTL (60s by default): a restarted master may vote again only when every lease that it could have forgotten is over").field_path(".restartDelay"))]
#[x_kube(validation = Rule::new(
    "duration(has(self.maxTTL) ? self.maxTTL : '60s') >= duration(has(oldSelf.maxTTL) ? oldSelf.maxTTL : '60s')"
).message("maxTTL cannot shrink (60s by default): leases of the longer time may be held").field_path(".maxTTL"))]
pub struct RedisLockClusterSpec {
    /// Number of independent masters (N). A lock needs floor(N/2)+1 of them. 1 tolerates no lost master, 3 tolerate one,
    /// 5 two, 7 three. Cannot be changed: a majority of the old N and a majority of the new N need not share a master.
    #[x_kube(validation = Rule::new("self in [1, 3, 5, 7]")
        .message("masters must be 1, 3, 5 or 7: an even number tolerates no more failures than the odd one below it"))]
    #[x_kube(validation = Rule::new("self == oldSelf")
        .message("masters cannot be changed while the cluster exists: create a second RedisLockCluster and move the locks"))]
    pub masters: i32,

    /// Container image of Redis 7 or later, or of Valkey. Default: the operator's (`--redis-image`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,

    /// Longest TTL of a lease on this cluster, 1s to 24h; default 60s. The restart delay is at least as long. It may grow
    /// but not shrink: longer leases may be held.
    #[serde(default, rename = "maxTTL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1s') && duration(self) <= duration('24h')")
        .message("maxTTL must be a duration from 1s to 24h, such as 60s or 5m"))]
    pub max_ttl: Option<Duration>,

    /// How long a master that crashed, was deleted or lost its data stays in quarantine before it may vote again. Default:
    /// maxTTL plus 5s. The 5s are a margin for clocks that differ between the Kubernetes nodes on which the operator runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("duration(self) <= duration('48h')")
        .message("restartDelay must be a duration of at most 48h, such as 65s"))]
    pub restart_delay: Option<Duration>,

    /// Timeout of one call to one master, 5ms to 1s; default 50ms. A master that takes longer gives no vote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("duration(self) >= duration('5ms') && duration(self) <= duration('1s')")
        .message("callTimeout must be a duration from 5ms to 1s, such as 50ms"))]
    pub call_timeout: Option<Duration>,

    /// Namespaces whose `DistributedLock`s may use this cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_namespaces: Option<AllowedNamespaces>,

    /// Which scripts clients may run on the masters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scripts: Option<ClientScripts>,

    /// CPU and memory of each Redis container. Default: requests of 50m and 64Mi, a memory limit of 256Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
}

/// Which namespaces may use a cluster.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AllowedNamespaces {
    /// `Same`: only the cluster's own namespace (the default). `All`: every namespace.
    #[serde(default)]
    pub from: NamespacesFrom,
}

/// The values of [`AllowedNamespaces::from`].
#[derive(schemars::JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespacesFrom {
    /// Only the cluster's own namespace.
    #[default]
    Same,
    /// Every namespace.
    All,
}

/// Which scripts clients may run on the masters. `Any` (the default): also their own, by `EVAL`, so that every RedLock library works.
/// `Builtin`: only those of this project, which the operator loads before it lets clients in. It is for namespaces that share a
/// cluster and do not trust each other. Other libraries then acquire locks, but can neither renew nor release them.
#[derive(schemars::JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientScripts {
    /// Also their own.
    #[default]
    Any,
    /// Only those that the operator loaded.
    Builtin,
}

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
    /// `Available` (a majority is armed), `Ready` (all are armed), `Progressing`, `ConfigValid`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
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

impl RedisLockClusterSpec {
    /// Longest TTL of a lease on this cluster.
    #[must_use]
    pub fn max_ttl(&self) -> StdDuration {
        self.max_ttl.map_or(DEFAULT_MAX_TTL, Into::into)
    }

    /// How long a master that went away stays in quarantine. At least [`Self::max_ttl`], whatever was stored.
    #[must_use]
    pub fn restart_delay(&self) -> StdDuration {
        let delay = self.restart_delay.map_or(self.max_ttl() + RESTART_DELAY_MARGIN, Into::into);
        delay.max(self.max_ttl())
    }

    /// Timeout of one call to one master.
    #[must_use]
    pub fn call_timeout(&self) -> StdDuration {
        self.call_timeout.map_or(DEFAULT_CALL_TIMEOUT, Into::into)
    }

    /// Which scripts clients may run.
    #[must_use]
    pub fn scripts(&self) -> ClientScripts {
        self.scripts.unwrap_or_default()
    }

    /// Whether a `DistributedLock` of `namespace` may use this cluster, which is in the namespace `own`.
    #[must_use]
    pub fn admits(&self, own: &str, namespace: &str) -> bool {
        own == namespace || self.allowed_namespaces.as_ref().is_some_and(|a| a.from == NamespacesFrom::All)
    }
}

#[cfg(test)]
mod tests;
