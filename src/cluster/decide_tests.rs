//! What is decided about a node: a table for each thing that holds.

use super::*;
use crate::cluster::fixtures::{DELAY, armed, at, facts, node, pod, quarantined, row, rules, unreachable, up};

#[track_caller]
fn expect(rules: &Rules, node: &NodeFound, state: NodeState, action: Action) -> Decision {
    let decision = decide(rules, node);
    assert_eq!((decision.row.state, decision.action), (state, action), "{decision:#?}");
    decision
}

// === 1: when a pod is created

#[test]
fn a_node_that_was_never_started_is_created_at_once_and_its_start_is_recorded_first() {
    let first = node(None, Slot::Free, ServerFound::NotAsked);
    let decision = expect(&rules(0), &first, NodeState::Starting, Action::Create);
    assert_eq!((decision.row.crashes, &decision.row.restart_not_before), (0, &None));
    // The operator stopped after the record and before the pod: it goes on.
    let again = node(Some(decision.row), Slot::Free, ServerFound::NotAsked);
    expect(&rules(1), &again, NodeState::Starting, Action::Create);
}

#[test]
fn a_node_whose_pod_vanished_waits_from_when_that_was_seen() {
    for state in [NodeState::Armed, NodeState::Unreachable, NodeState::Terminating, NodeState::Misconfigured] {
        let gone = node(Some(NodeStatus { state, ..armed() }), Slot::Free, ServerFound::NotAsked);
        let decision = expect(&rules(0), &gone, NodeState::Quarantined, Action::Nothing);
        assert_eq!(decision.row.crashes, 1);
        assert_eq!(decision.row.last_crash_time, Some(MicroTime(at(0))));
        assert_eq!(decision.row.restart_not_before, Some(MicroTime(at(65))));
        assert_eq!(decision.row.pod_uid.as_deref(), Some("pod-1"));
        assert_eq!((decision.crashed, decision.wake), (true, Some(DELAY)));
    }
}

#[test]
fn a_pod_that_started_and_vanished_before_it_voted_counts_as_a_crash() {
    let starting = NodeStatus { pod_uid: Some("pod-1".to_owned()), ..row(NodeState::Starting) };
    expect(
        &rules(0),
        &node(Some(starting), Slot::Free, ServerFound::NotAsked),
        NodeState::Quarantined,
        Action::Nothing,
    );
}

#[test]
fn a_crashed_node_is_not_created_before_its_delay_is_over() {
    let gone = node(Some(quarantined()), Slot::Free, ServerFound::NotAsked);
    for second in [0, 1, 64] {
        let decision = expect(&rules(second), &gone, NodeState::Quarantined, Action::Nothing);
        assert_eq!(decision.row.last_crash_time, Some(MicroTime(at(0))), "the time is not moved");
        assert_eq!(decision.wake, Some(Duration::from_secs(65 - second.unsigned_abs())));
        assert!(!decision.crashed);
    }
    for second in [65, 66, 100_000] {
        expect(&rules(second), &gone, NodeState::Quarantined, Action::Create);
    }
}

#[test]
fn a_wall_clock_that_jumps_ahead_does_not_shorten_the_delay() {
    let mut gone = node(Some(quarantined()), Slot::Free, ServerFound::NotAsked);
    gone.since_gone = Some(Duration::from_secs(5));
    let decision = expect(&rules(100_000), &gone, NodeState::Quarantined, Action::Nothing);
    assert_eq!(decision.wake, Some(Duration::from_secs(60)));
    gone.since_gone = Some(DELAY);
    expect(&rules(100_000), &gone, NodeState::Quarantined, Action::Create);
}

#[test]
fn a_wall_clock_that_jumps_back_only_makes_the_delay_longer() {
    let mut gone = node(Some(quarantined()), Slot::Free, ServerFound::NotAsked);
    gone.since_gone = Some(Duration::from_secs(1_000));
    expect(&rules(-500), &gone, NodeState::Quarantined, Action::Nothing);
}

#[test]
fn a_longer_delay_holds_for_nodes_that_wait_already() {
    let gone = node(Some(quarantined()), Slot::Free, ServerFound::NotAsked);
    let longer = Rules { restart_delay: Duration::from_secs(300), ..rules(100) };
    let decision = expect(&longer, &gone, NodeState::Quarantined, Action::Nothing);
    assert_eq!(decision.row.restart_not_before, Some(MicroTime(at(300))));
}

