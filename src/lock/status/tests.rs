//! What status shows of which state.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use redlock_engine::{Grant, Loss, Owner, Reason, Token};
use tokio::time::Instant;

use super::compute::{Computed, Now, Times, View, compute};
use crate::api::condition::{CLUSTER_AVAILABLE, CONFIG_VALID, HELD};
use crate::api::lock::LockPhase;
use crate::api::{DistributedLock, DistributedLockStatus};
use crate::lock::connections::Unconnected;
use crate::lock::decide::Obstacle;
use crate::lock::fixtures;
use crate::lock::identity::identity;
use crate::lock::keeper::state::{Refusal, Sighting, State, Trouble};

mod phases;

const MS: Duration = Duration::from_millis(1);

/// 2026-11-30T09:02:40.551200Z, by the wall clock.
fn now() -> Now {
    Now { wall: Timestamp::from_microsecond(1_796_029_360_551_200).unwrap(), mono: Instant::now() + 1_000_000 * MS }
}

fn owner(token: u64) -> Owner {
    Owner::new(identity("job/night", fixtures::UID), Token::new(token).unwrap(), 1)
}

/// A lease of 30 s that was renewed `age` before `now`.
fn held(token: u64, now: Now, age: Duration) -> State {
    let renewed_at = now.mono - age;
    let grant = Grant {
        acquired_at: renewed_at - 2_000 * MS,
        renewed_at,
        valid_until: renewed_at + 29_698 * MS,
        votes: 5,
        renewals: 0,
        last_failure: None,
    };
    State::Held { owner: owner(token), grant }
}

fn trouble(reason: Reason) -> Trouble {
    Trouble { reason, message: "2 of 5 masters usable, 3 needed".to_owned() }
}

struct Case {
    lock: DistributedLock,
    base: DistributedLockStatus,
}

impl Case {
    fn new() -> Self {
        Self { lock: fixtures::lock(), base: DistributedLockStatus::default() }
    }

    fn after(mut self, state: &State, times: Times, now: Now) -> Self {
        self.base = self.show(Some(state), times, now).status;
        self
    }

    fn show(&self, state: Option<&State>, times: Times, now: Now) -> Computed {
        let view = View { lock: &self.lock, base: &self.base, obstacle: None, name_conflict: None, state };
        compute(&view, 5, times, now)
    }

    fn obstructed(&self, obstacle: &Obstacle, state: Option<&State>) -> DistributedLockStatus {
        let (obstacle, base) = (Some(obstacle), &self.base);
        compute(&View { lock: &self.lock, base, obstacle, name_conflict: None, state }, 5, KEEP, now()).status
    }
}

const KEEP: Times = Times::KeepUntil(None);

fn condition<'a>(status: &'a DistributedLockStatus, type_: &str) -> &'a Condition {
    status.conditions.iter().find(|c| c.type_ == type_).unwrap_or_else(|| panic!("no condition {type_}"))
}

fn word<'a>(status: &'a DistributedLockStatus, type_: &str) -> (&'a str, &'a str) {
    let condition = condition(status, type_);
    (&condition.status, &condition.reason)
}

#[test]
fn a_grant_is_shown_with_all_that_is_known_of_it() {
    let now = now();
    let shown = Case::new().show(Some(&held(17, now, 300 * MS)), Times::Fresh, now);
    let json = serde_json::to_value(&shown.status).unwrap();
    for (field, value) in [
        ("phase", "Held"),
        ("holder", "job/night"),
        ("acquireTime", "2026-11-30T09:02:38.251200Z"),
        ("renewTime", "2026-11-30T09:02:40.251200Z"),
        ("validUntil", "2026-11-30T09:03:09.949200Z"),
        ("validity", "29.7s"),
        ("votes", "5/5"),
    ] {
        assert_eq!(json[field], value, "{field}");
    }
    assert_eq!((json["fencingToken"].as_i64(), json["transitions"].as_i64()), (Some(17), Some(1)));
    assert_eq!(word(&shown.status, HELD), ("True", "Acquired"));
    assert_eq!(word(&shown.status, CLUSTER_AVAILABLE), ("True", "QuorumAnswers"));
    assert_eq!(word(&shown.status, CONFIG_VALID), ("True", "Valid"));
    assert_eq!(shown.deadline, Some(now.mono + 28_398 * MS), "a second before the end");
}

