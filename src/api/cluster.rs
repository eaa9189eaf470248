//! `RedisLockCluster`: N independent Redis masters. A lock is held on a majority of them.

mod status;

use std::collections::BTreeMap;
use std::time::Duration as StdDuration;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Duration, SelectorExt as _};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::rules;
use super::selector::{self, InvalidSelector};
pub use status::{
    ClusterPhase, CredentialsStatus, LeavingNamespace, MasterState, MasterStatus, RedisLockClusterStatus,
};

/// Default of `maxTTL`.
pub const DEFAULT_MAX_TTL: StdDuration = StdDuration::from_secs(60);
/// What the default restart delay adds to `maxTTL`: a margin for clocks that differ between Kubernetes nodes.
pub const RESTART_DELAY_MARGIN: StdDuration = StdDuration::from_secs(5);
/// Default of `callTimeout`.
pub const DEFAULT_CALL_TIMEOUT: StdDuration = StdDuration::from_millis(50);

/// `maxTTL` in a rule, with its default.
const MAX_TTL: &str = "(has(self.maxTTL) ? self.maxTTL : '60s')";
/// The same of the object before a change.
const OLD_MAX_TTL: &str = "(has(oldSelf.maxTTL) ? oldSelf.maxTTL : '60s')";

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
#[x_kube(validation = rules::durations(&["(has(self.restartDelay) ? self.restartDelay : '48h')", MAX_TTL],
    &format!("!has(self.restartDelay) || {}", rules::a_hundred_times(
        &format!("duration(self.restartDelay) - duration({MAX_TTL}) - duration('2s')"), &format!("duration({MAX_TTL})"))))
    .message("restartDelay must be at least maxTTL (60s by default) plus 1 % and 2s: a restarted master may vote again only when every lease that it could have forgotten is over by any clock").field_path(".restartDelay"))]
#[x_kube(validation = rules::durations(&[MAX_TTL, OLD_MAX_TTL], &format!("duration({MAX_TTL}) >= duration({OLD_MAX_TTL})"))
    .message("maxTTL cannot shrink (60s by default): leases of the longer time may be held").field_path(".maxTTL"))]
#[x_kube(validation = Rule::new(
    "(has(self.credentials) && has(self.credentials.generation) ? self.credentials.generation : 1) \
     >= (has(oldSelf.credentials) && has(oldSelf.credentials.generation) ? oldSelf.credentials.generation : 1)"
).message("credentials.generation cannot shrink (1 by default): passwords that were replaced would be valid again").field_path(".credentials"))]
#[x_kube(validation = Rule::new(
    "!has(oldSelf.credentials) || !has(oldSelf.credentials.namespaces) || oldSelf.credentials.namespaces.all(o, \
     has(self.credentials) && has(self.credentials.namespaces) \
     && self.credentials.namespaces.exists(n, n.name == o.name && n.generation >= o.generation))"
).message("an entry of credentials.namespaces cannot be removed, nor can its generation shrink: a revoked password would be valid again").field_path(".credentials"))]
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
    #[x_kube(validation = rules::pattern("^[^ \\t\\r\\n]+$", "image must be the reference of an image, such as redis:7.4-alpine, without white space"))]
    pub image: Option<String>,

    /// Longest TTL of a lease on this cluster, 1s to 24h; default 60s. The restart delay is at least as long. It may grow
    /// but not shrink: longer leases may be held.
    #[serde(default, rename = "maxTTL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = rules::duration("duration(self) >= duration('1s') && duration(self) <= duration('24h')",
        "maxTTL must be a duration from 1s to 24h, such as 60s or 5m"))]
    pub max_ttl: Option<Duration>,

    /// How long a master that crashed, was deleted or lost its data stays in quarantine before it may vote again. At least
    /// maxTTL plus 1 % and 2s, a margin for clocks: those of clients and masters that do not run at the same rate, and those that
    /// differ between the Kubernetes nodes on which the operator runs. Default: maxTTL plus 5s, or the least if that is more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = rules::duration("duration(self) <= duration('48h')",
        "restartDelay must be a duration of at most 48h, such as 65s"))]
    pub restart_delay: Option<Duration>,

    /// Timeout of one call to one master, 5ms to 1s; default 50ms. A master that takes longer gives no vote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = rules::duration("duration(self) >= duration('5ms') && duration(self) <= duration('1s')",
        "callTimeout must be a duration from 5ms to 1s, such as 50ms"))]
    pub call_timeout: Option<Duration>,

    /// Namespaces whose `DistributedLock`s may use this cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_namespaces: Option<AllowedNamespaces>,

    /// Which scripts clients may run on the masters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scripts: Option<ClientScripts>,

    /// CPU and memory of each Redis container. Default: requests of 50m and 64Mi, a memory limit of 256Mi. A memory limit is at
    /// least 32Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = rules::bound_resources)]
    #[x_kube(validation = Rule::new("!has(self.claims)")
        .message("resources.claims is not supported: a master uses no devices"))]
    #[x_kube(validation = rules::each_resource("k in ['cpu', 'memory', 'ephemeral-storage'] || k.startsWith('hugepages-')",
        "resources may name cpu, memory, ephemeral-storage and hugepages-<size>"))]
    #[x_kube(validation = rules::each_resource("isQuantity(amount) && !quantity(amount).isLessThan(quantity('0'))",
        "each amount in resources must be a quantity such as 256Mi or 50m"))]
    #[x_kube(validation = Rule::new("!has(self.limits) || !has(self.requests) || self.requests.all(k, !(k in self.limits) \
        || !isQuantity(string(self.requests[k])) || !isQuantity(string(self.limits[k])) \
        || !quantity(string(self.requests[k])).isGreaterThan(quantity(string(self.limits[k]))))")
        .message("a request in resources must not be above its limit"))]
    #[x_kube(validation = Rule::new("!has(self.limits) || !('memory' in self.limits) || !isQuantity(string(self.limits['memory'])) \
        || !quantity(string(self.limits['memory'])).isLessThan(quantity('32Mi'))")
        .message("limits.memory in resources must be at least 32Mi: a Redis server needs some 10Mi before it keeps the first lock"))]
    pub resources: Option<ResourceRequirements>,

    /// The passwords of clients, and how they are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<CredentialsSpec>,
}

