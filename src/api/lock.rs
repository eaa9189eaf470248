//! `DistributedLock`: one named lock on a `RedisLockCluster`. The operator holds it for a named holder, or pods hold it.

use std::time::Duration as StdDuration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime};
use kube::core::Duration;
use kube::{CustomResource, KubeSchema, ResourceExt};
use serde::{Deserialize, Serialize};

use super::rules;

/// Default of `lease.ttl`.
pub const DEFAULT_TTL: StdDuration = StdDuration::from_secs(30);

/// A named lock. With `spec.holder` the operator acquires and renews it; with `spec.observe` pods do, and `status` shows which.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "redlock.dev",
    version = "v1alpha1",
    kind = "DistributedLock",
    namespaced,
    status = "DistributedLockStatus",
    shortname = "dlock",
    category = "redlock",
    derive = "PartialEq",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Holder", type_ = "string", json_path = ".status.holder"),
    printcolumn(name = "Token", type_ = "integer", json_path = ".status.fencingToken"),
    printcolumn(name = "Votes", type_ = "string", json_path = ".status.votes"),
    printcolumn(name = "Valid until", type_ = "string", json_path = ".status.validUntil", priority = 1),
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.clusterRef.name", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    selectable = ".spec.clusterRef.name"
)]
#[cfg_attr(test, kube(cel))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("has(self.holder) == has(oldSelf.holder)")
    .message("holder cannot be added or removed: whether the operator or pods hold the lock is decided when it is created")
    .field_path(".holder"))]
#[x_kube(validation = Rule::new("[has(self.holder), has(self.observe)].filter(is_set, is_set).size() == 1")
    .message("exactly one of holder and observe is required: holder, and the operator holds the lock in that name; or observe: {}, and pods \
              hold it themselves"))]
#[x_kube(validation = Rule::new("has(self.key) == has(oldSelf.key)")
    .message("key cannot be added or removed later: create another DistributedLock")
    .field_path(".key"))]
#[x_kube(validation = Rule::new("!has(self.lease) || has(self.holder)")
    .message("lease is allowed only with holder: pods choose the ttl of their leases themselves")
    .field_path(".lease"))]
#[x_kube(validation = Rule::new("!has(self.priority) || has(self.holder)")
    .message("priority is allowed only with holder: pods wait in the order of their arrival")
    .field_path(".priority"))]
#[x_kube(validation = Rule::new("!has(self.onLost) || has(self.holder)")
    .message("onLost is allowed only with holder: pods decide themselves what follows a loss")
    .field_path(".onLost"))]
pub struct DistributedLockSpec {
    /// The cluster that keeps the lock. Cannot be changed.
    #[x_kube(validation = Rule::new("self == oldSelf")
        .message("clusterRef cannot be changed, nor can its namespace be added or removed: create another DistributedLock"))]
    pub cluster_ref: ClusterRef,

    /// Name of the lock within its namespace; default `metadata.name`. `DistributedLock`s with the same key in one
    /// namespace contend for the lock. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$')")
        .message("key may have letters, digits and . _ / - and must begin and end with a letter or digit"))]
    #[x_kube(validation = Rule::new("self == oldSelf")
        .message("key cannot be changed: create another DistributedLock"))]
    pub key: Option<String>,

    /// The holder for which the operator acquires and renews the lock, such as `job/nightly-report`. Another holder gets the
    /// lock with another fencing token: the lock is released, and acquired in the new name. Exactly one of `holder` and
    /// `observe` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?$')")
        .message("holder may have letters, digits and . _ : / - and must begin and end with a letter or digit"))]
    pub holder: Option<String>,

    /// `{}`: pods hold the lock themselves (leader election), and status shows which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observe: Option<ObserveSpec>,

    /// How long a grant lasts, and how it is renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseSpec>,

    /// Of several that wait for a key the highest priority comes first, -1000 to 1000; default 0. Among equals the one that has
    /// waited longest does. A rule for the wait, not a promise; it takes no lock from its holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: Option<i32>,

    /// What follows when the lease is lost against the holder's will. `Reacquire`, the default: it is acquired again, with another
    /// fencing token. `Fail`: the phase is `Failed`, and the lock is not acquired again until the spec changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_lost: Option<OnLost>,
}

/// What follows when a lease is lost.
#[derive(schemars::JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnLost {
    /// The lock is acquired again.
    #[default]
    Reacquire,
    /// The lock is not acquired again until the spec changes.
    Fail,
}

/// The cluster that keeps a lock.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterRef {
    /// Name of the `RedisLockCluster`.
    #[schemars(length(min = 1, max = 50))]
    #[x_kube(validation = rules::pattern(rules::CLUSTER,
        "clusterRef.name must be the name of a RedisLockCluster: lower-case letters, digits and -, a letter first"))]
    pub name: String,
    /// Namespace of the `RedisLockCluster`; default the lock's own. The cluster's `allowedNamespaces` must admit the lock's
    /// namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = rules::pattern(rules::NAMESPACE,
        "clusterRef.namespace must be the name of a namespace: lower-case letters, digits and -"))]
    pub namespace: Option<String>,
}

/// A lock that pods hold themselves. It has no fields.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObserveSpec {}

/// `ttl` in a rule, with its default.
const TTL: &str = "(has(self.ttl) ? self.ttl : '30s')";
/// `renewEvery` in a rule; where it is absent, a value that passes each rule about its bounds.
const RENEW_EVERY: &str = "(has(self.renewEvery) ? self.renewEvery : '100ms')";

