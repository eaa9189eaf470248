//! When a master is gone, what holds its place until then, and what its end leaves.

use super::*;

#[test]
fn a_pod_that_vanished_without_proof_keeps_its_place_until_its_machine_has_ended_or_an_administrator_vouches() {
    for state in [MasterState::Armed, MasterState::Unreachable, MasterState::Terminating, MasterState::Misconfigured] {
        let mut vanished = master(Some(MasterStatus { state, ..armed() }), Existing::Absent, ObservedServer::NotAsked);
        let mut row = armed();
        for found in [
            ObservedMachine::Unknown,
            machine("boot-1"),
            ObservedMachine::Present { boot_id: None, is_out_of_service: false },
        ] {
            vanished.machine = found;
            let plan = expect(&rules(1_000_000), &vanished, MasterState::Vanished, MasterAction::Nothing);
            assert!(
                plan.row
                    .message
                    .as_ref()
                    .is_some_and(|text| text.contains("annotation redlock.dev/gone names the pod: pod-1"))
            );
            assert_eq!((plan.row.crashes, plan.row.restart_not_before.as_ref(), plan.wake), (0, None, None));
            row = plan.row;
        }
        vanished.row = Some(row);
        let again = decide_master(&rules(1_000_001), &vanished);
        assert_eq!(Some(again.row), vanished.row, "nothing to write meanwhile");
        let out_of_service = ObservedMachine::Present { boot_id: Some("boot-1".to_owned()), is_out_of_service: true };
        for (found, vouched) in [
            (ObservedMachine::Deleted, false),
            (out_of_service, false),
            (machine("boot-2"), false),
            (ObservedMachine::Unknown, true),
            (machine("boot-1"), true),
        ] {
            (vanished.machine, vanished.is_vouched_gone) = (found, vouched);
            let plan = expect(&rules(2_000_000), &vanished, MasterState::Quarantined, MasterAction::Nothing);
            assert_eq!(plan.row.restart_not_before, Some(MicroTime(at(2_000_065))), "{:?}", vanished.machine);
            assert_eq!((plan.crashed, plan.wake, plan.row.pod_uid.as_deref()), (true, Some(DELAY), Some("pod-1")));
        }
    }
}

#[test]
fn a_pod_that_never_was_armed_needs_no_delay_however_it_went() {
    let starting = MasterStatus { pod_uid: Some("pod-1".to_owned()), ..row(MasterState::Starting) };
    let gone = master(Some(starting.clone()), Existing::Absent, ObservedServer::NotAsked);
    expect(&rules(0), &gone, MasterState::Starting, MasterAction::Create);
    for pod in [pod("pod-1", Stage::Ended), going("pod-1", Stage::Doubtful), pod("pod-1", Stage::DeclaredDead)] {
        let plan = expect(
            &rules(0),
            &master(Some(starting.clone()), pod, ObservedServer::NotAsked),
            MasterState::Starting,
            MasterAction::Release,
        );
        assert_eq!((plan.crashed, plan.failed_start, plan.row.crashes), (false, true, 0));
        let mut gone = master(Some(plan.row), Existing::Absent, ObservedServer::NotAsked);
        gone.backoff = Some(Duration::from_secs(4));
        let waiting = expect(&rules(0), &gone, MasterState::Starting, MasterAction::Nothing);
        assert_eq!(waiting.wake, Some(Duration::from_secs(4)), "not again and again without a pause");
        assert_eq!(waiting.row, gone.row.clone().unwrap_or(waiting.row.clone()), "the reason is kept");
        gone.backoff = None;
        expect(&rules(0), &gone, MasterState::Starting, MasterAction::Create);
    }
    // A delay that runs already is not cut short by it.
    let delayed = MasterStatus { run_id: None, ..quarantined() };
    expect(
        &rules(64),
        &master(Some(delayed), Existing::Absent, ObservedServer::NotAsked),
        MasterState::Quarantined,
        MasterAction::Nothing,
    );
}

#[test]
fn a_pod_of_a_former_cluster_is_removed_and_the_delay_counts_from_its_end() {
    let orphan = |stage| Existing::Orphan(observed_pod("pod-0", stage));
    for stage in [Stage::Running, Stage::Pending, Stage::Doubtful] {
        let first = master(None, orphan(stage), ObservedServer::NotAsked);
        let plan = expect(&rules(0), &first, MasterState::Terminating, MasterAction::Delete);
        assert_eq!((plan.row.pod_uid.as_deref(), plan.row.node_name.as_deref()), (Some("pod-0"), Some("n1")));
        // A restored one has no finalizer: it would vanish without its end being seen.
        let bare = Existing::Orphan(ObservedPod { finalizers: Vec::new(), ..observed_pod("pod-0", stage) });
        let bare = master(Some(plan.row.clone()), bare, ObservedServer::NotAsked);
        expect(&rules(0), &bare, MasterState::Terminating, MasterAction::Protect);
        let still = Existing::Orphan(ObservedPod { is_deleting: true, ..observed_pod("pod-0", Stage::Doubtful) });
        let again = master(Some(plan.row.clone()), still, ObservedServer::NotAsked);
        let again = expect(&rules(100), &again, MasterState::Terminating, MasterAction::Nothing);
        assert_eq!(again.row, plan.row, "nothing to write meanwhile");
        let ended = master(Some(again.row.clone()), orphan(Stage::Ended), ObservedServer::NotAsked);
        let plan = expect(&rules(200), &ended, MasterState::Quarantined, MasterAction::Release);
        assert_eq!((plan.row.crashes, &plan.row.restart_not_before), (1, &Some(MicroTime(at(265)))));
        let gone = master(Some(plan.row), Existing::Absent, ObservedServer::NotAsked);
        expect(&rules(264), &gone, MasterState::Quarantined, MasterAction::Nothing);
        expect(&rules(265), &gone, MasterState::Quarantined, MasterAction::Create);
        // Its object vanished before its end was seen.
        let vanished = master(Some(again.row), Existing::Absent, ObservedServer::NotAsked);
        expect(&rules(200), &vanished, MasterState::Vanished, MasterAction::Nothing);
    }
}

