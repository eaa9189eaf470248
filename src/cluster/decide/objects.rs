//! Whether the Secret and the Services of a cluster are as they should be. No IO.

use k8s_openapi::api::core::v1::{Secret, Service};
use kube::ResourceExt;
use serde::Serialize;
use serde_json::Value;

use super::Rules;
use crate::api::RedisLockCluster;
use crate::cluster::build;
use crate::cluster::observed::{Existing, ObservedMaster, Snapshot};
use crate::contract::names::STARTED_AT_ANNOTATION;

/// What to do about an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ObjectPlan<K> {
    /// Nothing: it is as it should be, or is not ours.
    Leave,
    /// Create it. What is new each time (the first root key, the time of the start) is not decided here.
    Create,
    /// Apply this over the one that exists, which is ours.
    Apply(Box<K>),
    /// Make it ours: this is its uid. It has no owner any more.
    TakeOver(String),
}

/// About the Secret. **A root key is made only for a cluster of which no master was ever started**, and never replaced: every
/// password follows from it, and servers that run know no other. A Secret that is lost is restored with the key that this
/// process remembers.
pub(crate) fn plan_secret(snapshot: &Snapshot) -> ObjectPlan<Secret> {
    match (&snapshot.secret, &snapshot.key) {
        (Existing::Absent, None) if snapshot.was_started() => ObjectPlan::Leave,
        (Existing::Absent, _) => ObjectPlan::Create,
        (Existing::Ours(live), Some(key)) => ObjectPlan::applying(live, build::secret(&snapshot.cluster, key)),
        (Existing::Orphan(live), Some(_)) => ObjectPlan::taking_over(live),
        (Existing::Ours(_) | Existing::Orphan(_), None) | (Existing::Foreign(_), _) => ObjectPlan::Leave,
    }
}

/// About the Service of a master.
pub(crate) fn plan_service(rules: &Rules, cluster: &RedisLockCluster, master: &ObservedMaster) -> ObjectPlan<Service> {
    match &master.service {
        Existing::Absent => ObjectPlan::Create,
        Existing::Ours(live) => {
            let started_at = live.annotations().get(STARTED_AT_ANNOTATION).cloned();
            let started_at = started_at.unwrap_or_else(|| rules.now.to_string());
            ObjectPlan::applying(live, build::service(cluster, &master.name, &started_at))
        }
        Existing::Orphan(live) => ObjectPlan::taking_over(live),
        Existing::Foreign(_) => ObjectPlan::Leave,
    }
}

// === impl ObjectPlan ===

impl<K: ResourceExt> ObjectPlan<K> {
    pub(super) fn taking_over(live: &K) -> Self {
        // One that is being deleted is made anew once it is gone.
        if live.meta().deletion_timestamp.is_some() {
            Self::Leave
        } else {
            Self::TakeOver(live.uid().unwrap_or_default())
        }
    }
}

impl<K: Serialize> ObjectPlan<K> {
    /// Applies `wanted` if `live` differs from it in a field of `wanted`.
    pub(super) fn applying(live: &K, wanted: K) -> Self {
        let json = |object: &K| serde_json::to_value(object).unwrap_or_default();
        if includes(&json(live), &json(&wanted)) { Self::Leave } else { Self::Apply(Box::new(wanted)) }
    }
}

/// Whether `live` has every field of `wanted`. The API server filled in the others.
fn includes(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            wanted.iter().all(|(key, wanted)| live.get(key).is_some_and(|live| includes(live, wanted)))
        }
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len() && live.iter().zip(wanted).all(|(live, wanted)| includes(live, wanted))
        }
        _ => live == wanted,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_of_the_api_server_are_no_difference() {
        let wanted = json!({"spec": {"ports": [{"port": 6379}], "type": "ClusterIP"}});
        let live = json!({"spec": {"ports": [{"port": 6379, "protocol": "TCP"}], "type": "ClusterIP", "clusterIP": "10.0.0.1"}});
        assert!(includes(&live, &wanted));
    }

    #[test]
    fn a_changed_field_is_a_difference() {
        let wanted = json!({"spec": {"selector": {"a": "1"}, "ports": [{"port": 6379}]}});
        for live in [
            json!({"spec": {"selector": {"a": "2"}, "ports": [{"port": 6379}]}}),
            json!({"spec": {"selector": {}, "ports": [{"port": 6379}]}}),
            json!({"spec": {"selector": {"a": "1"}, "ports": [{"port": 6379}, {"port": 1}]}}),
            json!({}),
        ] {
            assert!(!includes(&live, &wanted), "{live}");
        }
    }
}
