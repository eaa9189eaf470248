//! What is decided about a cluster as a whole.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;

use super::*;
use crate::api::cluster::{MasterState, MasterStatus};
use crate::cluster::fixtures::{armed, cluster, going, master, observed_pod, pod, quarantined, row, rules};
use crate::cluster::observed::{ObservedMaster, ObservedServer, Stage};
use crate::contract::credentials::RootKey;

fn snapshot(masters: Vec<ObservedMaster>) -> Snapshot {
    let (cluster, key) = (cluster(3), RootKey::generate());
    let secret = Existing::Ours(build::secret(&cluster, &key));
    Snapshot {
        cluster,
        secret,
        key: Some(key),
        budget: Existing::Absent,
        masters,
        namespaces: BTreeMap::new(),
        since_rotation: None,
    }
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
    assert_eq!((plan.secret, plan.is_blocked), (ObjectPlan::Leave, true), "a person has to restore or delete it");
    assert!(plan.problems[0].message.contains("delete it, and the operator makes another"), "{:?}", plan.problems);
}

#[test]
fn a_root_key_is_made_before_the_first_start_and_never_replaced() {
    let mut current = snapshot(vec![first()]);
    assert_eq!(decide(&current, &rules(0)).secret, ObjectPlan::Leave);
    current.cluster.spec.resources =
        Some(serde_json::from_value(serde_json::json!({"limits": {"memory": "1Gi"}})).unwrap());
    let ObjectPlan::Apply(changed) = decide(&current, &rules(0)).secret else { panic!("another maxmemory") };
    assert_eq!(RootKey::from_secret(&changed).ok(), current.key, "the same key");
    current.secret = Existing::Ours(Secret::default());
    let ObjectPlan::Apply(restored) = decide(&current, &rules(0)).secret else { panic!("the key is known") };
    assert_eq!(RootKey::from_secret(&restored).ok(), current.key, "the same key");
    current.key = None;
    let plan = decide(&current, &rules(0));
    assert_eq!((plan.secret, plan.is_blocked), (ObjectPlan::Leave, true), "a person has to delete it");
    current.secret = Existing::Absent;
    assert_eq!(decide(&current, &rules(0)).secret, ObjectPlan::Create);
}

#[test]
fn a_lost_root_key_leaves_the_masters_as_they_are_and_starts_none() {
    let running = |row| master(Some(row), pod("pod-1", Stage::Running), ObservedServer::KeyLost);
    let starting = MasterStatus { pod_uid: Some("pod-1".to_owned()), ..row(MasterState::Starting) };
    let gone = master(Some(quarantined()), Existing::Absent, ObservedServer::NotAsked);
    for secret in [Existing::Absent, Existing::Ours(Secret::default())] {
        let mut lost = snapshot(vec![running(armed()), running(starting.clone()), gone.clone()]);
        (lost.secret, lost.key) = (secret, None);
        let plan = decide(&lost, &rules(1_000));
        assert_eq!((&plan.secret, plan.is_blocked), (&ObjectPlan::Leave, true));
        assert_eq!(plan.problems[0].reason, "AuthSecretLost");
        assert_eq!(actions(&plan), [MasterAction::Nothing; 3]);
        assert_eq!(plan.masters[0].row, MasterStatus { address: plan.masters[0].row.address.clone(), ..armed() });
        assert_eq!(plan.masters[1].row.state, MasterState::Starting, "it is not armed");
    }
}

#[test]
fn each_sign_of_a_start_keeps_the_key_and_those_of_a_former_cluster_do_not() {
    let with = |master: ObservedMaster| Snapshot { secret: Existing::Absent, key: None, ..snapshot(vec![master]) };
    let service = build::service(&cluster(3), "votes-0", "2026-01-01T00:00:00Z");
    for started in [
        ObservedMaster { service: Existing::Ours(service.clone()), ..first() },
        ObservedMaster {
            service: Existing::Ours(service.clone()),
            ..master(Some(quarantined()), Existing::Absent, ObservedServer::NotAsked)
        },
        master(None, pod("pod-1", Stage::Pending), ObservedServer::NotAsked),
        master(Some(armed()), Existing::Absent, ObservedServer::NotAsked),
    ] {
        let plan = decide(&with(started.clone()), &rules(0));
        assert_eq!((plan.secret, plan.is_blocked), (ObjectPlan::Leave, true), "{started:?}");
    }
    // What the former has left: nothing, a Service, a pod, and its tombstone, as it is and as the new cluster records it.
    let left = Existing::Orphan(observed_pod("pod-1", Stage::Running));
    let vanished = MasterStatus { state: MasterState::Vanished, ..armed() };
    let terminating = MasterStatus { state: MasterState::Terminating, ..armed() };
    for new in [
        first(),
        ObservedMaster { service: Existing::Orphan(service.clone()), started_before: true, ..first() },
        master(None, left.clone(), ObservedServer::NotAsked),
        master(Some(row(MasterState::Starting)), left.clone(), ObservedServer::NotAsked),
        master(Some(quarantined()), Existing::Absent, ObservedServer::NotAsked),
        master(Some(quarantined()), left.clone(), ObservedServer::NotAsked),
        ObservedMaster {
            service: Existing::Orphan(service),
            ..master(Some(vanished.clone()), left.clone(), ObservedServer::NotAsked)
        },
        master(Some(vanished), Existing::Absent, ObservedServer::NotAsked),
        master(Some(terminating), left, ObservedServer::NotAsked),
    ] {
        let plan = decide(&with(new.clone()), &rules(0));
        assert_eq!((plan.secret, plan.is_blocked), (ObjectPlan::Create, false), "{new:?}");
        // What is recorded before the key is made tells a process that follows nothing else.
        let recorded = ObservedMaster { row: Some(plan.masters[0].row.clone()), ..new };
        assert_eq!(decide(&with(recorded.clone()), &rules(1)).secret, ObjectPlan::Create, "{recorded:?}");
    }
}
