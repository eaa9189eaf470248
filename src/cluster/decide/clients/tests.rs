//! What is decided about clients, by invariant.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::api::RedisLockClusterStatus;
use crate::api::cluster::{CredentialsSpec, NamespaceCredentials};
use crate::cluster::fixtures::{armed as armed_row, at, cluster, facts, master, pod, rules};
use crate::cluster::observed::{ClientNamespace, Existing, ObservedMaster, Stage};

/// Three masters that are armed, of a cluster that `billing` uses.
fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot {
        cluster: cluster(3),
        secret: Existing::Absent,
        key: Some(RootKey::generate()),
        budget: Existing::Absent,
        masters: Vec::new(),
        namespaces: BTreeMap::from([("billing".to_owned(), client("uid-1", true))]),
        since_rotation: None,
    };
    snapshot.masters = vec![up(&BTreeMap::new()); 3];
    snapshot
}

fn client(uid: &str, in_use: bool) -> ClientNamespace {
    ClientNamespace { uid: uid.to_owned(), in_use }
}

/// A master that lets these in.
fn up(namespaces: &BTreeMap<String, BTreeSet<String>>) -> ObservedMaster {
    let facts = Facts { namespaces: namespaces.clone(), ..facts(Some("run-1")) };
    master(Some(armed_row()), pod("pod-1", Stage::Running), ObservedServer::Up(facts))
}

fn want(snapshot: &mut Snapshot, generation: i64) {
    snapshot.cluster.spec.credentials = Some(CredentialsSpec { generation: Some(generation), namespaces: Vec::new() });
}

/// Carries out a plan: the record is written, and the masters `reached` get its users.
fn carry_out(snapshot: &mut Snapshot, plan: &ClientPlan, reached: &[usize]) {
    let status = RedisLockClusterStatus { credentials: Some(plan.record.clone()), ..RedisLockClusterStatus::default() };
    snapshot.cluster.status = Some(status);
    for &index in reached {
        snapshot.masters[index] = up(plan.clients.as_ref().expect("a key").digests());
    }
    if plan.has_advanced {
        snapshot.since_rotation = Some(Duration::ZERO);
    }
}

/// Whether clients of `billing` may log in with the password of that generation.
fn lets_in(snapshot: &Snapshot, plan: &ClientPlan, uid: &str, generation: i64, namespace_generation: i64) -> bool {
    let password = snapshot.key.as_ref().expect("a key").client_password(uid, generation, namespace_generation);
    let clients = plan.clients.as_ref().expect("a key").digests();
    clients.get("billing").is_some_and(|digests| digests.contains(&password.digest()))
}

#[test]
fn a_new_cluster_begins_with_the_generation_of_its_spec() {
    let mut new = snapshot();
    want(&mut new, 7);
    let plan = plan_clients(&new, &rules(0));
    assert_eq!((plan.record.generation, plan.record.next_generation, plan.wake), (7, None, None));
    assert!(lets_in(&new, &plan, "uid-1", 7, 1) && !lets_in(&new, &plan, "uid-1", 1, 1));
}

#[test]
fn a_password_comes_into_force_when_the_masters_know_it_and_the_former_stays_for_the_overlap() {
    let mut current = snapshot();
    let first = plan_clients(&current, &rules(0));
    carry_out(&mut current, &first, &[0, 1, 2]);
    want(&mut current, 2);

    // Told to the masters: both are accepted, and Secrets have the former one.
    let told = plan_clients(&current, &rules(10));
    assert_eq!((told.record.generation, told.record.next_generation), (1, Some(2)));
    assert!(lets_in(&current, &told, "uid-1", 1, 1) && lets_in(&current, &told, "uid-1", 2, 1));
    assert_eq!(told.wake, Some(CHECK_AFTER));

    // One master does not know it yet.
    carry_out(&mut current, &told, &[0, 1]);
    let waiting = plan_clients(&current, &rules(11));
    assert_eq!(waiting.record, told.record);

    // All do.
    carry_out(&mut current, &waiting, &[2]);
    let in_force = plan_clients(&current, &rules(20));
    assert!(in_force.has_advanced);
    assert_eq!((in_force.record.generation, in_force.record.previous_generation), (2, Some(1)));
    assert_eq!(in_force.record.previous_valid_until, Some(MicroTime(at(320))));
    assert_eq!(in_force.wake, Some(OVERLAP));
    assert!(lets_in(&current, &in_force, "uid-1", 1, 1) && lets_in(&current, &in_force, "uid-1", 2, 1));

    // A further change waits for the end of the overlap, also in a new process, which has the record alone.
    carry_out(&mut current, &in_force, &[0, 1, 2]);
    want(&mut current, 3);
    current.since_rotation = None;
    let overlap = plan_clients(&current, &rules(319));
    assert_eq!((&overlap.record, overlap.wake), (&in_force.record, Some(Duration::from_secs(1))));
    let over = plan_clients(&current, &rules(320));
    assert_eq!(
        (over.record.generation, over.record.next_generation, over.record.previous_generation),
        (2, Some(3), None)
    );
    assert!(!lets_in(&current, &over, "uid-1", 1, 1) && lets_in(&current, &over, "uid-1", 2, 1));
}

