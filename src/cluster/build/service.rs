//! The Service of a master.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use super::{PORT, metadata};
use crate::api::RedisLockCluster;
use crate::contract::names;

/// The Service that gives a master its stable address.
///
/// It leads to the master also while that is not ready: a failed readiness probe must not take away a vote that still counts.
/// `started_at`: when the first pod of the master was about to be created.
pub(crate) fn service(cluster: &RedisLockCluster, master: &str, started_at: &str) -> Service {
    let mut metadata = metadata(cluster, master.to_owned(), Some(master));
    metadata.annotations = Some(BTreeMap::from([(names::STARTED_AT_ANNOTATION.to_owned(), started_at.to_owned())]));
    Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            selector: Some(BTreeMap::from([
                (names::CLUSTER_LABEL.to_owned(), cluster.name_any()),
                (names::MASTER_LABEL.to_owned(), master.to_owned()),
            ])),
            ports: Some(vec![ServicePort {
                name: Some(PORT.to_owned()),
                port: names::REDIS_PORT.into(),
                target_port: Some(IntOrString::String(PORT.to_owned())),
                protocol: Some("TCP".to_owned()),
                ..ServicePort::default()
            }]),
            publish_not_ready_addresses: Some(true),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}