#[test]
fn a_wiped_status_is_no_first_start() {
    let mut wiped = node(None, Slot::Free, ServerFound::NotAsked);
    wiped.started_before = true;
    let decision = expect(&rules(0), &wiped, NodeState::Quarantined, Action::Nothing);
    assert_eq!(decision.row.restart_not_before, Some(MicroTime(at(65))));
}

#[test]
fn a_wiped_status_with_an_armed_server_is_taken_up_again_without_a_crash() {
    let mut wiped = node(None, pod("pod-1", Stage::Running), up(Some("run-1")));
    wiped.started_before = true;
    let decision = expect(&rules(0), &wiped, NodeState::Armed, Action::Nothing);
    assert_eq!((decision.row.crashes, decision.row.restart_not_before), (0, None));
    assert_eq!(decision.row.run_id.as_deref(), Some("run-1"));
}

#[test]
fn a_wiped_status_with_a_server_that_is_not_armed_waits_out_the_delay() {
    for server in [up(None), up(Some("run-0")), unreachable(), ServerFound::NotAsked] {
        let wiped = node(None, pod("pod-1", Stage::Running), server.clone());
        let decision = expect(&rules(0), &wiped, NodeState::Starting, Action::Nothing);
        assert_eq!(decision.row.restart_not_before, Some(MicroTime(at(65))), "{server:?}");
        // What was not proven to be gone does not count as gone: the delay begins anew when it goes.
        let vanished = node(Some(decision.row.clone()), Slot::Free, ServerFound::NotAsked);
        let later = expect(&rules(60), &vanished, NodeState::Quarantined, Action::Nothing);
        assert_eq!(later.row.restart_not_before, Some(MicroTime(at(125))));
        let still = node(Some(decision.row), pod("pod-1", Stage::Running), up(None));
        expect(&rules(64), &still, NodeState::Starting, Action::Nothing);
        expect(&rules(65), &still, NodeState::Starting, Action::Arm);
    }
}

#[test]
fn nothing_is_created_where_another_object_has_the_name() {
    let foreign = Slot::Foreign("Pod votes-0".to_owned());
    expect(&rules(0), &node(None, foreign.clone(), ServerFound::NotAsked), NodeState::Starting, Action::Nothing);
    for slot in [Slot::Orphan, foreign] {
        expect(
            &rules(65),
            &node(Some(quarantined()), slot.clone(), ServerFound::NotAsked),
            NodeState::Quarantined,
            Action::Nothing,
        );
        // And the crash of the node that was there is recorded all the same.
        let decision = expect(
            &rules(0),
            &node(Some(armed()), slot, ServerFound::NotAsked),
            NodeState::Quarantined,
            Action::Nothing,
        );
        assert!(decision.crashed);
    }
}

#[test]
fn a_cluster_that_replaces_one_of_its_name_waits_from_when_that_is_gone() {
    let first = node(None, Slot::Orphan, ServerFound::NotAsked);
    let decision = expect(&rules(0), &first, NodeState::Terminating, Action::Nothing);
    let still = node(Some(decision.row), Slot::Orphan, ServerFound::NotAsked);
    let again = expect(&rules(100), &still, NodeState::Terminating, Action::Nothing);
    assert_eq!(Some(&again.row), still.row.as_ref(), "nothing to write meanwhile");
    let gone = node(Some(again.row), Slot::Free, ServerFound::NotAsked);
    let decision = expect(&rules(200), &gone, NodeState::Quarantined, Action::Nothing);
    assert_eq!(decision.row.restart_not_before, Some(MicroTime(at(265))));
}

// === 2: what holds a node's place

#[test]
fn an_ended_pod_is_recorded_and_then_deleted() {
    let stage = Stage::Ended { deleting: false };
    let decision = expect(
        &rules(0),
        &node(Some(armed()), pod("pod-1", stage), ServerFound::NotAsked),
        NodeState::Quarantined,
        Action::Delete,
    );
    assert_eq!((decision.row.crashes, &decision.row.last_crash_time), (1, &Some(MicroTime(at(0)))));
    // The deletion failed: it is repeated, the record stays.
    let again = node(Some(decision.row.clone()), pod("pod-1", stage), ServerFound::NotAsked);
    assert_eq!(expect(&rules(5), &again, NodeState::Quarantined, Action::Delete).row, decision.row);
    // The object went: the record stays.
    let gone = node(Some(decision.row.clone()), Slot::Free, ServerFound::NotAsked);
    assert_eq!(expect(&rules(6), &gone, NodeState::Quarantined, Action::Nothing).row, decision.row);
}

