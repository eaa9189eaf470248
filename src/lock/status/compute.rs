//! What status shows of a lock. No IO, no clock: the time is passed in.

use std::time::Duration;

use jiff::{Timestamp, Unit};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

use crate::api::condition::{CLUSTER_AVAILABLE, CONFIG_VALID, HELD, Truth, set_condition};
use crate::api::lock::LockPhase;
use crate::api::{DistributedLock, DistributedLockStatus};
use crate::lock::decide::Obstacle;
use crate::lock::identity::{Holder, api_token, is_of_holder};
use crate::lock::keeper::state::{Refusal, Sighting, State, Trouble};

/// How long before its end a shown time is refreshed or removed at the latest: the write takes time.
const MAX_MARGIN: Duration = Duration::from_secs(1);

/// What is said of a holder whose key on the masters has no end.
const NEVER_EXPIRES: &str = "whose key never expires: delete it on the masters to free the lock";

/// One moment by both clocks. An `Instant` is shown as wall time by its distance from this moment: the wall clock may have
/// been changed since the instant was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// For conditions and for people.
    pub(crate) wall: Timestamp,
    /// For every comparison.
    pub(crate) mono: Instant,
}

/// What status is computed from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    /// The object.
    pub(crate) lock: &'a DistributedLock,
    /// The status that the API server has.
    pub(crate) base: &'a DistributedLockStatus,
    /// What is wrong with the lock, if anything.
    pub(crate) obstacle: Option<&'a Obstacle>,
    /// Why the Secret for clients is not written, if a foreign Secret has its name.
    pub(crate) name_conflict: Option<&'a str>,
    /// The state of the lock; `None` without an actor.
    pub(crate) state: Option<&'a State>,
}

/// Whether status gets new times of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    /// It gets new times.
    Fresh,
    /// It keeps its times if this deadline has not passed. Otherwise they are removed.
    KeepUntil(Option<Instant>),
}

/// What status shows of a lease.
#[derive(Clone, Copy, Debug)]
struct ShownLease {
    acquired_at: Instant,
    renewed_at: Instant,
    valid_until: Option<Instant>,
    votes: usize,
}

/// A status, and until when it may show its times.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Computed {
    /// The status.
    pub(crate) status: DistributedLockStatus,
    /// When its times must be refreshed or removed; `None` if it shows none.
    pub(crate) deadline: Option<Instant>,
}

// === impl Now ===

impl Now {
    /// `instant` as wall time, in whole microseconds.
    pub(crate) fn wall_time(&self, instant: Instant) -> MicroTime {
        let ahead = instant.saturating_duration_since(self.mono);
        let behind = self.mono.saturating_duration_since(instant);
        let wall = self.wall.saturating_add(ahead).and_then(|wall| wall.saturating_sub(behind)).unwrap_or(self.wall);
        MicroTime(wall.round(Unit::Microsecond).unwrap_or(wall))
    }
}

/// The status for `view` at `now`; the API server's own, if nothing new is known. `masters` is their number.
pub(crate) fn compute(view: &View<'_>, masters: usize, times: Times, now: Now) -> Computed {
    let mut draft = Draft { status: view.base.clone(), deadline: None, generation: view.lock.metadata.generation, now };
    if let Times::KeepUntil(until) = times {
        draft.deadline = until;
    }
    let was_held = view.base.phase == Some(LockPhase::Held);
    let is_known = match (view.obstacle, view.state) {
        // About to be released for the next holder: nothing is said of it any more.
        (None, Some(State::Held { owner, .. })) if !is_of_holder(view.lock, owner) => false,
        // A proven lease is shown as held, whatever is wrong with the spec or the cluster.
        (_, Some(State::Held { owner, grant })) => {
            let lease = ShownLease {
                acquired_at: grant.acquired_at,
                renewed_at: grant.renewed_at,
                valid_until: Some(grant.valid_until),
                votes: grant.votes,
            };
            draft.held(Holder::of(owner), owner.to_string(), lease, masters, times, "Acquired");
            draft.available();
            true
        }
        (Some(obstacle), _) => {
            draft.stopped(obstacle, &obstacle.message(view.lock), was_held);
            true
        }
        (None, Some(state)) => draft.unheld(state, masters, times),
        (None, None) => false,
    };
    if !is_known {
        return Computed { status: view.base.clone(), deadline: draft.deadline };
    }
    if let Some(obstacle) = view.obstacle.filter(|o| !o.is_in_spec()) {
        draft.set(CLUSTER_AVAILABLE, Truth::False, obstacle.reason(), obstacle.message(view.lock));
    }
    match (view.obstacle.filter(|o| o.is_in_spec()), view.name_conflict) {
        (Some(obstacle), _) => draft.set(CONFIG_VALID, Truth::False, obstacle.reason(), obstacle.message(view.lock)),
        (None, Some(why)) => draft.set(CONFIG_VALID, Truth::False, "NameConflict", why),
        (None, None) => draft.set(CONFIG_VALID, Truth::True, "Valid", ""),
    }
    draft.status.observed_generation = draft.generation;
    Computed { status: draft.status, deadline: draft.deadline }
}

