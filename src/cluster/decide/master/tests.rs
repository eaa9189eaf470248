//! What is decided about a master, by invariant. Invariant 2, when a master is gone, is in [`endings`].

use super::*;
use crate::cluster::fixtures::{
    DELAY, armed, at, facts, going, machine, master, observed_pod, pod, quarantined, row, rules, unreachable, up,
};
use crate::cluster::observed::ObservedMachine;

mod endings;

#[track_caller]
fn expect(rules: &Rules, master: &ObservedMaster, state: MasterState, action: MasterAction) -> MasterPlan {
    let plan = decide_master(rules, master);
    assert_eq!((plan.row.state, plan.action), (state, action), "{plan:#?}");
    plan
}

// === 1: when a pod is created

#[test]
fn a_master_that_was_never_started_is_created_at_once_and_its_start_is_recorded_first() {
    let first = master(None, Existing::Absent, ObservedServer::NotAsked);
    let plan = expect(&rules(0), &first, MasterState::Starting, MasterAction::Create);
    assert_eq!((plan.row.crashes, &plan.row.restart_not_before), (0, &None));
    // The operator stopped after the record and before the pod: it continues.
    let again = master(Some(plan.row), Existing::Absent, ObservedServer::NotAsked);
    expect(&rules(1), &again, MasterState::Starting, MasterAction::Create);
}

#[test]
fn a_crashed_master_is_not_created_before_its_delay_is_over() {
    let gone = master(Some(quarantined()), Existing::Absent, ObservedServer::NotAsked);
    for second in [0, 1, 64] {
        let plan = expect(&rules(second), &gone, MasterState::Quarantined, MasterAction::Nothing);
        assert_eq!(plan.row.last_crash_time, Some(MicroTime(at(0))), "the time is not moved");
        assert_eq!(plan.wake, Some(Duration::from_secs(65 - second.unsigned_abs())));
        assert!(!plan.crashed);
    }
    for second in [65, 66, 100_000] {
        expect(&rules(second), &gone, MasterState::Quarantined, MasterAction::Create);
    }
}

#[test]
fn a_wall_clock_that_jumps_ahead_does_not_shorten_the_delay() {
    let mut gone = master(Some(quarantined()), Existing::Absent, ObservedServer::NotAsked);
    gone.since_gone = Some(Duration::from_secs(5));
    let plan = expect(&rules(100_000), &gone, MasterState::Quarantined, MasterAction::Nothing);
    assert_eq!(plan.wake, Some(Duration::from_secs(60)));
    gone.since_gone = Some(DELAY);
    expect(&rules(100_000), &gone, MasterState::Quarantined, MasterAction::Create);
}

#[test]
fn a_wall_clock_that_jumps_back_only_makes_the_delay_longer() {
    let mut gone = master(Some(quarantined()), Existing::Absent, ObservedServer::NotAsked);
    gone.since_gone = Some(Duration::from_secs(1_000));
    expect(&rules(-500), &gone, MasterState::Quarantined, MasterAction::Nothing);
}

#[test]
fn a_longer_delay_holds_for_masters_that_wait_already() {
    let gone = master(Some(quarantined()), Existing::Absent, ObservedServer::NotAsked);
    let longer = Rules { restart_delay: Duration::from_secs(300), ..rules(100) };
    let plan = expect(&longer, &gone, MasterState::Quarantined, MasterAction::Nothing);
    assert_eq!(plan.row.restart_not_before, Some(MicroTime(at(300))));
    // A shorter one does not: leases may be held that were granted before.
    let shorter = Rules { restart_delay: Duration::from_secs(5), ..rules(60) };
    let plan = expect(&shorter, &gone, MasterState::Quarantined, MasterAction::Nothing);
    assert_eq!(plan.row.restart_not_before, Some(MicroTime(at(65))));
}

#[test]
fn a_wiped_status_is_no_first_start() {
    let mut wiped = master(None, Existing::Absent, ObservedServer::NotAsked);
    wiped.started_before = true;
    let plan = expect(&rules(0), &wiped, MasterState::Quarantined, MasterAction::Nothing);
    assert_eq!(plan.row.restart_not_before, Some(MicroTime(at(65))));
}