#[test]
fn an_ended_pod_holds_its_place_until_its_object_is_gone() {
    let ended = node(Some(quarantined()), pod("pod-1", Stage::Ended { deleting: true }), ServerFound::NotAsked);
    expect(&rules(1_000), &ended, NodeState::Quarantined, Action::Nothing);
}

#[test]
fn a_pod_that_may_still_run_is_not_replaced_however_long_it_takes() {
    let doubtful = node(Some(armed()), pod("pod-1", Stage::Doubtful { deleting: true }), up(Some("run-1")));
    let decision = expect(&rules(0), &doubtful, NodeState::Terminating, Action::Nothing);
    assert_eq!((decision.row.crashes, &decision.row.restart_not_before), (0, &None), "the delay has not begun");
    let later = node(Some(decision.row), pod("pod-1", Stage::Doubtful { deleting: true }), unreachable());
    let decision = expect(&rules(1_000_000), &later, NodeState::Terminating, Action::Nothing);
    let gone = node(Some(decision.row), Slot::Free, ServerFound::NotAsked);
    let decision = expect(&rules(1_000_001), &gone, NodeState::Quarantined, Action::Nothing);
    assert_eq!(decision.row.restart_not_before, Some(MicroTime(at(1_000_066))));
}

#[test]
fn a_pod_declared_failed_whose_container_may_run_is_deleted_without_counting_as_gone() {
    let doubtful = node(Some(armed()), pod("pod-1", Stage::Doubtful { deleting: false }), ServerFound::NotAsked);
    let decision = expect(&rules(0), &doubtful, NodeState::Terminating, Action::Delete);
    assert_eq!(decision.row.last_crash_time, None);
}

// === 3: arming

#[test]
fn a_fresh_server_is_armed_after_its_process_is_recorded() {
    let starting = NodeStatus { pod_uid: Some("pod-1".to_owned()), ..row(NodeState::Starting) };
    let fresh = node(Some(starting), pod("pod-1", Stage::Running), up(None));
    let decision = expect(&rules(0), &fresh, NodeState::Starting, Action::Arm);
    assert_eq!(decision.row.run_id.as_deref(), Some("run-1"));
    assert_eq!(decision.row.pod_uid.as_deref(), Some("pod-1"));
}

#[test]
fn a_marker_of_another_process_is_none() {
    let starting = NodeStatus { pod_uid: Some("pod-1".to_owned()), ..row(NodeState::Starting) };
    expect(
        &rules(0),
        &node(Some(starting), pod("pod-1", Stage::Running), up(Some("run-0"))),
        NodeState::Starting,
        Action::Arm,
    );
    let lost = node(Some(armed()), pod("pod-1", Stage::Running), up(Some("run-0")));
    expect(&rules(0), &lost, NodeState::Terminating, Action::Delete);
}

#[test]
fn an_armed_server_without_its_marker_has_lost_its_data_and_counts_once() {
    let lost = node(Some(armed()), pod("pod-1", Stage::Running), up(None));
    let decision = expect(&rules(0), &lost, NodeState::Terminating, Action::Delete);
    assert_eq!((decision.row.crashes, &decision.row.restart_not_before), (1, &Some(MicroTime(at(65)))));
    // The deletion failed.
    let again = node(Some(decision.row.clone()), pod("pod-1", Stage::Running), up(None));
    assert_eq!(expect(&rules(1), &again, NodeState::Terminating, Action::Delete).row, decision.row);
    // It goes: the delay begins when it has gone.
    let going = node(Some(decision.row), pod("pod-1", Stage::Doubtful { deleting: true }), up(None));
    let decision = expect(&rules(2), &going, NodeState::Terminating, Action::Nothing);
    let gone = node(Some(decision.row), Slot::Free, ServerFound::NotAsked);
    let decision = expect(&rules(7), &gone, NodeState::Quarantined, Action::Nothing);
    assert_eq!((decision.row.crashes, &decision.row.restart_not_before), (1, &Some(MicroTime(at(72)))));
}