#[test]
fn a_lock_that_failed_with_its_lease_says_how_and_what_brings_it_back() {
    let now = now();
    let case = Case::new().after(&held(17, now, 300 * MS), Times::Fresh, now);
    let stopped = |generation| State::Stopped { loss: Loss::Taken, generation: Some(generation) };
    let shown = case.show(Some(&stopped(1)), KEEP, now).status;
    assert_eq!((shown.phase, shown.observed_generation), (Some(LockPhase::Failed), Some(1)));
    assert_eq!((word(&shown, HELD), word(&shown, CONFIG_VALID)), (("False", "Taken"), ("True", "Valid")));
    let message = "a majority of the masters does not hold the lease any more; with onLost: Fail it is acquired again only when spec \
                   changes";
    assert_eq!(condition(&shown, HELD).message, message);
    assert_eq!((shown.owner, shown.fencing_token), (None, None));
    assert_eq!(case.show(Some(&stopped(0)), KEEP, now).status, case.base, "the spec has changed meanwhile");
}

#[test]
fn a_grant_to_an_earlier_holder_is_not_shown_again() {
    let now = now();
    let state = held(17, now, 300 * MS);
    let mut case = Case::new().after(&state, Times::Fresh, now);
    case.lock.spec.holder = Some("job/morning".to_owned());
    case.base = super::compute::releasing(&case.base, Some(2), now).unwrap();
    let shown = case.show(Some(&state), Times::Fresh, now).status;
    assert_eq!(word(&shown, HELD), ("False", "Released"));
    assert_eq!(shown, case.base);
}

#[test]
fn times_have_exactly_six_digits() {
    let mono = Instant::now();
    for (nanos, text) in [
        (0, "2026-11-30T09:02:40.000000Z"),
        (1_000, "2026-11-30T09:02:40.000001Z"),
        (123_456_499, "2026-11-30T09:02:40.123456Z"),
        (500_000_000, "2026-11-30T09:02:40.500000Z"),
    ] {
        let wall = Timestamp::new(1_796_029_360, nanos).unwrap();
        let time = Now { wall, mono }.wall_time(mono);
        assert_eq!(serde_json::to_value(&time).unwrap(), text);
    }
}

#[test]
fn what_was_written_is_not_written_again() {
    let now = now();
    let states = [
        held(17, now, 300 * MS),
        State::Contending {
            lost: None,
            answer: Some(Refusal::Contended(Some("other/x@5.0000000000000001".to_owned()))),
        },
        State::Contending { lost: Some(Loss::Expired { last_failure: None }), answer: None },
        State::Contending { lost: None, answer: Some(Refusal::Trouble(trouble(Reason::Quarantined))) },
        State::Observed(Sighting::Nobody),
        State::Observed(Sighting::Unknown(trouble(Reason::NoQuorum))),
    ];
    for state in states {
        let once = Case::new().after(&state, Times::Fresh, now);
        let deadline = Case::new().show(Some(&state), Times::Fresh, now).deadline;
        let later = Now { wall: now.wall, mono: now.mono + 5_000 * MS };
        let again = once.show(Some(&state), Times::KeepUntil(deadline), later);
        assert_eq!(again.status, once.base, "{state:?}");
        assert_eq!(again.deadline, deadline);
    }
}

#[test]
fn a_renewal_moves_the_times_and_nothing_else() {
    let now = now();
    let case = Case::new().after(&held(17, now, 300 * MS), Times::Fresh, now);
    let later = Now { wall: now.wall + jiff::SignedDuration::from_secs(10), mono: now.mono + 10_000 * MS };
    let renewed = case.show(Some(&held(17, later, 100 * MS)), Times::Fresh, later).status;
    let json = serde_json::to_value(&renewed).unwrap();
    assert_eq!(json["renewTime"], "2026-11-30T09:02:50.451200Z");
    assert_eq!(json["acquireTime"], "2026-11-30T09:02:38.251200Z");
    let expected = DistributedLockStatus {
        renew_time: renewed.renew_time.clone(),
        valid_until: renewed.valid_until.clone(),
        ..case.base.clone()
    };
    assert_eq!(renewed, expected);
}