/// Which namespaces may use a cluster.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("has(self.selector) == (has(self.from) && self.from == 'Selector')")
    .message("selector is required with from: Selector, and allowed only with it"))]
pub struct AllowedNamespaces {
    /// `Same`: only the cluster's own namespace (the default). `All`: every namespace. `Selector`: the cluster's own, and those
    /// whose labels `selector` matches.
    #[serde(default)]
    pub from: NamespacesFrom,
    /// Matches labels of namespaces, as everywhere in Kubernetes. An empty one matches every namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// The passwords of clients, and how they are replaced.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CredentialsSpec {
    /// Raise it to replace the passwords of all clients while locks stay held: for 5 minutes the former ones are valid as well, so
    /// that mounted Secrets can follow. 1 by default; it may only grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 1").message("credentials.generation must be 1 or more"))]
    pub generation: Option<i64>,
    /// Raise the number of a namespace to revoke the password of its clients at once: they are cut off until their mounted Secret
    /// has followed, in up to 90 seconds. A namespace that is not named here has the number 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 128))]
    pub namespaces: Vec<NamespaceCredentials>,
}

/// Which password of a namespace is in force.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NamespaceCredentials {
    /// Name of the namespace.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = rules::pattern(rules::NAMESPACE, "the name in credentials.namespaces must be that of a namespace"))]
    pub name: String,
    /// 1 or more; it may only grow.
    #[x_kube(validation = Rule::new("self >= 1").message("a generation in credentials.namespaces must be 1 or more"))]
    pub generation: i64,
}

/// The values of [`AllowedNamespaces::from`].
#[derive(schemars::JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespacesFrom {
    /// Only the cluster's own namespace.
    #[default]
    Same,
    /// Every namespace.
    All,
    /// The cluster's own namespace, and those whose labels match.
    Selector,
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

impl RedisLockCluster {
    /// The generation of the passwords that belong into the Secrets for clients: the recorded one, which masters accept.
    #[must_use]
    pub fn client_generation(&self) -> i64 {
        let recorded = self.status.as_ref().and_then(|status| status.credentials.as_ref());
        recorded.map_or(self.spec.credentials_generation(), |record| record.generation)
    }
}

impl RedisLockClusterSpec {
    /// Longest TTL of a lease on this cluster.
    #[must_use]
    pub fn max_ttl(&self) -> StdDuration {
        self.max_ttl.map_or(DEFAULT_MAX_TTL, Into::into)
    }

    /// How long a master that went away stays in quarantine. At least [`least_restart_delay`], whatever was stored.
    #[must_use]
    pub fn restart_delay(&self) -> StdDuration {
        let delay = self.restart_delay.map_or(self.max_ttl().saturating_add(RESTART_DELAY_MARGIN), Into::into);
        delay.max(least_restart_delay(self.max_ttl()))
    }

    /// The generation of client passwords that is wanted.
    #[must_use]
    pub fn credentials_generation(&self) -> i64 {
        self.credentials.as_ref().and_then(|credentials| credentials.generation).unwrap_or(1)
    }

    /// The number of the password of the clients in `namespace` that is not revoked.
    #[must_use]
    pub fn namespace_generation(&self, namespace: &str) -> i64 {
        let entries = self.credentials.iter().flat_map(|credentials| &credentials.namespaces);
        entries.filter(|entry| entry.name == namespace).map(|entry| entry.generation).max().unwrap_or(1)
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

    /// Whether a `DistributedLock` of `namespace`, which has these labels, may use this cluster, which is in the namespace `own`. A
    /// selector that is not valid admits nobody else.
    #[must_use]
    pub fn admits(&self, own: &str, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        let from = self.allowed_namespaces.as_ref().map_or(NamespacesFrom::Same, |allowed| allowed.from);
        own == namespace
            || match from {
                NamespacesFrom::Same => false,
                NamespacesFrom::All => true,
                NamespacesFrom::Selector => self.selector().is_ok_and(|s| s.is_some_and(|s| s.matches(labels))),
            }
    }

    /// The selector of `allowedNamespaces`, if that has one.
    pub fn selector(&self) -> Result<Option<kube::core::Selector>, InvalidSelector> {
        let written = self.allowed_namespaces.as_ref().and_then(|allowed| allowed.selector.as_ref());
        written.map(selector::parse).transpose()
    }
}

/// The least restart delay where leases of up to `max_ttl` are granted: 1 % more, because clocks do not run at the same rate, and
/// 2 s, because those of two operators are not the same.
#[must_use]
pub fn least_restart_delay(max_ttl: StdDuration) -> StdDuration {
    max_ttl.saturating_add(max_ttl / 100).saturating_add(StdDuration::from_secs(2))
}

#[cfg(test)]
mod tests;