#[test]
fn a_master_that_does_not_answer_does_not_hold_up_a_replacement_and_a_minority_does_not_decide_it() {
    let mut current = snapshot();
    let first = plan_clients(&current, &rules(0));
    carry_out(&mut current, &first, &[0, 1, 2]);
    want(&mut current, 2);
    let told = plan_clients(&current, &rules(1));
    carry_out(&mut current, &told, &[0, 1]);
    let silent = |server: ObservedServer| master(Some(armed_row()), pod("pod-1", Stage::Running), server);
    current.masters[2] = silent(ObservedServer::Unreachable("no answer".to_owned()));
    assert!(plan_clients(&current, &rules(2)).has_advanced);
    current.masters[1] = silent(ObservedServer::NotAsked);
    assert!(!plan_clients(&current, &rules(2)).has_advanced);
}

#[test]
fn a_wall_clock_that_jumps_ahead_does_not_shorten_the_overlap() {
    let mut current = snapshot();
    let record = CredentialsStatus {
        generation: 2,
        next_generation: None,
        previous_generation: Some(1),
        previous_valid_until: Some(MicroTime(at(300))),
        leaving: Vec::new(),
    };
    want(&mut current, 2);
    current.cluster.status =
        Some(RedisLockClusterStatus { credentials: Some(record), ..RedisLockClusterStatus::default() });
    current.since_rotation = Some(Duration::from_secs(100));
    let plan = plan_clients(&current, &rules(100_000));
    assert_eq!((plan.record.previous_generation, plan.wake), (Some(1), Some(Duration::from_secs(200))));
    current.since_rotation = Some(OVERLAP);
    assert_eq!(plan_clients(&current, &rules(100_000)).record.previous_generation, None);
}

#[test]
fn a_revoked_password_and_that_of_a_namespace_of_the_same_name_are_not_accepted() {
    let mut current = snapshot();
    let before = plan_clients(&current, &rules(0));
    carry_out(&mut current, &before, &[0, 1, 2]);
    let revoked = NamespaceCredentials { name: "billing".to_owned(), generation: 2 };
    current.cluster.spec.credentials = Some(CredentialsSpec { generation: None, namespaces: vec![revoked] });
    let after = plan_clients(&current, &rules(1));
    assert!(!lets_in(&current, &after, "uid-1", 1, 1) && lets_in(&current, &after, "uid-1", 1, 2));
    assert!(after.clients.as_ref().unwrap().revoke_passwords_of(&facts_of(&current)));

    current.cluster.spec.credentials = None;
    current.namespaces.insert("billing".to_owned(), client("uid-2", true));
    let again = plan_clients(&current, &rules(1));
    assert!(!lets_in(&current, &again, "uid-1", 1, 1) && lets_in(&current, &again, "uid-2", 1, 1));
}

fn facts_of(snapshot: &Snapshot) -> Facts {
    armed(snapshot).next().expect("an armed master").clone()
}

#[test]
fn a_namespace_keeps_its_user_for_max_ttl_after_its_last_lock_also_in_a_new_process() {
    let mut current = snapshot();
    let with_lock = plan_clients(&current, &rules(0));
    carry_out(&mut current, &with_lock, &[0, 1, 2]);
    current.namespaces.insert("billing".to_owned(), client("uid-1", false));
    let gone = plan_clients(&current, &rules(10));
    assert_eq!(gone.record.leaving, [LeavingNamespace { name: "billing".to_owned(), until: MicroTime(at(70)) }]);
    assert!(lets_in(&current, &gone, "uid-1", 1, 1));
    assert_eq!(gone.wake, Some(rules(0).max_ttl));
    carry_out(&mut current, &gone, &[0, 1, 2]);

    let later = plan_clients(&current, &rules(69));
    assert_eq!((&later.record, later.wake), (&gone.record, Some(Duration::from_secs(1))));
    let over = plan_clients(&current, &rules(70));
    assert!(over.record.leaving.is_empty() && !lets_in(&current, &over, "uid-1", 1, 1));

    // A new lock before that, and nothing is left of the record.
    current.namespaces.insert("billing".to_owned(), client("uid-1", true));
    let back = plan_clients(&current, &rules(69));
    assert!(back.record.leaving.is_empty() && lets_in(&current, &back, "uid-1", 1, 1));

    // Not admitted any more, or deleted: it is not looked up at all.
    current.namespaces.clear();
    assert!(!lets_in(&current, &plan_clients(&current, &rules(11)), "uid-1", 1, 1));
}

#[test]
fn without_the_root_key_nothing_is_replaced() {
    let mut current = snapshot();
    let first = plan_clients(&current, &rules(0));
    carry_out(&mut current, &first, &[0, 1, 2]);
    want(&mut current, 2);
    current.key = None;
    let plan = plan_clients(&current, &rules(1));
    assert_eq!((plan.record, plan.clients), (first.record, None));
}
