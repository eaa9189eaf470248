//! How the pods of a cluster are spread over Kubernetes nodes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;

use crate::api::RedisLockCluster;
use crate::contract::names;

/// How strictly masters are spread over Kubernetes nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// A pod waits rather than make one Kubernetes node carry two masters more than another.
    Required,
    /// A master that shares its Kubernetes node with another is better than no master.
    Preferred,
}

/// Spreads the pods of `cluster`. A Kubernetes node that is cordoned, or otherwise takes no pods, does not count: it would stay the
/// emptiest for ever, and no pod could go anywhere.
pub(super) fn constraint(cluster: &RedisLockCluster, spread: Spread) -> TopologySpreadConstraint {
    let when_unsatisfiable = match spread {
        Spread::Required => "DoNotSchedule",
        Spread::Preferred => "ScheduleAnyway",
    };
    TopologySpreadConstraint {
        max_skew: 1,
        topology_key: "kubernetes.io/hostname".to_owned(),
        when_unsatisfiable: when_unsatisfiable.to_owned(),
        label_selector: Some(LabelSelector {
            match_labels: Some(BTreeMap::from([(names::CLUSTER_LABEL.to_owned(), cluster.name_any())])),
            ..LabelSelector::default()
        }),
        node_affinity_policy: Some("Honor".to_owned()),
        node_taints_policy: Some("Honor".to_owned()),
        ..TopologySpreadConstraint::default()
    }
}
