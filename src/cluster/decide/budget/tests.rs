//! How many masters a budget keeps, and for how long.

use std::collections::BTreeMap;

use super::*;
use crate::cluster::decide::master::decide_master;
use crate::cluster::fixtures::{DELAY, armed, cluster, master, pod, quarantined, rules, up};
use crate::cluster::observed::{ObservedMaster, ObservedServer, Stage};
use crate::contract::names;

/// A master that votes.
fn voting() -> ObservedMaster {
    master(Some(armed()), pod("pod-1", Stage::Running), up(Some("run-1")))
}

/// A master that has been out for so long.
fn out(seconds: u64) -> ObservedMaster {
    let gone = master(Some(quarantined()), Existing::Absent, ObservedServer::NotAsked);
    ObservedMaster { out_for: Some(Duration::from_secs(seconds)), ..gone }
}

fn snapshot(masters: Vec<ObservedMaster>, budget: Existing<PodDisruptionBudget>) -> Snapshot {
    let cluster = cluster(i32::try_from(masters.len()).unwrap());
    Snapshot {
        cluster,
        secret: Existing::Absent,
        key: None,
        budget,
        masters,
        namespaces: BTreeMap::new(),
        since_rotation: None,
    }
}

fn plan(snapshot: &Snapshot) -> BudgetPlan {
    let plans: Vec<_> = snapshot.masters.iter().map(|master| decide_master(&rules(1), master)).collect();
    plan_budget(&rules(1), snapshot, &plans)
}

/// How many masters the budget keeps that is made for these.
fn kept(masters: Vec<ObservedMaster>) -> i32 {
    let plan = plan(&snapshot(masters, Existing::Absent));
    assert_eq!(plan.object, ObjectPlan::Create);
    plan.min_available
}

#[test]
fn all_but_one_are_kept_and_the_quorum_is_while_one_stays_out_for_longer_than_a_restart_takes() {
    for (masters, all_but_one, quorum) in [(3, 2, 2), (5, 4, 3), (7, 6, 4)] {
        let with = |first: ObservedMaster| {
            std::iter::once(first).chain(std::iter::repeat_with(voting)).take(masters).collect::<Vec<_>>()
        };
        assert_eq!(kept(with(voting())), all_but_one);
        let patience = (DELAY + START).as_secs();
        assert_eq!(kept(with(out(0))), all_but_one);
        assert_eq!(kept(with(out(patience - 1))), all_but_one, "it is expected back");
        assert_eq!(kept(with(out(patience))), quorum);
    }
}

#[test]
fn a_single_master_has_no_budget() {
    assert_eq!(plan(&snapshot(vec![voting()], Existing::Absent)).object, ObjectPlan::Leave);
}

#[test]
fn a_lowered_budget_stays_until_all_are_armed_however_often_the_operator_restarts() {
    let five = cluster(5);
    let planned = |first: ObservedMaster, kept: i32| {
        let masters = std::iter::once(first).chain(std::iter::repeat_with(voting)).take(5).collect();
        let plan = plan(&snapshot(masters, Existing::Ours(build::budget(&five, kept))));
        let becomes = match plan.object {
            ObjectPlan::Leave => kept,
            ObjectPlan::Apply(budget) => min_available(&budget).unwrap(),
            object => panic!("{object:?}"),
        };
        (becomes, plan.wake)
    };
    // An operator that has just started has not seen how long the master is out.
    assert_eq!(planned(out(0), 3), (3, None));
    assert_eq!(planned(voting(), 3), (4, None));
    assert_eq!(planned(voting(), 4), (4, None));
    assert_eq!(planned(out(60), 4), (4, Some(Duration::from_secs(35))));
    assert_eq!(planned(out(1_000), 4), (3, None));
}

#[test]
fn a_budget_of_others_is_left_and_one_of_a_former_cluster_taken_over() {
    let about = |budget| plan(&snapshot(vec![voting(), voting(), voting()], budget)).object;
    assert_eq!(about(Existing::Foreign("PodDisruptionBudget votes".to_owned())), ObjectPlan::Leave);
    let mut former = build::budget(&cluster(3), 2);
    former.metadata.uid = Some("budget-1".to_owned());
    assert_eq!(about(Existing::Orphan(former)), ObjectPlan::TakeOver("budget-1".to_owned()));
}

#[test]
fn the_budget_counts_the_pods_of_the_cluster_and_only_the_armed_ones() {
    let cluster = cluster(3);
    let spec = build::budget(&cluster, 2).spec.unwrap();
    let pod = build::pod(&cluster, "votes-0", "redis:7.4-alpine", build::Spread::Preferred);
    let labels = pod.metadata.labels.unwrap();
    let selector = spec.selector.unwrap().match_labels.unwrap();
    assert!(selector.iter().all(|(key, value)| labels.get(key) == Some(value)), "{selector:?} {labels:?}");
    let gates = pod.spec.unwrap().readiness_gates.unwrap();
    assert_eq!(gates[0].condition_type, names::ARMED_GATE);
    assert_eq!(spec.unhealthy_pod_eviction_policy.as_deref(), Some("AlwaysAllow"), "one that never starts goes");
    assert_eq!(spec.max_unavailable, None);
}
