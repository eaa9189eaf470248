//! What is decided about a cluster as a whole.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Secret;

use super::*;
use crate::api::cluster::MasterState;
use crate::cluster::fixtures::{armed, cluster, going, master, quarantined, rules};
use crate::cluster::observed::{ObservedMaster, ObservedServer, Stage};
use crate::contract::credentials::RootKey;

fn snapshot(masters: Vec<ObservedMaster>) -> Snapshot {
    let (cluster, key) = (cluster(3), RootKey::generate());
    let secret = Existing::Ours(build::secret(&cluster, &key));
    Snapshot { cluster, secret, key: Some(key), budget: Existing::Absent, masters, namespaces: BTreeSet::new() }
}

fn first() -> ObservedMaster {
    master(None, Existing::Absent, ObservedServer::NotAsked)
}

fn actions(plan: &ClusterPlan) -> Vec<MasterAction> {
    plan.masters.iter().map(|plan| plan.action).collect()
}

#[test]
fn a_problem_of_the_whole_cluster_creates_nothing_and_still_records_what_is_gone() {
    let gone = master(Some(armed()), going("votes-1", Stage::Ended), ObservedServer::NotAsked);
    let mut blocked = snapshot(vec![first(), gone]);
    blocked.secret = Existing::Foreign("Secret votes-auth".to_owned());
    let plan = decide(&blocked, &rules(0));
    assert!(plan.is_blocked);
    assert_eq!(actions(&plan), [MasterAction::Nothing, MasterAction::Release]);
    assert_eq!(plan.rows()[1].state, MasterState::Quarantined);
    assert_eq!(plan.crashed().collect::<Vec<_>>(), ["votes-0"]);
    assert_eq!(plan.wake(), Some(rules(0).restart_delay));
}

#[test]
fn a_master_gets_no_pod_before_it_has_its_service() {
    let service = Existing::Foreign("Service votes-0".to_owned());
    for row in [None, Some(quarantined())] {
        let unaddressed =
            ObservedMaster { service: service.clone(), ..master(row, Existing::Absent, ObservedServer::NotAsked) };
        let plan = decide(&snapshot(vec![unaddressed, first()]), &rules(65));
        assert!(!plan.is_blocked);
        assert_eq!(actions(&plan), [MasterAction::Nothing, MasterAction::Create], "the others go on");
        let message = "Service votes-0 exists and does not belong to this cluster";
        assert_eq!(plan.masters[0].row.message.as_deref(), Some(message));
        assert_eq!(plan.services, [ObjectPlan::Leave, ObjectPlan::Create], "nothing of others is touched");
    }
}

#[test]
fn what_a_former_cluster_of_the_name_has_left_is_taken_over_unless_it_is_being_deleted() {
    let mut service = build::service(&cluster(3), "votes-0", "then");
    service.metadata.uid = Some("service-1".to_owned());
    let mut left = snapshot(vec![ObservedMaster { service: Existing::Orphan(service.clone()), ..first() }]);
    let mut secret = left.secret.ours().cloned().unwrap();
    secret.metadata.uid = Some("secret-1".to_owned());
    left.secret = Existing::Orphan(secret);
    let plan = decide(&left, &rules(0));
    assert_eq!(plan.secret, ObjectPlan::TakeOver("secret-1".to_owned()), "with the passwords that clients have");
    assert_eq!(plan.services, [ObjectPlan::TakeOver("service-1".to_owned())]);
    service.metadata.deletion_timestamp = Some(serde_json::from_str("\"2026-11-30T09:00:00Z\"").unwrap());
    left.masters[0].service = Existing::Orphan(service);
    assert_eq!(decide(&left, &rules(0)).services, [ObjectPlan::Leave]);
    left.key = None;
    let plan = decide(&left, &rules(0));
    assert_eq!((plan.secret, plan.is_blocked), (ObjectPlan::Leave, true), "a person has to restore it");
}

#[test]
fn a_root_key_is_made_once_and_never_replaced() {
    let mut current = snapshot(vec![first()]);
    assert_eq!(decide(&current, &rules(0)).secret, ObjectPlan::Leave);
    current.cluster.spec.resources =
        Some(serde_json::from_value(serde_json::json!({"limits": {"memory": "1Gi"}})).unwrap());
    let ObjectPlan::Apply(changed) = decide(&current, &rules(0)).secret else { panic!("another maxmemory") };
    assert_eq!(RootKey::from_secret(&changed).ok(), current.key, "the same key");
    current.secret = Existing::Absent;
    current.key = None;
    assert_eq!(decide(&current, &rules(0)).secret, ObjectPlan::Create);
    current.secret = Existing::Ours(Secret::default());
    let plan = decide(&current, &rules(0));
    assert_eq!((plan.secret, plan.is_blocked), (ObjectPlan::Leave, true), "a person has to restore it");
}