/// The status of a lock that is about to be released; `None` if its status does not say that it is, or may be, held.
pub(crate) fn releasing(
    base: &DistributedLockStatus,
    generation: Option<i64>,
    now: Now,
) -> Option<DistributedLockStatus> {
    let may_be_held = base.conditions.iter().any(|c| c.type_ == HELD && c.status != Truth::False.as_str());
    if base.phase != Some(LockPhase::Held) && !may_be_held {
        return None;
    }
    let mut draft = Draft { status: base.clone(), deadline: None, generation, now };
    draft.not_held(LockPhase::Pending);
    draft.set(HELD, Truth::False, "Released", "it is being released");
    Some(draft.status)
}

/// A status that is being computed.
struct Draft {
    status: DistributedLockStatus,
    deadline: Option<Instant>,
    generation: Option<i64>,
    now: Now,
}

impl Draft {
    fn set(&mut self, type_: &str, truth: Truth, reason: &str, message: impl Into<String>) {
        set_condition(&mut self.status.conditions, type_, truth, reason, message, self.generation, self.now.wall);
    }

    fn available(&mut self) {
        self.set(CLUSTER_AVAILABLE, Truth::True, "QuorumAnswers", "");
    }

    fn unavailable(&mut self, trouble: &Trouble) {
        self.set(CLUSTER_AVAILABLE, Truth::False, trouble.reason.as_str(), trouble.message.as_str());
    }

    /// Shows the state of a lock that is not proven held. False if there is nothing to show.
    fn unheld(&mut self, state: &State, masters: usize, times: Times) -> bool {
        match state {
            State::Adopting { trouble: Some(trouble), .. } => {
                // It may still be held, with the same token, but there is no proof.
                self.clear_times();
                self.status.votes = None;
                self.set(HELD, Truth::Unknown, trouble.reason.as_str(), trouble.message.as_str());
                self.unavailable(trouble);
            }
            State::Contending { lost: Some(loss), answer: None } => {
                self.not_held(LockPhase::Lost);
                self.set(HELD, Truth::False, loss.as_str(), format!("{loss}; it is being acquired again"));
            }
            State::Contending { lost, answer: Some(answer) } => {
                self.not_held(if lost.is_some() { LockPhase::Lost } else { LockPhase::Waiting });
                self.refused(answer);
            }
            // Of a generation that is gone: its assignment to the actor is on the way.
            State::Stopped { generation, .. } if *generation != self.generation => return false,
            State::Stopped { loss, .. } => {
                self.not_held(LockPhase::Failed);
                let why = format!("{loss}; with onLost: Fail it is acquired again only when spec changes");
                self.set(HELD, Truth::False, loss.as_str(), why);
            }
            State::Observed(sighting) => self.observed(sighting, masters, times),
            _ => return false,
        }
        true
    }

    fn refused(&mut self, answer: &Refusal) {
        match answer {
            Refusal::Contended(value) => {
                let holder = value.as_deref().map(|value| Holder::of_value(value).name);
                let message = format!("held by {}", holder.as_deref().unwrap_or("another"));
                self.status.holder = holder;
                self.set(HELD, Truth::False, "Contended", message);
                self.available();
            }
            Refusal::Endless(value) => {
                let holder = Holder::of_value(value).name;
                self.set(HELD, Truth::False, "Contended", format!("held by {holder}, {NEVER_EXPIRES}"));
                self.status.holder = Some(holder);
                self.available();
            }
            Refusal::Split => {
                self.set(HELD, Truth::False, "Contended", "nobody holds it: several contenders ask for it");
                self.available();
            }
            Refusal::Trouble(trouble) => {
                self.set(HELD, Truth::False, trouble.reason.as_str(), trouble.message.as_str());
                self.unavailable(trouble);
            }
        }
    }

