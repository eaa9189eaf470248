//! What happened in a schedule, and the promises that it must keep.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use redlock_operator::redlock::{Lease, LeaseState};
use tokio::sync::watch;
use tokio::time::Instant;

/// Leases of one lock that are looked at again after their end.
const REMEMBERED: usize = 16;

/// Notes what holders learn, and checks it: no two hold a lock, tokens rise, what has ended stays ended.
pub struct History {
    began: Instant,
    trace: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    locks: BTreeMap<String, Grants>,
    grants: u64,
    adoptions: u64,
    losses: u64,
    violation: Option<String>,
}

/// Grants of one lock, in the order in which their holders learned of them.
#[derive(Default)]
struct Grants {
    last_token: u64,
    known: VecDeque<Known>,
}

/// A lease as its holder sees it.
struct Known {
    owner: String,
    state: watch::Receiver<LeaseState>,
    /// Whether it was found not to be held.
    over: bool,
}

/// How much happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub grants: u64,
    pub adoptions: u64,
    pub losses: u64,
}

impl History {
    pub fn new(trace: bool) -> Self {
        Self { began: Instant::now(), trace, state: Mutex::default() }
    }

    /// Notes something for whoever replays a schedule.
    pub fn note(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>10.3?} {}", self.began.elapsed(), what());
        }
    }

    /// A holder has learned of its grant, now.
    pub fn granted(&self, lease: &Lease) {
        self.note(|| format!("granted {} to {}, {:?}", lease.key(), lease.owner(), *lease.state().borrow()));
        let mut state = self.state();
        state.grants += 1;
        state.holds(lease, |token, last| token > last);
    }

    /// Another process of a holder has learned that it goes on with a grant: the latest one, with its token.
    pub fn adopted(&self, lease: &Lease) {
        self.note(|| format!("adopted {} of {}, {:?}", lease.key(), lease.owner(), *lease.state().borrow()));
        let mut state = self.state();
        state.adoptions += 1;
        state.holds(lease, |token, last| token == last);
    }

    /// A holder has learned of its loss.
    pub fn lost(&self, lease: &Lease) {
        self.note(|| format!("lost {} of {}, {:?}", lease.key(), lease.owner(), *lease.state().borrow()));
        let mut state = self.state();
        state.losses += 1;
        if lease.is_held() {
            state.broken(format!("{} was told of the loss of {} and holds it", lease.owner(), lease.key()));
        }
    }

    /// A holder looks whether it holds.
    pub fn look(&self, lease: &Lease) {
        let (held, owner) = (lease.is_held(), lease.owner().to_string());
        let mut state = self.state();
        state.look(&lease.key().to_string());
        let grants = state.locks.entry(lease.key().to_string()).or_default();
        if held && grants.known.iter().rfind(|known| known.owner == owner).is_some_and(|known| known.over) {
            state.broken(format!("{} of {owner} was over and is held again", lease.key()));
        }
    }

    /// What happened, or the first promise that was broken.
    pub fn judge(&self) -> Result<Counts, String> {
        let state = self.state();
        let counts = Counts { grants: state.grants, adoptions: state.adoptions, losses: state.losses };
        state.violation.clone().map_or(Ok(counts), Err)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn holds(&mut self, lease: &Lease, follows: impl FnOnce(u64, u64) -> bool) {
        let (key, owner, token) = (lease.key().to_string(), lease.owner().to_string(), lease.owner().token().get());
        self.look(&key);
        // One that was paused until its end does not act.
        if !lease.is_held() {
            return;
        }
        let grants = self.locks.entry(key.clone()).or_default();
        let other = grants.known.iter().find(|known| !known.over).map(|known| known.owner.clone());
        let last = grants.last_token;
        grants.last_token = last.max(token);
        grants.known.push_back(Known { owner: owner.clone(), state: lease.state(), over: false });
        if grants.known.len() > REMEMBERED {
            grants.known.pop_front();
        }
        if let Some(other) = other {
            self.broken(format!("two holders of {key}: {other} and {owner}"));
        } else if !follows(token, last) {
            self.broken(format!("{owner} holds {key} after a token of {last}"));
        }
    }

    /// Looks at all leases of a lock: one that was over stays so.
    fn look(&mut self, key: &str) {
        let mut again = None;
        for known in self.locks.get_mut(key).into_iter().flat_map(|grants| &mut grants.known) {
            // As `Lease::is_held` does: the state first, then the clock.
            let held = { known.state.borrow().valid_at(Instant::now()).is_some() };
            if held && known.over {
                again = Some(format!("{key} of {} was over and is held again", known.owner));
            }
            known.over |= !held;
        }
        if let Some(again) = again {
            self.broken(again);
        }
    }

    fn broken(&mut self, violation: String) {
        self.violation.get_or_insert(violation);
    }
}