#[test]
fn another_process_in_the_same_pod_has_lost_its_data() {
    let mut server = facts(None);
    server.run_id = "run-2".to_owned();
    let restarted = node(Some(armed()), pod("pod-1", Stage::Running), ServerFound::Up(server));
    expect(&rules(0), &restarted, NodeState::Terminating, Action::Delete);
}

#[test]
fn a_pod_created_too_early_is_not_armed_before_the_delay_is_over() {
    // A former leader that slept between its decision and the create does this.
    let early = node(Some(quarantined()), pod("pod-2", Stage::Running), up(None));
    let decision = expect(&rules(10), &early, NodeState::Starting, Action::Nothing);
    assert_eq!(decision.wake, Some(Duration::from_secs(55)));
    assert_eq!((decision.row.crashes, decision.row.run_id.as_deref()), (1, None));
    let mut late = node(Some(decision.row), pod("pod-2", Stage::Running), up(None));
    late.since_gone = Some(Duration::from_secs(20));
    expect(&rules(65), &late, NodeState::Starting, Action::Nothing);
    late.since_gone = Some(DELAY);
    expect(&rules(65), &late, NodeState::Starting, Action::Arm);
}

#[test]
fn a_node_that_came_back_after_its_delay_is_armed_again() {
    let back = node(Some(quarantined()), pod("pod-2", Stage::Running), up(None));
    let decision = expect(&rules(65), &back, NodeState::Starting, Action::Arm);
    assert_eq!((decision.row.crashes, &decision.row.restart_not_before), (1, &None));
    assert_eq!(decision.row.last_crash_time, Some(MicroTime(at(0))));
}

#[test]
fn a_pod_that_replaced_a_voting_one_unseen_waits_out_the_delay() {
    let replaced = node(Some(armed()), pod("pod-2", Stage::Running), up(None));
    let decision = expect(&rules(0), &replaced, NodeState::Starting, Action::Nothing);
    assert_eq!((decision.row.crashes, decision.wake), (1, Some(DELAY)));
}

#[test]
fn a_server_that_is_not_fit_is_not_armed_and_told() {
    let starting = NodeStatus { pod_uid: Some("pod-1".to_owned()), ..row(NodeState::Starting) };
    let server = Facts { unfit: Some("its role is slave".to_owned()), ..facts(None) };
    let unfit = node(Some(starting.clone()), pod("pod-1", Stage::Running), ServerFound::Up(server));
    let decision = expect(&rules(0), &unfit, NodeState::Misconfigured, Action::Nothing);
    assert_eq!((decision.row.message.as_deref(), decision.row.run_id), (Some("its role is slave"), None));
    let refused = node(Some(starting), pod("pod-1", Stage::Running), ServerFound::Refused("no login".to_owned()));
    expect(&rules(0), &refused, NodeState::Misconfigured, Action::Nothing);
}

#[test]
fn an_armed_server_that_is_not_reachable_is_told_and_left_alone() {
    for stage in [Stage::Running, Stage::Pending] {
        let cut = node(Some(armed()), pod("pod-1", stage), unreachable());
        let decision = expect(&rules(0), &cut, NodeState::Unreachable, Action::Nothing);
        assert_eq!((decision.row.crashes, decision.row.run_id.as_deref()), (0, Some("run-1")));
        let back = node(Some(decision.row), pod("pod-1", Stage::Running), up(Some("run-1")));
        let decision = expect(&rules(60), &back, NodeState::Armed, Action::Nothing);
        assert_eq!(decision.row.armed_since, Some(MicroTime(at(-1_000))), "it was armed all the time");
    }
}

#[test]
fn deciding_about_a_healthy_node_changes_nothing() {
    let row = NodeStatus { address: Some("votes-0.keys.svc:6379".to_owned()), ..armed() };
    let healthy = node(Some(row.clone()), pod("pod-1", Stage::Running), up(Some("run-1")));
    let decision = expect(&rules(0), &healthy, NodeState::Armed, Action::Nothing);
    assert_eq!((decision.row, decision.wake, decision.crashed), (row, None, false));
}
