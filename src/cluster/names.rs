//! What the objects, keys and users of a cluster are called.

use std::collections::BTreeMap;

use kube::ResourceExt;

use crate::api::RedisLockCluster;

/// Field manager of every object that the operator applies.
pub const MANAGER: &str = "redlock-operator";
/// Field manager of every status that the operator applies.
pub const STATUS_MANAGER: &str = "redlock-operator/status";

/// Label: name of the cluster that an object belongs to.
pub const CLUSTER_LABEL: &str = "redlock.dev/cluster";
/// Label: name of the node that a pod or Service belongs to.
pub const NODE_LABEL: &str = "redlock.dev/node";
/// Annotation of a node's Service: when its first pod was about to be created. It tells a node that was never started from one
/// whose record in the cluster's status was lost.
pub const STARTED_AT_ANNOTATION: &str = "redlock.dev/started-at";
/// Annotation of a pod: digest of everything that it was made from, so that a changed spec is noticed.
pub const SPEC_HASH_ANNOTATION: &str = "redlock.dev/spec-hash";
/// Label selector of all pods and Services of nodes.
pub const NODE_SELECTOR: &str = "app.kubernetes.io/managed-by=redlock-operator,app.kubernetes.io/name=redlock-node";

/// Port of every node.
pub const REDIS_PORT: u16 = 6379;
/// ACL user of the operator on every node.
pub const OPERATOR_USER: &str = "operator";
/// What the ACL users of client namespaces begin with.
pub const CLIENT_USER_PREFIX: &str = "ns-";
/// In place of a namespace: all of them. The operator keeps locks as this client, and so, like any other, only on nodes that
/// are armed: as their administrator it could write to one that must start empty.
pub const EVERY_NAMESPACE: &str = "*";

/// Name of a node, its pod and its Service.
#[must_use]
pub fn node(cluster: &str, index: usize) -> String {
    format!("{cluster}-{index}")
}

/// Names of all nodes of a cluster, in order.
#[must_use]
pub fn nodes(cluster: &RedisLockCluster) -> Vec<String> {
    let count = usize::try_from(cluster.spec.nodes).unwrap_or(0);
    (0..count).map(|index| node(&cluster.name_any(), index)).collect()
}

/// Where clients find a node: its Service. Without a cluster domain, which differs between Kubernetes clusters: the search
/// path of every pod adds it.
#[must_use]
pub fn address(node: &str, namespace: &str) -> String {
    format!("{node}.{namespace}.svc:{REDIS_PORT}")
}

/// Name of the Secret with the cluster's root key and the servers' configuration.
#[must_use]
pub fn auth_secret(cluster: &str) -> String {
    format!("{cluster}-auth")
}

/// Name of the Secret that tells the clients of a namespace where the cluster is and how to log in.
#[must_use]
pub fn client_secret(cluster: &str) -> String {
    format!("{cluster}-client")
}

/// ACL user of the clients of a namespace.
#[must_use]
pub fn client_user(namespace: &str) -> String {
    format!("{CLIENT_USER_PREFIX}{namespace}")
}

/// Labels of an object of a cluster; of a node's, with the name of the node.
#[must_use]
pub fn labels(cluster: &str, node: Option<&str>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        ("app.kubernetes.io/managed-by".to_owned(), MANAGER.to_owned()),
        (CLUSTER_LABEL.to_owned(), cluster.to_owned()),
    ]);
    if let Some(node) = node {
        labels.insert("app.kubernetes.io/name".to_owned(), "redlock-node".to_owned());
        labels.insert(NODE_LABEL.to_owned(), node.to_owned());
    }
    labels
}