#[test]
fn times_that_are_not_refreshed_are_removed_rather_than_shown_in_the_past() {
    let now = now();
    let state = held(17, now, 300 * MS);
    let shown = Case::new().show(Some(&state), Times::Fresh, now);
    let deadline = shown.deadline;
    let case = Case { lock: fixtures::lock(), base: shown.status };
    let late = Now { wall: now.wall, mono: deadline.unwrap() };
    let removed = case.show(Some(&held(17, late, 100 * MS)), Times::KeepUntil(deadline), late);
    assert_eq!((&removed.status.renew_time, &removed.status.valid_until), (&None, &None));
    assert_eq!((&removed.status.validity, removed.deadline), (&None, None));
    assert_eq!(removed.status.votes.as_deref(), Some("5/5"));
    assert_eq!(word(&removed.status, HELD), ("True", "Acquired"), "held all the same");
    let again = Case { lock: fixtures::lock(), base: removed.status.clone() };
    assert_eq!(again.show(Some(&state), KEEP, late).status, removed.status);
}

#[test]
fn a_process_that_slept_between_grant_and_status_claims_nothing() {
    let now = now();
    let status = Case::new().show(Some(&held(17, now, 60_000 * MS)), Times::Fresh, now).status;
    assert_eq!((&status.renew_time, &status.valid_until, &status.validity), (&None, &None, &None));
    assert_eq!(word(&status, HELD), ("Unknown", "Expired"));
    assert_eq!(status.fencing_token, Some(17), "for the next process to ask the masters");
}

#[test]
fn another_grant_is_another_transition() {
    let now = now();
    let case = Case::new().after(&held(17, now, MS), Times::Fresh, now);
    let next = case.show(Some(&held(18, now, MS)), KEEP, now).status;
    assert_eq!((next.transitions, next.fencing_token), (Some(2), Some(18)));
    assert_eq!(next.valid_until, None, "the old grant's times are not the new one's");
    let lost = case.after(&State::Contending { lost: Some(Loss::Taken), answer: None }, KEEP, now);
    assert_eq!(lost.base.phase, Some(LockPhase::Lost));
    assert_eq!((&lost.base.holder, lost.base.fencing_token, lost.base.transitions), (&None, None, Some(1)));
    assert_eq!(word(&lost.base, HELD), ("False", "Taken"));
    assert_eq!(lost.show(Some(&held(18, now, MS)), KEEP, now).status.transitions, Some(2));
}

#[test]
fn an_adopted_grant_is_the_same_grant() {
    let now = now();
    let mut case = Case::new().after(&held(17, now, MS), Times::Fresh, now);
    for state in [None, Some(&State::Starting), Some(&State::Adopting { owner: owner(17), trouble: None })] {
        assert_eq!(case.show(state, KEEP, now).status, case.base, "nothing new while {state:?}");
    }
    let later = Now { wall: now.wall + jiff::SignedDuration::from_secs(5), mono: now.mono + 5_000 * MS };
    let adopted = case.show(Some(&held(17, later, MS)), Times::Fresh, later).status;
    assert_eq!((&adopted.acquire_time, adopted.transitions), (&case.base.acquire_time, Some(1)));

    // Whether it still stands is unknown: token and holder stay, the proof goes.
    let trouble = Some(trouble(Reason::NoQuorum));
    case = case.after(&State::Adopting { owner: owner(17), trouble }, KEEP, later);
    assert_eq!(case.base.phase, Some(LockPhase::Held));
    assert_eq!((case.base.fencing_token, &case.base.valid_until), (Some(17), &None));
    assert_eq!(word(&case.base, HELD), ("Unknown", "NoQuorum"));
    assert_eq!(word(&case.base, CLUSTER_AVAILABLE), ("False", "NoQuorum"));
    assert_eq!(case.show(Some(&held(17, later, MS)), KEEP, later).status.transitions, Some(1));
}

#[test]
fn who_waits_sees_who_holds_and_never_anothers_token() {
    let value = format!("{}@99.0000000000000001", identity("job/day", fixtures::CLUSTER_UID));
    let state = State::Contending { lost: None, answer: Some(Refusal::Contended(Some(value))) };
    let status = Case::new().show(Some(&state), KEEP, now()).status;
    assert_eq!(status.phase, Some(LockPhase::Waiting));
    assert_eq!((status.holder.as_deref(), status.fencing_token), (Some("job/day"), None));
    assert_eq!(word(&status, HELD), ("False", "Contended"));
    assert_eq!(condition(&status, HELD).message, "held by job/day");
    assert_eq!(word(&status, CLUSTER_AVAILABLE), ("True", "QuorumAnswers"));
}