#[test]
fn a_wiped_status_with_an_armed_server_is_taken_up_again_without_a_crash() {
    let mut wiped = master(None, pod("pod-1", Stage::Running), up(Some("run-1")));
    wiped.started_before = true;
    let plan = expect(&rules(0), &wiped, MasterState::Armed, MasterAction::Nothing);
    assert_eq!((plan.row.crashes, plan.row.restart_not_before), (0, None));
    assert_eq!(plan.row.run_id.as_deref(), Some("run-1"));
}

#[test]
fn a_wiped_status_with_a_server_that_is_not_armed_waits_out_the_delay() {
    for server in [up(None), up(Some("run-0")), unreachable(), ObservedServer::NotAsked] {
        let wiped = master(None, pod("pod-1", Stage::Running), server.clone());
        let plan = expect(&rules(0), &wiped, MasterState::Starting, MasterAction::Nothing);
        assert_eq!(plan.row.restart_not_before, Some(MicroTime(at(65))), "{server:?}");
        // It may have been armed: without proof of its end its place is kept, and the delay starts again when it goes.
        let mut vanished = master(Some(plan.row.clone()), Existing::Absent, ObservedServer::NotAsked);
        expect(&rules(60), &vanished, MasterState::Vanished, MasterAction::Nothing);
        vanished.is_vouched_gone = true;
        let later = expect(&rules(60), &vanished, MasterState::Quarantined, MasterAction::Nothing);
        assert_eq!(later.row.restart_not_before, Some(MicroTime(at(125))));
        let still = master(Some(plan.row), pod("pod-1", Stage::Running), up(None));
        expect(&rules(64), &still, MasterState::Starting, MasterAction::Nothing);
        expect(&rules(65), &still, MasterState::Starting, MasterAction::Arm);
    }
}

#[test]
fn nothing_is_created_where_another_object_has_the_name() {
    let foreign = Existing::Foreign("Pod votes-0".to_owned());
    expect(
        &rules(0),
        &master(None, foreign.clone(), ObservedServer::NotAsked),
        MasterState::Starting,
        MasterAction::Nothing,
    );
    let waiting = master(Some(quarantined()), foreign.clone(), ObservedServer::NotAsked);
    expect(&rules(65), &waiting, MasterState::Quarantined, MasterAction::Nothing);
    // That the master which was there has ended must be proven all the same.
    let mut displaced = master(Some(armed()), foreign, ObservedServer::NotAsked);
    expect(&rules(0), &displaced, MasterState::Vanished, MasterAction::Nothing);
    displaced.machine = ObservedMachine::Deleted;
    let plan = expect(&rules(0), &displaced, MasterState::Quarantined, MasterAction::Nothing);
    assert!(plan.crashed);
}

// === 3: arming

#[test]
fn a_fresh_server_is_armed_after_its_process_is_recorded() {
    let starting = MasterStatus { pod_uid: Some("pod-1".to_owned()), ..row(MasterState::Starting) };
    let fresh = master(Some(starting), pod("pod-1", Stage::Running), up(None));
    let fresh = ObservedMaster { machine: machine("boot-1"), ..fresh };
    let plan = expect(&rules(0), &fresh, MasterState::Starting, MasterAction::Arm);
    assert_eq!(plan.row.run_id.as_deref(), Some("run-1"));
    assert_eq!(plan.row.pod_uid.as_deref(), Some("pod-1"));
    assert_eq!((plan.row.node_name.as_deref(), plan.row.boot_id.as_deref()), (Some("n1"), Some("boot-1")));
}

#[test]
fn no_server_is_armed_whose_pod_could_vanish_unseen() {
    let starting = MasterStatus { pod_uid: Some("pod-1".to_owned()), ..row(MasterState::Starting) };
    let bare = Existing::Ours(ObservedPod {
        finalizers: vec!["other/one".to_owned()],
        ..observed_pod("pod-1", Stage::Running)
    });
    let plan = expect(
        &rules(0),
        &master(Some(starting), bare.clone(), up(None)),
        MasterState::Starting,
        MasterAction::Protect,
    );
    assert_eq!(plan.row.run_id, None);
    // One that was armed by an earlier version gets the finalizer, and votes on.
    expect(&rules(0), &master(Some(armed()), bare, up(Some("run-1"))), MasterState::Armed, MasterAction::Protect);
}

