//! The `PodDisruptionBudget` of a cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use super::metadata;
use crate::api::RedisLockCluster;
use crate::contract::names;

/// The budget that keeps this number of masters armed while Kubernetes nodes are drained. (Not `maxUnavailable`: for that the kind of
/// the pods' controller would need a scale.)
///
/// A pod that is not ready does not vote, so it may be evicted always: otherwise one that never starts would block a drain for ever.
pub(crate) fn budget(cluster: &RedisLockCluster, min_available: i32) -> PodDisruptionBudget {
    let mut labels = names::labels(&cluster.name_any(), None);
    labels.extend([("app.kubernetes.io/name".to_owned(), "redlock-master".to_owned())]);
    PodDisruptionBudget {
        metadata: metadata(cluster, cluster.name_any(), None),
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(min_available)),
            selector: Some(LabelSelector {
                match_labels: Some(BTreeMap::from_iter(labels)),
                ..LabelSelector::default()
            }),
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    }
}
