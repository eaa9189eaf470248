//! A cluster as tests need it.

use kube::Resource;

use crate::api::{RedisLockCluster, RedisLockClusterSpec};

/// A cluster `votes` of so many nodes in the namespace `keys`, with a uid.
pub fn cluster(nodes: i32) -> RedisLockCluster {
    let spec = RedisLockClusterSpec {
        nodes,
        image: None,
        max_ttl: None,
        restart_delay: None,
        node_timeout: None,
        allowed_namespaces: None,
        resources: None,
    };
    let mut cluster = RedisLockCluster::new("votes", spec);
    cluster.meta_mut().namespace = Some("keys".to_owned());
    cluster.meta_mut().uid = Some("11111111-2222-3333-4444-555555555555".to_owned());
    cluster.meta_mut().generation = Some(1);
    cluster
}
