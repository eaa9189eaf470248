//! What the objects, keys and users of a cluster are called.

use std::collections::BTreeMap;

use kube::ResourceExt;

use crate::api::RedisLockCluster;

/// Field manager of every object that the operator applies.
pub(crate) const MANAGER: &str = "redlock-operator";
/// Field manager of every status that the operator applies.
pub(crate) const STATUS_MANAGER: &str = "redlock-operator/status";

/// Label: name of the cluster that an object belongs to.
pub(crate) const CLUSTER_LABEL: &str = "redlock.dev/cluster";
/// Label: name of the master that a pod or Service belongs to.
pub(crate) const MASTER_LABEL: &str = "redlock.dev/master";
/// Annotation of a master's Service: when its first pod was about to be created. It tells a master that was never started from one
/// whose record in the cluster's status was lost.
pub(crate) const STARTED_AT_ANNOTATION: &str = "redlock.dev/started-at";
/// Annotation of a pod: digest of everything that it was made from, so that a changed spec is noticed.
pub(crate) const SPEC_HASH_ANNOTATION: &str = "redlock.dev/spec-hash";
/// Annotation of a pod: the restart delay of its cluster when it was made, in seconds. Where the cluster is gone without having been
/// retired, it says how long leases may last.
pub(crate) const RESTART_DELAY_ANNOTATION: &str = "redlock.dev/restart-delay";
/// Condition of a master's pod, and its readiness gate: the master votes.
pub(crate) const ARMED_GATE: &str = "redlock.dev/armed";
/// Finalizer of a master's pod: its object stays until the operator has read and recorded how its server ended.
pub(crate) const MASTER_FINALIZER: &str = "redlock.dev/master";
/// Finalizer of a cluster: its object stays until its masters have lost their votes, or have a tombstone.
pub(crate) const CLUSTER_FINALIZER: &str = "redlock.dev/retirement";
/// Finalizer of a lock: its object stays until what it holds was released, or has ended.
pub(crate) const LOCK_FINALIZER: &str = "redlock.dev/release";
/// The `Lease` by which one of several operators decides, in the operator's namespace.
pub(crate) const LEASE: &str = "redlock-operator";
/// Annotation of a cluster, by which an administrator vouches that the servers of these pods (their uids, separated by commas or
/// spaces) have ended.
pub(crate) const GONE_ANNOTATION: &str = "redlock.dev/gone";
/// Annotation of a cluster: the operator that serves it, by the namespace and name of its Lease.
pub(crate) const OPERATOR_ANNOTATION: &str = "redlock.dev/operator";
/// Annotation of a cluster: when that operator last said so, by its own clock.
pub(crate) const OPERATOR_RENEWED_ANNOTATION: &str = "redlock.dev/operator-renewed";
/// The `ConfigMap` of tombstones, in the operator's namespace.
pub(crate) const TOMBSTONES: &str = "redlock-tombstones";
/// Label selector of all pods and Services of masters.
pub(crate) const MASTER_SELECTOR: &str =
    "app.kubernetes.io/managed-by=redlock-operator,app.kubernetes.io/name=redlock-master";

/// Port of every master.
pub(crate) const REDIS_PORT: u16 = 6379;
/// ACL user of the operator on every master.
pub(crate) const OPERATOR_USER: &str = "operator";
/// What the ACL users of client namespaces begin with.
pub(crate) const CLIENT_USER_PREFIX: &str = "ns-";
/// In place of a namespace: all of them. The operator keeps locks as this client, and so, like any other, only on masters that
/// are armed: as their administrator it could write to one that must start empty.
pub(crate) const EVERY_NAMESPACE: &str = "*";

/// Name of a master, its pod and its Service.
#[must_use]
pub(crate) fn master(cluster: &str, index: usize) -> String {
    format!("{cluster}-{index}")
}

/// Names of all masters of a cluster, in order.
#[must_use]
pub(crate) fn masters(cluster: &RedisLockCluster) -> Vec<String> {
    let count = usize::try_from(cluster.spec.masters).unwrap_or(0);
    (0..count).map(|index| master(&cluster.name_any(), index)).collect()
}

/// Where clients find a master: its Service. Without a cluster domain, which differs between Kubernetes clusters: the search
/// path of every pod adds it.
#[must_use]
pub(crate) fn address(master: &str, namespace: &str) -> String {
    format!("{master}.{namespace}.svc:{REDIS_PORT}")
}

/// Name of the Secret with the cluster's root key and the servers' configuration.
#[must_use]
pub(crate) fn auth_secret(cluster: &str) -> String {
    format!("{cluster}-auth")
}

/// Name of the Secret that tells the clients of `namespace` where the cluster is and how to log in. It names the namespace of a
/// cluster elsewhere, so that two clusters of one name can serve one namespace. No cluster has a name with a dot.
#[must_use]
pub(crate) fn client_secret(cluster: &str, cluster_namespace: &str, namespace: &str) -> String {
    if cluster_namespace == namespace {
        format!("{cluster}-client")
    } else {
        format!("{cluster}.{cluster_namespace}-client")
    }
}

/// ACL user of the clients of a namespace.
#[must_use]
pub(crate) fn client_user(namespace: &str) -> String {
    format!("{CLIENT_USER_PREFIX}{namespace}")
}

/// Whether these are labels of an object of `cluster`.
#[must_use]
pub(crate) fn labels_name(labels: &BTreeMap<String, String>, cluster: &str) -> bool {
    labels.get("app.kubernetes.io/managed-by").is_some_and(|manager| manager == MANAGER)
        && labels.get(CLUSTER_LABEL).is_some_and(|name| name == cluster)
}

/// Labels of an object of a cluster; of a master's, with the name of the master.
#[must_use]
pub(crate) fn labels(cluster: &str, master: Option<&str>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        ("app.kubernetes.io/managed-by".to_owned(), MANAGER.to_owned()),
        (CLUSTER_LABEL.to_owned(), cluster.to_owned()),
    ]);
    if let Some(master) = master {
        labels.insert("app.kubernetes.io/name".to_owned(), "redlock-master".to_owned());
        labels.insert(MASTER_LABEL.to_owned(), master.to_owned());
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_of_one_name_have_secrets_of_their_own_in_a_namespace_that_uses_both() {
        assert_eq!(client_secret("main", "shop", "shop"), "main-client");
        assert_eq!(client_secret("main", "locks", "shop"), "main.locks-client");
        let longest = client_secret(&"c".repeat(50), &"n".repeat(63), "shop");
        assert!(longest.len() <= 253, "the longest name of a Secret");
    }
}
