//! The objects of a cluster as they should be. No IO, no clock, no randomness: the same spec gives the same objects.
//!
//! # Layout
//! - [`pod()`]: the pod of a master, and the digest by which a changed spec is noticed
//! - [`spread`]: over which Kubernetes nodes pods go
//! - [`budget()`]: how many masters evictions must leave
//! - [`service()`]: the stable address of a master
//! - [`secret()`]: the root key, and the configuration of the servers
//! - [`conf`]: that configuration, and how much memory a server may use

mod budget;
pub(crate) mod conf;
mod pod;
mod secret;
mod service;
mod spread;
#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};

pub(crate) use budget::budget;
pub(crate) use pod::{CONTAINER, pod, spec_hash};
pub(crate) use secret::secret;
pub(crate) use service::service;
pub(crate) use spread::Spread;

use crate::api::RedisLockCluster;
use crate::contract::names;

/// Name of the port of a master, in its container and in its Service.
const PORT: &str = "redis";

/// CPU and memory of a master's container.
pub(crate) fn resources(cluster: &RedisLockCluster) -> ResourceRequirements {
    let amounts = |all: &[(&str, &str)]| {
        Some(all.iter().map(|&(name, amount)| (name.to_owned(), Quantity(amount.to_owned()))).collect())
    };
    cluster.spec.resources.clone().unwrap_or_else(|| ResourceRequirements {
        requests: amounts(&[("cpu", "50m"), ("memory", "64Mi")]),
        limits: amounts(&[("memory", "256Mi")]),
        ..ResourceRequirements::default()
    })
}

/// The metadata of an object of the cluster; of a master's, with the name of the master.
fn metadata(cluster: &RedisLockCluster, name: String, master: Option<&str>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: cluster.namespace(),
        labels: Some(names::labels(&cluster.name_any(), master)),
        owner_references: Some(vec![owner_reference(cluster)]),
        ..ObjectMeta::default()
    }
}

/// What makes an object one of `cluster`.
pub(crate) fn owner_reference(cluster: &RedisLockCluster) -> OwnerReference {
    OwnerReference {
        api_version: RedisLockCluster::api_version(&()).into_owned(),
        kind: RedisLockCluster::kind(&()).into_owned(),
        name: cluster.name_any(),
        uid: cluster.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