#[test]
fn a_marker_of_another_process_is_none() {
    let starting = MasterStatus { pod_uid: Some("pod-1".to_owned()), ..row(MasterState::Starting) };
    expect(
        &rules(0),
        &master(Some(starting), pod("pod-1", Stage::Running), up(Some("run-0"))),
        MasterState::Starting,
        MasterAction::Arm,
    );
    let lost = master(Some(armed()), pod("pod-1", Stage::Running), up(Some("run-0")));
    expect(&rules(0), &lost, MasterState::Terminating, MasterAction::Delete);
}

#[test]
fn an_armed_server_without_its_marker_has_lost_its_data_and_counts_once() {
    let lost = master(Some(armed()), pod("pod-1", Stage::Running), up(None));
    let plan = expect(&rules(0), &lost, MasterState::Terminating, MasterAction::Delete);
    assert_eq!((plan.row.crashes, &plan.row.restart_not_before), (1, &Some(MicroTime(at(65)))));
    // The deletion failed.
    let again = master(Some(plan.row.clone()), pod("pod-1", Stage::Running), up(None));
    assert_eq!(expect(&rules(1), &again, MasterState::Terminating, MasterAction::Delete).row, plan.row);
    // It goes: the delay starts when it is gone.
    let ending = master(Some(plan.row), going("pod-1", Stage::Doubtful), up(None));
    let plan = expect(&rules(2), &ending, MasterState::Terminating, MasterAction::Nothing);
    let ended = master(Some(plan.row), going("pod-1", Stage::Ended), ObservedServer::NotAsked);
    let plan = expect(&rules(7), &ended, MasterState::Quarantined, MasterAction::Release);
    assert_eq!((plan.row.crashes, &plan.row.restart_not_before), (1, &Some(MicroTime(at(72)))));
}

#[test]
fn another_process_in_the_same_pod_has_lost_its_data() {
    let mut server = facts(None);
    server.run_id = "run-2".to_owned();
    let restarted = master(Some(armed()), pod("pod-1", Stage::Running), ObservedServer::Up(server));
    expect(&rules(0), &restarted, MasterState::Terminating, MasterAction::Delete);
}

#[test]
fn a_pod_created_too_early_is_not_armed_before_the_delay_is_over() {
    // A former leader that slept between its decision and the create does this.
    let early = master(Some(quarantined()), pod("pod-2", Stage::Running), up(None));
    let plan = expect(&rules(10), &early, MasterState::Starting, MasterAction::Nothing);
    assert_eq!(plan.wake, Some(Duration::from_secs(55)));
    assert_eq!((plan.row.crashes, plan.row.run_id.as_deref()), (1, None));
    let mut late = master(Some(plan.row), pod("pod-2", Stage::Running), up(None));
    late.since_gone = Some(Duration::from_secs(20));
    expect(&rules(65), &late, MasterState::Starting, MasterAction::Nothing);
    late.since_gone = Some(DELAY);
    expect(&rules(65), &late, MasterState::Starting, MasterAction::Arm);
}

#[test]
fn a_master_that_came_back_after_its_delay_is_armed_again() {
    let back = master(Some(quarantined()), pod("pod-2", Stage::Running), up(None));
    let plan = expect(&rules(65), &back, MasterState::Starting, MasterAction::Arm);
    assert_eq!((plan.row.crashes, &plan.row.restart_not_before), (1, &None));
    assert_eq!(plan.row.last_crash_time, Some(MicroTime(at(0))));
}

#[test]
fn a_pod_that_replaced_a_voting_one_unseen_waits_out_the_delay() {
    let replaced = master(Some(armed()), pod("pod-2", Stage::Running), up(None));
    let plan = expect(&rules(0), &replaced, MasterState::Starting, MasterAction::Nothing);
    assert_eq!((plan.row.crashes, plan.wake), (1, Some(DELAY)));
}

