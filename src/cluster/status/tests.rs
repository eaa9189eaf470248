//! What status and Events tell of a cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::runtime::events::EventType;

use super::*;
use crate::cluster::events::{ClusterEvent, events_between};
use crate::cluster::fixtures;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_796_040_164 + second).unwrap()
}

fn rows(states: &[MasterState]) -> Vec<MasterStatus> {
    let row = |(index, &state): (usize, &MasterState)| MasterStatus {
        restart_not_before: (state == MasterState::Quarantined).then(|| MicroTime(at(60))),
        ..MasterStatus::new(&format!("votes-{index}"), state)
    };
    states.iter().enumerate().map(row).collect()
}

fn next(cluster: &mut RedisLockCluster, states: &[MasterState], second: i64) -> Vec<ClusterEvent> {
    let before = cluster.status.clone();
    let after = summarize(cluster, rows(states), &[], at(second));
    cluster.status = Some(after.clone());
    events_between(before.as_ref(), &after)
}

fn condition<'a>(cluster: &'a RedisLockCluster, type_: &str) -> (&'a str, &'a str) {
    let all = &cluster.status.as_ref().unwrap().conditions;
    let found = all.iter().find(|condition| condition.type_ == type_).unwrap();
    (&found.status, &found.reason)
}

fn reasons(events: &[ClusterEvent]) -> Vec<&'static str> {
    events.iter().map(|event| event.reason).collect()
}

use MasterState::{Armed, Quarantined, Starting, Unreachable};

#[test]
fn a_cluster_goes_from_pending_to_ready_and_degrades() {
    let mut cluster = fixtures::cluster(3);
    for (states, phase, ready, available) in [
        ([Starting, Starting, Starting], ClusterPhase::Pending, "0/3", ("False", "Bootstrapping")),
        ([Armed, Armed, Starting], ClusterPhase::Pending, "2/3", ("True", "QuorumArmed")),
        ([Armed, Armed, Armed], ClusterPhase::Ready, "3/3", ("True", "QuorumArmed")),
        ([Armed, Armed, Quarantined], ClusterPhase::Degraded, "2/3", ("True", "QuorumArmed")),
        ([Armed, Unreachable, Quarantined], ClusterPhase::Unavailable, "1/3", ("False", "QuorumLost")),
        ([Starting, Starting, Starting], ClusterPhase::Unavailable, "0/3", ("False", "QuorumLost")),
    ] {
        next(&mut cluster, &states, 0);
        let status = cluster.status.as_ref().unwrap();
        assert_eq!(
            (status.phase, status.ready.as_deref(), status.quorum),
            (Some(phase), Some(ready), Some(2)),
            "{states:?}"
        );
        assert_eq!(condition(&cluster, "Available"), available, "{states:?}");
    }
}

#[test]
fn an_unchanged_state_makes_an_equal_status_at_any_time() {
    let mut cluster = fixtures::cluster(3);
    next(&mut cluster, &[Armed, Armed, Quarantined], 0);
    let before = cluster.status.clone();
    assert_eq!(next(&mut cluster, &[Armed, Armed, Quarantined], 50), []);
    assert_eq!(cluster.status, before);
}

#[test]
fn the_wide_column_tells_who_returns_and_when() {
    let mut cluster = fixtures::cluster(3);
    next(&mut cluster, &[Quarantined, Armed, Quarantined], 0);
    let returning = cluster.status.as_ref().unwrap().returning.as_deref();
    assert_eq!(returning, Some("votes-0 until 12:03:44Z, votes-2 until 12:03:44Z"));
    next(&mut cluster, &[Armed, Armed, Armed], 0);
    assert_eq!(cluster.status.unwrap().returning, None);
}

#[test]
fn events_tell_transitions_and_nothing_else() {
    let mut cluster = fixtures::cluster(3);
    assert_eq!(reasons(&next(&mut cluster, &[Starting, Starting, Starting], 0)), [""; 0]);
    assert_eq!(reasons(&next(&mut cluster, &[Armed, Armed, Starting], 1)), ["MasterArmed", "MasterArmed"]);
    assert_eq!(reasons(&next(&mut cluster, &[Armed, Armed, Armed], 2)), ["MasterArmed"]);
    assert_eq!(reasons(&next(&mut cluster, &[Armed, Armed, Quarantined], 3)), ["MasterLost"]);
    assert_eq!(reasons(&next(&mut cluster, &[Armed, Unreachable, Quarantined], 4)), ["MasterLost", "QuorumLost"]);
    assert_eq!(reasons(&next(&mut cluster, &[Armed, Unreachable, Starting], 5)), [""; 0]);
    assert_eq!(reasons(&next(&mut cluster, &[Armed, Armed, Starting], 6)), ["MasterArmed", "QuorumRestored"]);
}

#[test]
fn an_object_in_the_way_is_named_in_conditions_and_told_once() {
    let mut cluster = fixtures::cluster(1);
    let problem = Problem {
        reason: NAME_CONFLICT,
        message: "Service votes-0 exists and does not belong to this cluster: rename or delete it".to_owned(),
        blocks_all: false,
    };
    let status = summarize(&cluster, rows(&[Starting]), std::slice::from_ref(&problem), at(0));
    let told = events_between(None, &status);
    assert_eq!(reasons(&told), ["NameConflict"]);
    assert_eq!((told[0].kind, &told[0].note), (EventType::Warning, &problem.message));
    cluster.status = Some(status.clone());
    assert_eq!(condition(&cluster, "ConfigValid"), ("False", "NameConflict"));
    assert_eq!(condition(&cluster, "Ready"), ("False", "NameConflict"));
    assert_eq!(events_between(Some(&status), &status), []);
}