#[test]
fn who_waits_for_a_key_that_never_expires_sees_how_to_free_it_and_so_does_who_observes_it() {
    let never = "held by 6f1c, whose key never expires: delete it on the masters to free the lock";
    let value = "6f1c".to_owned();
    let waiting = State::Contending { lost: None, answer: Some(Refusal::Endless(value.clone())) };
    let now = now();
    let seen = Sighting::Somebody { value, renewed_at: now.mono, valid_until: None, votes: 3 };
    for (state, truth) in [(waiting, "False"), (State::Observed(seen), "True")] {
        let status = Case::new().show(Some(&state), Times::Fresh, now).status;
        assert_eq!((status.holder.as_deref(), status.fencing_token), (Some("6f1c"), None));
        assert_eq!((word(&status, HELD).0, condition(&status, HELD).message.as_str()), (truth, never));
        assert_eq!(status.valid_until, None);
    }
    let split = State::Contending { lost: None, answer: Some(Refusal::Split) };
    let status = Case::new().show(Some(&split), KEEP, now).status;
    assert_eq!(condition(&status, HELD).message, "nobody holds it: several contenders ask for it");
    assert_eq!((word(&status, HELD), status.holder.as_deref()), (("False", "Contended"), None));
}

#[test]
fn too_few_masters_are_shown_by_both_conditions() {
    for reason in [Reason::NoQuorum, Reason::Quarantined, Reason::Auth, Reason::OutOfMemory, Reason::Misconfigured] {
        let state = State::Contending { lost: None, answer: Some(Refusal::Trouble(trouble(reason))) };
        let status = Case::new().show(Some(&state), KEEP, now()).status;
        assert_eq!(word(&status, HELD), ("False", reason.as_str()));
        assert_eq!(word(&status, CLUSTER_AVAILABLE), ("False", reason.as_str()));
        assert_eq!(condition(&status, HELD).message, "2 of 5 masters usable, 3 needed");
    }
}

fn seen(value: &str, now: Now) -> State {
    State::Observed(Sighting::Somebody {
        value: value.to_owned(),
        renewed_at: now.mono,
        valid_until: Some(now.mono + 9_000 * MS),
        votes: 4,
    })
}

#[test]
fn a_lock_of_pods_shows_who_leads_and_counts_changes_of_hands() {
    let now = now();
    let case = Case { lock: fixtures::observed_lock(), base: DistributedLockStatus::default() };
    let case = case.after(&seen("pod-a@17.0000000000000001", now), Times::Fresh, now);
    let base = &case.base;
    assert_eq!((base.holder.as_deref(), base.fencing_token, base.transitions), (Some("pod-a"), Some(17), Some(1)));
    assert_eq!((base.validity.as_deref(), base.votes.as_deref()), (Some("9.0s"), Some("4/5")));
    assert_eq!(word(base, HELD), ("True", "Observed"));

    let case = case.after(&State::Observed(Sighting::Unknown(trouble(Reason::NoQuorum))), KEEP, now);
    assert_eq!((&case.base.holder, case.base.fencing_token), (&None, Some(17)));
    assert_eq!(word(&case.base, HELD), ("Unknown", "NoQuorum"));
    let case = case.after(&seen("pod-a@17.0000000000000001", now), Times::Fresh, now);
    assert_eq!(case.base.transitions, Some(1), "the same leader seen again");
    let case = case.after(&seen("pod-b@18.0000000000000001", now), Times::Fresh, now);
    assert_eq!(case.base.transitions, Some(2));

    let case = case.after(&State::Observed(Sighting::Nobody), KEEP, now);
    assert_eq!((case.base.phase, case.base.fencing_token), (Some(LockPhase::Pending), None));
    assert_eq!(word(&case.base, HELD), ("False", "NotHeld"));
    assert_eq!(word(&case.base, CLUSTER_AVAILABLE), ("True", "QuorumAnswers"));
}

#[test]
fn the_whole_owner_is_shown_while_the_lock_is_held_and_only_then() {
    let now = now();
    let case = Case::new().after(&held(17, now, MS), Times::Fresh, now);
    assert_eq!(case.base.owner, Some(owner(17).to_string()));
    let adopting = State::Adopting { owner: owner(17), trouble: Some(trouble(Reason::NoQuorum)) };
    let case = case.after(&adopting, KEEP, now);
    assert_eq!(case.base.owner, Some(owner(17).to_string()), "the next process needs it to ask the masters");
    let others = format!("{}@99.0000000000000001", identity("job/day", fixtures::CLUSTER_UID));
    let case = case.after(&State::Contending { lost: None, answer: Some(Refusal::Contended(Some(others))) }, KEEP, now);
    assert_eq!(case.base.owner, None, "another's is never adopted");
    let lock = Case { lock: fixtures::observed_lock(), base: DistributedLockStatus::default() };
    let case = lock.after(&seen("pod-a@17.0000000000000001", now), Times::Fresh, now);
    assert_eq!(case.base.owner.as_deref(), Some("pod-a@17.0000000000000001"));
    assert_eq!(case.after(&State::Observed(Sighting::Nobody), KEEP, now).base.owner, None);
}