/// `minValidity` in a rule, with its default.
const MIN_VALIDITY: &str = "(has(self.minValidity) ? self.minValidity : '0s')";

/// How long a grant lasts, and how it is renewed.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = rules::durations(&[RENEW_EVERY, TTL],
    &format!("duration({RENEW_EVERY}) + duration({RENEW_EVERY}) <= duration({TTL})"))
    .message("renewEvery must be at most half of ttl (30s by default), so that one failed renewal does not lose the lock").field_path(".renewEvery"))]
#[x_kube(validation = rules::durations(&[RENEW_EVERY, TTL],
    &format!("!has(self.renewEvery) || {}", rules::a_hundred_times("duration(self.renewEvery)", &format!("duration({TTL})"))))
    .message("renewEvery must be at least a hundredth of ttl (30s by default): more renewals are only load").field_path(".renewEvery"))]
#[x_kube(validation = rules::durations(&[MIN_VALIDITY, TTL],
    &format!("duration({MIN_VALIDITY}) + duration({MIN_VALIDITY}) <= duration({TTL})"))
    .message("minValidity must be at most half of ttl (30s by default): with more, grants that come a little late are all released")
    .field_path(".minValidity"))]
pub struct LeaseSpec {
    /// Time to live of the lock on each master, 1s to 24h and at most the cluster's maxTTL; default 30s. If nobody renews the
    /// lock any more, it is free after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = rules::duration("duration(self) >= duration('1s') && duration(self) <= duration('24h')",
        "ttl must be a duration from 1s to 24h, such as 30s"))]
    pub ttl: Option<Duration>,
    /// How often the lease is renewed back to the full ttl, from 100ms (and ttl/100) to ttl/2; default ttl/3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = rules::duration("duration(self) >= duration('100ms')",
        "renewEvery must be a duration of at least 100ms, such as 10s"))]
    pub renew_every: Option<Duration>,
    /// A grant with less validity than this is released, and tried again; at most ttl/2, and by default none. It is for the grant alone: what
    /// is left of a held lease falls to the rest of ttl before each renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = rules::duration("duration(self) > duration('0s')",
        "minValidity must be a duration above 0s, such as 5s"))]
    pub min_validity: Option<Duration>,
}

/// The state of a lock, as the operator reports it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DistributedLockStatus {
    /// Summary in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<LockPhase>,
    /// The present holder, this resource or another; absent if there is none, or if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Fencing token of the present grant: larger at each grant of the key. A guarded resource refuses tokens that are
    /// smaller than the largest it has seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<i64>,
    /// The whole value of the key on the masters, so that another process can adopt the grant. Absent without a holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// When the present grant was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquire_time: Option<MicroTime>,
    /// When the lease was last renewed (sent, not answered).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew_time: Option<MicroTime>,
    /// Until when the lease is valid if it is not renewed again. For people: a program must not compare it with its own
    /// clock. Left out rather than shown in the past.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<MicroTime>,
    /// Validity of the lease at `renewTime`, such as `29.7s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validity: Option<String>,
    /// Masters that held the lease, and all masters, such as `5/5`, as of `renewTime`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub votes: Option<String>,
    /// How often the holder changed, as far as this resource saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transitions: Option<i64>,
    /// `metadata.generation` to which this status refers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Held`, `ClusterAvailable`, `ConfigValid`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Summary of a lock.
#[derive(schemars::JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockPhase {
    /// Not tried yet; or, with `spec.observe`, held by nobody.
    Pending,
    /// Another holds the key, or no majority of masters answers. Retried until granted.
    Waiting,
    /// Held by this resource, or, with `spec.observe`, by the pod in `status.holder`.
    Held,
    /// The lease was lost; the lock is being acquired again.
    Lost,
    /// The spec cannot be carried out, and the condition `ConfigValid` says why; or the lease was lost with `onLost: Fail`, and
    /// `Held` says how. Nothing is tried until the spec changes, or what it needs.
    Failed,
}

impl DistributedLockSpec {
    /// Time to live of the lease.
    #[must_use]
    pub fn ttl(&self) -> StdDuration {
        self.lease.as_ref().and_then(|l| l.ttl).map_or(DEFAULT_TTL, Into::into)
    }

    /// How often the lease is renewed. At least a hundredth of the TTL, whatever was stored.
    #[must_use]
    pub fn renew_every(&self) -> StdDuration {
        let every: StdDuration = self.lease.as_ref().and_then(|l| l.renew_every).map_or(self.ttl() / 3, Into::into);
        every.max(self.ttl() / 100)
    }

    /// Least validity of a grant that is kept.
    #[must_use]
    pub fn min_validity(&self) -> StdDuration {
        self.lease.as_ref().and_then(|l| l.min_validity).map_or(StdDuration::ZERO, Into::into)
    }

    /// Priority in the queue.
    #[must_use]
    pub fn priority(&self) -> i16 {
        self.priority.and_then(|priority| i16::try_from(priority).ok()).unwrap_or_default().clamp(-1000, 1000)
    }
}

impl DistributedLock {
    /// Name of the lock within its namespace.
    #[must_use]
    pub fn key(&self) -> String {
        self.spec.key.clone().unwrap_or_else(|| self.name_any())
    }

    /// Namespace of the cluster that keeps the lock.
    #[must_use]
    pub fn cluster_namespace(&self) -> String {
        self.spec.cluster_ref.namespace.clone().or_else(|| self.namespace()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