#[test]
fn a_server_that_is_not_fit_is_not_armed_and_told() {
    let starting = MasterStatus { pod_uid: Some("pod-1".to_owned()), ..row(MasterState::Starting) };
    let server = Facts { unfit: Some("its role is slave".to_owned()), ..facts(None) };
    let unfit = master(Some(starting.clone()), pod("pod-1", Stage::Running), ObservedServer::Up(server));
    let plan = expect(&rules(0), &unfit, MasterState::Misconfigured, MasterAction::Nothing);
    assert_eq!((plan.row.message.as_deref(), plan.row.run_id), (Some("its role is slave"), None));
    let refused = master(Some(starting), pod("pod-1", Stage::Running), ObservedServer::Refused("no login".to_owned()));
    expect(&rules(0), &refused, MasterState::Misconfigured, MasterAction::Nothing);
}

#[test]
fn an_armed_server_that_is_not_reachable_is_told_and_left_alone() {
    for stage in [Stage::Running, Stage::Pending] {
        let cut = master(Some(armed()), pod("pod-1", stage), unreachable());
        let plan = expect(&rules(0), &cut, MasterState::Unreachable, MasterAction::Nothing);
        assert_eq!((plan.row.crashes, plan.row.run_id.as_deref()), (0, Some("run-1")));
        let back = master(Some(plan.row), pod("pod-1", Stage::Running), up(Some("run-1")));
        let plan = expect(&rules(60), &back, MasterState::Armed, MasterAction::Nothing);
        assert_eq!(plan.row.armed_since, Some(MicroTime(at(-1_000))), "it was armed all the time");
    }
}

#[test]
fn deciding_about_a_healthy_master_changes_nothing() {
    let row = MasterStatus { address: Some("votes-0.keys.svc:6379".to_owned()), ..armed() };
    let healthy = master(Some(row.clone()), pod("pod-1", Stage::Running), up(Some("run-1")));
    let plan = expect(&rules(0), &healthy, MasterState::Armed, MasterAction::Nothing);
    assert_eq!((plan.row, plan.wake, plan.crashed), (row, None, false));
}

#[test]
fn an_armed_server_that_may_not_keep_its_vote_is_a_crash() {
    let unfit = Facts { unfit: Some("its role is slave".to_owned()), ..facts(Some("run-1")) };
    for row in [Some(armed()), None] {
        let master = master(row, pod("pod-1", Stage::Running), ObservedServer::Up(unfit.clone()));
        let plan = expect(&rules(0), &master, MasterState::Terminating, MasterAction::Delete);
        assert_eq!(plan.row.message.as_deref(), Some("its role is slave"));
        assert_eq!(plan.row.restart_not_before, Some(MicroTime(at(65))));
        assert!(plan.crashed);
    }
}

#[test]
fn a_disarmed_server_says_in_the_record_why() {
    let disarmed = Facts { unfit: Some("ClockFault: its clock stands still".to_owned()), ..facts(None) };
    let master = master(Some(armed()), pod("pod-1", Stage::Running), ObservedServer::Up(disarmed));
    let plan = expect(&rules(0), &master, MasterState::Terminating, MasterAction::Delete);
    assert!(plan.row.message.unwrap().starts_with("ClockFault"));
}

#[test]
fn a_stuck_server_is_a_crash_whose_delay_counts_from_when_its_pod_is_gone() {
    let stuck = ObservedServer::Stuck("it accepted connections and answered nothing for 5s".to_owned());
    let found = master(Some(armed()), pod("pod-1", Stage::Running), stuck);
    let plan = expect(&rules(0), &found, MasterState::Terminating, MasterAction::Delete);
    assert_eq!(plan.row.crashes, 1);
    let ended = master(Some(plan.row), going("pod-1", Stage::Ended), ObservedServer::NotAsked);
    let plan = expect(&rules(10), &ended, MasterState::Quarantined, MasterAction::Release);
    assert_eq!((plan.row.crashes, plan.row.restart_not_before), (1, Some(MicroTime(at(75)))));
}