    fn observed(&mut self, sighting: &Sighting, masters: usize, times: Times) {
        match sighting {
            Sighting::Nobody => {
                self.not_held(LockPhase::Pending);
                self.set(HELD, Truth::False, "NotHeld", "nobody holds it");
                self.available();
            }
            Sighting::Somebody { value, renewed_at, valid_until, votes } => {
                let (renewed_at, valid_until, votes) = (*renewed_at, *valid_until, *votes);
                let lease = ShownLease { acquired_at: renewed_at, renewed_at, valid_until, votes };
                self.held(Holder::of_value(value), value.clone(), lease, masters, times, "Observed");
                self.available();
            }
            Sighting::Unknown(trouble) => {
                // The last token stays: it is the largest that was seen, whoever holds the lock now.
                let token = self.status.fencing_token;
                self.not_held(LockPhase::Pending);
                self.status.fencing_token = token;
                self.set(HELD, Truth::Unknown, trouble.reason.as_str(), trouble.message.as_str());
                self.unavailable(trouble);
            }
        }
    }

    /// Shows a lease. `owner` is the value of the key on the masters.
    fn held(&mut self, holder: Holder, owner: String, lease: ShownLease, masters: usize, times: Times, reason: &str) {
        let token = holder.token.map(api_token);
        let status = &mut self.status;
        let same = match token {
            Some(_) => status.fencing_token == token,
            None => status.phase == Some(LockPhase::Held) && status.holder.as_deref() == Some(holder.name.as_str()),
        };
        if !same {
            status.transitions = Some(status.transitions.unwrap_or(0).saturating_add(1));
        }
        let acquire_time = status.acquire_time.take().filter(|_| same);
        status.acquire_time = Some(acquire_time.unwrap_or_else(|| self.now.wall_time(lease.acquired_at)));
        status.phase = Some(LockPhase::Held);
        status.fencing_token = token;
        status.owner = Some(owner);
        let message = match token {
            Some(token) => format!("held by {} with fencing token {token}", holder.name),
            None if lease.valid_until.is_none() => format!("held by {}, {NEVER_EXPIRES}", holder.name),
            None => format!("held by {}, which has no fencing token", holder.name),
        };
        status.holder = Some(holder.name);
        self.times(&lease, masters, times, same);
        // A lease can end before its watchdog runs and reports it.
        if lease.valid_until.is_some_and(|until| until <= self.now.mono) && reason == "Acquired" {
            self.set(HELD, Truth::Unknown, "Expired", "not renewed in time: the hold is not proven any more");
        } else {
            self.set(HELD, Truth::True, reason, message);
        }
    }

    fn times(&mut self, lease: &ShownLease, masters: usize, times: Times, same: bool) {
        let kept = match times {
            Times::KeepUntil(until) => until.filter(|&until| same && until > self.now.mono),
            Times::Fresh => None,
        };
        if kept.is_some() {
            self.deadline = kept;
            return;
        }
        self.clear_times();
        if !same || times == Times::Fresh {
            self.status.votes = Some(format!("{}/{masters}", lease.votes));
        }
        if times != Times::Fresh {
            return;
        }
        let Some(until) = lease.valid_until.filter(|&until| until > self.now.mono) else { return };
        let validity = until.saturating_duration_since(lease.renewed_at);
        self.status.renew_time = Some(self.now.wall_time(lease.renewed_at));
        self.status.valid_until = Some(self.now.wall_time(until));
        self.status.validity = Some(format!("{:.1}s", validity.as_secs_f64()));
        self.deadline = until.checked_sub((validity / 10).min(MAX_MARGIN));
    }

    fn clear_times(&mut self) {
        self.deadline = None;
        self.status.renew_time = None;
        self.status.valid_until = None;
        self.status.validity = None;
    }

    fn not_held(&mut self, phase: LockPhase) {
        self.clear_times();
        self.status.phase = Some(phase);
        self.status.holder = None;
        self.status.fencing_token = None;
        self.status.owner = None;
        self.status.acquire_time = None;
        self.status.votes = None;
    }

    fn stopped(&mut self, obstacle: &Obstacle, message: &str, was_held: bool) {
        if was_held && matches!(obstacle, Obstacle::Unconnected(_)) {
            // The masters cannot be asked: the grant may stand, and can be adopted once they can be.
            self.clear_times();
            self.status.votes = None;
            self.set(HELD, Truth::Unknown, obstacle.reason(), message);
            return;
        }
        self.not_held(if obstacle.is_in_spec() { LockPhase::Failed } else { LockPhase::Pending });
        self.set(HELD, Truth::False, obstacle.reason(), message);
    }
}