#[test]
fn a_pod_that_was_stripped_when_its_cluster_was_deleted_is_let_go_whatever_it_does() {
    for stage in [Stage::Running, Stage::Doubtful, Stage::Ended] {
        let stripped =
            master(Some(quarantined()), Existing::Orphan(observed_pod("pod-1", stage)), ObservedServer::NotAsked);
        let plan = expect(&rules(5), &stripped, MasterState::Quarantined, MasterAction::Release);
        assert_eq!((plan.row, plan.wake), (with_address(quarantined()), Some(Duration::from_secs(60))));
    }
}

fn with_address(row: MasterStatus) -> MasterStatus {
    MasterStatus { address: Some("votes-0.keys.svc:6379".to_owned()), ..row }
}

#[test]
fn an_ended_pod_is_recorded_and_then_deleted() {
    let stage = Stage::Ended;
    let plan = expect(
        &rules(0),
        &master(Some(armed()), pod("pod-1", stage), ObservedServer::NotAsked),
        MasterState::Quarantined,
        MasterAction::Release,
    );
    assert_eq!((plan.row.crashes, &plan.row.last_crash_time), (1, &Some(MicroTime(at(0)))));
    // The deletion failed: it is repeated, and the record stays.
    let again = master(Some(plan.row.clone()), pod("pod-1", stage), ObservedServer::NotAsked);
    assert_eq!(expect(&rules(5), &again, MasterState::Quarantined, MasterAction::Release).row, plan.row);
    // The object went: the record stays.
    let gone = master(Some(plan.row.clone()), Existing::Absent, ObservedServer::NotAsked);
    assert_eq!(expect(&rules(6), &gone, MasterState::Quarantined, MasterAction::Nothing).row, plan.row);
}

#[test]
fn an_ended_pod_holds_its_place_until_its_object_is_gone() {
    let ended = master(Some(quarantined()), going("pod-1", Stage::Ended), ObservedServer::NotAsked);
    expect(&rules(1_000), &ended, MasterState::Quarantined, MasterAction::Release);
}

#[test]
fn a_pod_that_the_control_plane_declared_dead_counts_as_gone_from_then() {
    let dead = master(Some(armed()), going("pod-1", Stage::DeclaredDead), up(Some("run-1")));
    let plan = expect(&rules(0), &dead, MasterState::Quarantined, MasterAction::Release);
    assert_eq!((plan.row.crashes, &plan.row.restart_not_before), (1, &Some(MicroTime(at(65)))));
    assert_eq!(plan.row.message.as_deref(), Some("its Kubernetes node was deleted, or tainted out-of-service"));
}

#[test]
fn a_pod_that_may_still_run_is_not_replaced_however_long_it_takes() {
    let doubtful = master(Some(armed()), going("pod-1", Stage::Doubtful), up(Some("run-1")));
    let plan = expect(&rules(0), &doubtful, MasterState::Terminating, MasterAction::Nothing);
    assert_eq!((plan.row.crashes, &plan.row.restart_not_before), (0, &None), "the delay has not begun");
    let later = master(Some(plan.row), going("pod-1", Stage::Doubtful), unreachable());
    let plan = expect(&rules(1_000_000), &later, MasterState::Terminating, MasterAction::Nothing);
    let ended = master(Some(plan.row), going("pod-1", Stage::Ended), ObservedServer::NotAsked);
    let plan = expect(&rules(1_000_001), &ended, MasterState::Quarantined, MasterAction::Release);
    assert_eq!(plan.row.restart_not_before, Some(MicroTime(at(1_000_066))));
}

#[test]
fn a_pod_declared_failed_whose_container_may_run_is_deleted_without_counting_as_gone() {
    let doubtful = master(Some(armed()), pod("pod-1", Stage::Doubtful), ObservedServer::NotAsked);
    let plan = expect(&rules(0), &doubtful, MasterState::Terminating, MasterAction::Delete);
    assert_eq!(plan.row.last_crash_time, None);
}
