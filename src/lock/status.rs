//! What status shows of a lock. No IO; the time comes in.

use std::time::Duration;

use jiff::{Timestamp, Unit};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

use super::decide::Obstacle;
use super::identity::{api_token, shown};
use super::state::{Refusal, Sighting, State, Trouble};
use crate::api::condition::{CLUSTER_AVAILABLE, CONFIG_VALID, HELD, Truth, set_condition};
use crate::api::lock::LockPhase;
use crate::api::{DistributedLock, DistributedLockStatus};

/// How long before its end a published time is taken away at the latest: the write takes time.
const MAX_MARGIN: Duration = Duration::from_secs(1);

/// One moment by both clocks. Instants are shown as wall time only by their distance from now: the wall clock may have
/// been set since they were taken.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For conditions and for people.
    pub wall: Timestamp,
    /// For everything that is decided.
    pub mono: Instant,
}

/// What status shall show.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The object.
    pub lock: &'a DistributedLock,
    /// What the API server has.
    pub base: &'a DistributedLockStatus,
    /// Why the lock cannot be worked on, or what is wrong with it.
    pub obstacle: Option<&'a Obstacle>,
    /// Why the Secret for clients could not be written, if a foreign one is in the way.
    pub name_conflict: Option<&'a str>,
    /// Where the lock stands; `None` without an actor.
    pub state: Option<&'a State>,
}

/// Whether the times of a lease are written anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// Written anew.
    Fresh,
    /// Left as they are, if they may stand until this instant and it has not come; else removed.
    KeepUntil(Option<Instant>),
}

/// A lease's times.
#[derive(Clone, Copy, Debug)]
struct Lease {
    acquired_at: Instant,
    renewed_at: Instant,
    valid_until: Option<Instant>,
    votes: usize,
}

/// A status, and until when the times that it shows may stand.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    /// The status.
    pub status: DistributedLockStatus,
    /// When its times are to be refreshed or removed; `None` if it shows none.
    pub deadline: Option<Instant>,
}

impl Now {
    /// The present moment.
    #[must_use]
    pub fn read() -> Self {
        Self { wall: Timestamp::now(), mono: Instant::now() }
    }

    /// `instant` as wall time, in whole microseconds.
    #[must_use]
    pub fn wall_time(&self, instant: Instant) -> MicroTime {
        let ahead = instant.saturating_duration_since(self.mono);
        let behind = self.mono.saturating_duration_since(instant);
        let wall = self.wall.saturating_add(ahead).and_then(|wall| wall.saturating_sub(behind)).unwrap_or(self.wall);
        MicroTime(wall.round(Unit::Microsecond).unwrap_or(wall))
    }
}

/// The status that `view` shows at `now`; the API server's, where there is nothing to tell. `masters` is their number.
#[must_use]
pub fn compute(view: &View<'_>, masters: usize, times: Times, now: Now) -> Shown {
    let mut page = Page { status: view.base.clone(), deadline: None, generation: view.lock.metadata.generation, now };
    if let Times::KeepUntil(until) = times {
        page.deadline = until;
    }
    let was_held = view.base.phase == Some(LockPhase::Held);
    let news = match (view.obstacle, view.state) {
        // Whatever is wrong with spec or cluster: what is proven held is shown as held.
        (_, Some(State::Held { owner, grant })) => {
            let lease = Lease {
                acquired_at: grant.acquired_at,
                renewed_at: grant.renewed_at,
                valid_until: Some(grant.valid_until),
                votes: grant.votes,
            };
            page.held(&owner.to_string(), lease, masters, times, "Acquired");
            page.available();
            true
        }
        (Some(obstacle), _) => {
            page.stopped(obstacle, &obstacle.message(view.lock), was_held);
            true
        }
        (None, Some(state)) => page.unheld(state, masters, times),
        (None, None) => false,
    };
    if !news {
        return Shown { status: view.base.clone(), deadline: page.deadline };
    }
    if let Some(obstacle) = view.obstacle.filter(|o| !o.is_in_spec()) {
        page.set(CLUSTER_AVAILABLE, Truth::False, obstacle.reason(), obstacle.message(view.lock));
    }
    match (view.obstacle.filter(|o| o.is_in_spec()), view.name_conflict) {
        (Some(obstacle), _) => page.set(CONFIG_VALID, Truth::False, obstacle.reason(), obstacle.message(view.lock)),
        (None, Some(why)) => page.set(CONFIG_VALID, Truth::False, "NameConflict", why),
        (None, None) => page.set(CONFIG_VALID, Truth::True, "Valid", ""),
    }
    page.status.observed_generation = page.generation;
    Shown { status: page.status, deadline: page.deadline }
}

