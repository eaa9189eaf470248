//! The two `CustomResourceDefinition`s as they are committed in `crds/` and carried by the chart.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use super::{DistributedLock, RedisLockCluster};

/// Both definitions, each with the name of its file.
#[must_use]
pub fn all() -> Vec<(&'static str, CustomResourceDefinition)> {
    vec![
        ("redislockclusters.redlock.dev.yaml", RedisLockCluster::crd()),
        ("distributedlocks.redlock.dev.yaml", DistributedLock::crd()),
    ]
}
