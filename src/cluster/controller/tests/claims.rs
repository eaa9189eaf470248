//! A cluster is served by one operator: the one whose claim it carries.

use tokio::time::advance;

use super::*;
use crate::contract::names::{OPERATOR_ANNOTATION, OPERATOR_RENEWED_ANNOTATION};
use crate::operator::claim::EXPIRES_AFTER;

/// Carries out a JSON patch of annotations, as an API server does. Returns the metadata.
pub(super) fn patch(cluster: &mut RedisLockCluster, operations: &Value) -> Value {
    let version = cluster.metadata.resource_version.clone().unwrap_or_default();
    for operation in operations.as_array().unwrap() {
        let (path, value) = (operation["path"].as_str().unwrap(), &operation["value"]);
        match (operation["op"].as_str().unwrap(), path) {
            ("test", "/metadata/uid") => assert_eq!(value.as_str(), cluster.metadata.uid.as_deref()),
            ("test", "/metadata/resourceVersion") => assert_eq!(*value, version, "only what was read is replaced"),
            ("add", "/metadata/annotations") => cluster.metadata.annotations = Some([].into()),
            ("add", path) => {
                let key = path.strip_prefix("/metadata/annotations/").unwrap().replace("~1", "/");
                let annotations = cluster.metadata.annotations.as_mut().expect("annotations to add to");
                annotations.insert(key, value.as_str().unwrap().to_owned());
            }
            other => panic!("unexpected: {other:?}"),
        }
    }
    cluster.metadata.resource_version = Some(format!("{version}1"));
    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": cluster.metadata})
}

fn claimed_by(scenario: &Scenario) -> Option<String> {
    scenario.cluster.lock().unwrap().metadata.annotations.as_ref()?.get(OPERATOR_ANNOTATION).cloned()
}

#[tokio::test]
async fn a_cluster_that_nobody_serves_is_claimed_before_anything_is_made() {
    let scenario = Scenario::new(3, None);
    scenario.cluster.lock().unwrap().metadata.annotations = None;
    assert_eq!(reconcile_once(&scenario).await.unwrap(), Action::requeue(OUTDATED_RETRY));
    assert_eq!(scenario.writes(), ["metadata"]);
    assert_eq!(claimed_by(&scenario).as_deref(), Some("redlock-system/redlock-operator"));
    reconcile_once(&scenario).await.unwrap();
    assert_eq!(scenario.writes()[1], "status");
}

#[tokio::test(start_paused = true)]
async fn an_operator_stands_by_and_says_so_once_until_the_claim_of_another_has_expired() {
    let scenario = Scenario::new(3, None);
    let claim = |renewed: &str| {
        let annotations = [(OPERATOR_ANNOTATION, "other/redlock-operator"), (OPERATOR_RENEWED_ANNOTATION, renewed)];
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        scenario.cluster.lock().unwrap().metadata.annotations = Some(annotations);
    };
    let process = new_process(&scenario);
    for renewed in ["1970-01-01T00:00:00Z", "1970-01-01T00:00:45Z", "1970-01-01T00:01:30Z"] {
        claim(renewed);
        for _ in 0..3 {
            assert_eq!(reconcile_with(&scenario, &process).await.unwrap(), Action::requeue(STAND_BY));
            advance(STAND_BY).await;
        }
    }
    assert_eq!(scenario.writes(), [""; 0]);
    assert_eq!(*scenario.events.lock().unwrap(), ["ServedByAnother"]);

    advance(EXPIRES_AFTER).await;
    assert_eq!(reconcile_with(&scenario, &process).await.unwrap(), Action::requeue(OUTDATED_RETRY));
    assert_eq!(scenario.writes(), ["metadata"]);
    assert_eq!(claimed_by(&scenario).as_deref(), Some("redlock-system/redlock-operator"));
}