/// A status in the making.
struct Page {
    status: DistributedLockStatus,
    deadline: Option<Instant>,
    generation: Option<i64>,
    now: Now,
}

impl Page {
    fn set(&mut self, type_: &str, truth: Truth, reason: &str, message: impl Into<String>) {
        set_condition(&mut self.status.conditions, type_, truth, reason, message, self.generation, self.now.wall);
    }

    fn available(&mut self) {
        self.set(CLUSTER_AVAILABLE, Truth::True, "QuorumAnswers", "");
    }

    fn unavailable(&mut self, trouble: &Trouble) {
        self.set(CLUSTER_AVAILABLE, Truth::False, trouble.reason.as_str(), trouble.message.as_str());
    }

    /// The state of a lock that this resource does not hold. False if it says nothing new.
    fn unheld(&mut self, state: &State, masters: usize, times: Times) -> bool {
        match state {
            State::Adopting { trouble: Some(trouble), .. } => {
                // It may still be held, with the same token: only the proof is missing.
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
            State::Observed(sighting) => self.observed(sighting, masters, times),
            _ => return false,
        }
        true
    }

    fn refused(&mut self, answer: &Refusal) {
        match answer {
            Refusal::Contended(value) => {
                let holder = value.as_deref().map(|value| shown(value).name);
                let message = format!("held by {}", holder.as_deref().unwrap_or("several contenders"));
                self.status.holder = holder;
                self.set(HELD, Truth::False, "Contended", message);
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
                let lease = Lease { acquired_at: renewed_at, renewed_at, valid_until, votes };
                self.held(value, lease, masters, times, "Observed");
                self.available();
            }
            Sighting::Untold(trouble) => {
                // The last token stays: it is the largest seen, whoever holds the lock now.
                let token = self.status.fencing_token;
                self.not_held(LockPhase::Pending);
                self.status.fencing_token = token;
                self.set(HELD, Truth::Unknown, trouble.reason.as_str(), trouble.message.as_str());
                self.unavailable(trouble);
            }
        }
    }

    fn held(&mut self, value: &str, lease: Lease, masters: usize, times: Times, reason: &str) {
        let holder = shown(value);
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
        let message = match token {
            Some(token) => format!("held by {} with fencing token {token}", holder.name),
            None => format!("held by {}, which has no fencing token", holder.name),
        };
        status.holder = Some(holder.name);
        self.times(&lease, masters, times, same);
        // The end of a lease can come before its watchdog wakes to tell of it.
        if lease.valid_until.is_some_and(|until| until <= self.now.mono) && reason == "Acquired" {
            self.set(HELD, Truth::Unknown, "Expired", "not renewed in time: the hold is not proven any more");
        } else {
            self.set(HELD, Truth::True, reason, message);
        }
    }

    fn times(&mut self, lease: &Lease, masters: usize, times: Times, same: bool) {
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
        self.status.acquire_time = None;
        self.status.votes = None;
    }

    fn stopped(&mut self, obstacle: &Obstacle, message: &str, was_held: bool) {
        if was_held && matches!(obstacle, Obstacle::Unconnected(_)) {
            // A grant that cannot be asked about: it may stand, and it can be gone on with when the way is open.
            self.clear_times();
            self.status.votes = None;
            self.set(HELD, Truth::Unknown, obstacle.reason(), message);
            return;
        }
        self.not_held(if obstacle.is_in_spec() { LockPhase::Failed } else { LockPhase::Pending });
        self.set(HELD, Truth::False, obstacle.reason(), message);
    }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