#[test]
fn another_librarys_holder_is_shown_as_it_is() {
    let now = now();
    let case = Case { lock: fixtures::observed_lock(), base: DistributedLockStatus::default() };
    let case = case.after(&seen("6f1c2a", now), Times::Fresh, now);
    assert_eq!((case.base.holder.as_deref(), case.base.fencing_token), (Some("6f1c2a"), None));
    assert_eq!(case.show(Some(&seen("6f1c2a", now)), Times::Fresh, now).status.transitions, Some(1));
    assert_eq!(case.show(Some(&seen("77", now)), Times::Fresh, now).status.transitions, Some(2));
}

#[test]
fn each_obstacle_is_shown_by_the_condition_that_it_belongs_to() {
    let case = Case::new();
    let status = case.obstructed(&Obstacle::NamespaceNotAllowed, None);
    assert_eq!(status.phase, Some(LockPhase::Failed));
    assert_eq!(word(&status, CONFIG_VALID), ("False", "NamespaceNotAllowed"));
    assert_eq!(word(&status, HELD), ("False", "NamespaceNotAllowed"));

    let status = case.obstructed(&Obstacle::ClusterNotFound, None);
    assert_eq!(status.phase, Some(LockPhase::Pending));
    assert_eq!(word(&status, CLUSTER_AVAILABLE), ("False", "ClusterNotFound"));
    assert_eq!(word(&status, CONFIG_VALID), ("True", "Valid"));

    let missing = Obstacle::Unconnected(Unconnected::SecretNotFound("quintet-auth".to_owned()));
    let status = case.obstructed(&missing, None);
    assert_eq!(status.phase, Some(LockPhase::Pending));
    assert_eq!(word(&status, CLUSTER_AVAILABLE), ("False", "AuthSecretNotFound"));
}

#[test]
fn a_proven_hold_is_shown_whatever_else_is_wrong() {
    let state = held(17, now(), MS);
    let (ttl, max) = (Duration::from_secs(90), Duration::from_secs(60));
    let status = Case::new().obstructed(&Obstacle::TtlAboveMaximum { ttl, max }, Some(&state));
    assert_eq!(status.phase, Some(LockPhase::Held));
    assert_eq!(word(&status, CONFIG_VALID), ("False", "TtlAboveMaximum"));
    let status = Case::new().obstructed(&Obstacle::ClusterNotFound, Some(&state));
    assert_eq!(word(&status, HELD), ("True", "Acquired"));
    assert_eq!(word(&status, CLUSTER_AVAILABLE), ("False", "ClusterNotFound"));
}

#[test]
fn a_grant_that_cannot_be_checked_is_kept_as_unproven() {
    let base = fixtures::held_status(17);
    let missing = Obstacle::Unconnected(Unconnected::SecretNotFound("quintet-auth".to_owned()));
    let case = Case { lock: fixtures::lock(), base };
    let status = case.obstructed(&missing, None);
    assert_eq!((status.phase, status.fencing_token), (Some(LockPhase::Held), Some(17)));
    assert_eq!(word(&status, HELD), ("Unknown", "AuthSecretNotFound"));
    let again = Case { lock: fixtures::lock(), base: status.clone() };
    assert_eq!(again.obstructed(&missing, None), status);
}

#[test]
fn a_foreign_secret_is_shown_and_the_lock_works_all_the_same() {
    let (case, now) = (Case::new(), now());
    let state = held(17, now, MS);
    let name_conflict = Some("the Secret exists");
    let view = View { lock: &case.lock, base: &case.base, obstacle: None, name_conflict, state: Some(&state) };
    let status = compute(&view, 5, Times::Fresh, now).status;
    assert_eq!(word(&status, HELD), ("True", "Acquired"));
    assert_eq!(word(&status, CONFIG_VALID), ("False", "NameConflict"));
    assert_eq!(condition(&status, CONFIG_VALID).message, "the Secret exists");
}
