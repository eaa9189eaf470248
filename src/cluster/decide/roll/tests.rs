//! Replacing masters one at a time.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::*;
use crate::api::cluster::MasterStatus;
use crate::cluster::decide::master::decide_master;
use crate::cluster::fixtures::{WANTED, armed, at, master, pod, quarantined, row, rules, unreachable, up};
use crate::cluster::observed::{Existing, ObservedServer};

fn rolled(second: i64, masters: &[ObservedMaster]) -> Vec<MasterPlan> {
    let rules = rules(second);
    let mut plans: Vec<_> = masters.iter().map(|master| decide_master(&rules, master)).collect();
    replace_outdated(&rules, masters, &mut plans, WANTED);
    plans
}

fn actions(plans: &[MasterPlan]) -> Vec<MasterAction> {
    plans.iter().map(|plan| plan.action).collect()
}

fn outdated(mut master: ObservedMaster) -> ObservedMaster {
    if let Existing::Ours(pod) = &mut master.pod {
        pod.hash = Some("old".to_owned());
    }
    master
}

fn voting(since: i64) -> ObservedMaster {
    let row = MasterStatus { armed_since: Some(MicroTime(at(since))), ..armed() };
    master(Some(row), pod("pod-1", Stage::Running), up(Some("run-1")))
}

#[test]
fn a_changed_spec_takes_one_master_down_when_all_have_been_armed_for_max_ttl() {
    let masters = [voting(-60), outdated(voting(-60)), outdated(voting(-60))];
    let plans = rolled(0, &masters);
    assert_eq!(actions(&plans), [MasterAction::Nothing, MasterAction::Delete, MasterAction::Nothing]);
    assert_eq!(plans[1].row.state, MasterState::Terminating);
}

#[test]
fn a_changed_spec_waits_while_a_master_is_away_or_has_just_come_back() {
    let young = rolled(0, &[voting(-20), outdated(voting(-60))]);
    assert_eq!(actions(&young), [MasterAction::Nothing, MasterAction::Nothing]);
    assert_eq!(young[1].wake, Some(Duration::from_secs(40)));
    let away = master(Some(quarantined()), Existing::Absent, ObservedServer::NotAsked);
    assert_eq!(actions(&rolled(1, &[away, outdated(voting(-60))])), [MasterAction::Nothing, MasterAction::Nothing]);
    let cut = master(Some(armed()), pod("pod-1", Stage::Running), unreachable());
    assert_eq!(actions(&rolled(0, &[cut, outdated(voting(-60))])), [MasterAction::Nothing, MasterAction::Nothing]);
}

#[test]
fn an_outdated_pod_that_never_voted_is_replaced_at_once() {
    let starting = MasterStatus { pod_uid: Some("pod-1".to_owned()), ..row(MasterState::Starting) };
    let pending = outdated(master(Some(starting.clone()), pod("pod-1", Stage::Pending), ObservedServer::NotAsked));
    let ready = outdated(master(Some(starting), pod("pod-1", Stage::Running), up(None)));
    assert_eq!(actions(&rolled(0, &[pending, ready])), [MasterAction::Delete, MasterAction::Delete]);
}
