//! The history of a schedule, and the promises that it must keep.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redlock_engine::{Lease, LeaseState, LockKey};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::plan::{LONGEST_FREE, Plan, longest_wait};
use crate::resource::Resource;
use crate::rules::Rule;
use crate::world::World;

/// How many of a lock's last leases are checked each time. At the end of a schedule all are.
const CHECKED: usize = 8;

/// Notes what holders learn, and checks it: no two hold a lock, tokens rise, an ended lease stays ended.
pub struct History {
    world: World,
    /// Whether two holders at once are tolerated.
    tolerant: bool,
    /// Whether grants, and so tokens and writes, have an order. They have none where holders overlap or majorities do not.
    in_order: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    locks: BTreeMap<String, Lock>,
    counts: Counts,
    violation: Option<String>,
}

/// The leases, tokens and resource of one lock.
#[derive(Default)]
struct Lock {
    leases: Vec<SeenLease>,
    /// Tokens of grants, in the order in which they had a majority.
    tokens: BTreeMap<u64, u64>,
    resource: Resource,
    /// When a holder had released the lock for the last time.
    free_since: Option<Instant>,
}

/// A lease as its holder sees it.
struct SeenLease {
    owner: String,
    state: watch::Receiver<LeaseState>,
    /// Whether a check found that it is not held.
    over: bool,
    /// How it ended, if its watchdog has reported that.
    end: Option<LeaseState>,
}

/// Counts of what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub grants: u64,
    pub adoptions: u64,
    pub losses: u64,
    pub writes: u64,
    /// Writes that the resource refused.
    pub refused: u64,
    /// Futures that were dropped before they were done.
    pub dropped: u64,
    /// Holders that overlapped with another, where that is tolerated.
    pub overlaps: u64,
    /// The longest wait for a lock after all faults.
    pub longest_wait: Duration,
    /// The longest time for which a lock was free while somebody waited for it, after all faults, with long leases.
    pub longest_free: Duration,
}

impl History {
    pub fn new(world: World, plan: &Plan) -> Self {
        let in_order = !plan.rules.guarded && plan.rules.broken != Some(Rule::SameMasters);
        Self { world, tolerant: plan.rules.guarded, in_order, state: Mutex::default() }
    }

    /// A holder has learned of its grant, now.
    pub fn granted(&self, lease: &Lease) {
        let owner = lease.owner().to_string();
        self.world.note(|| format!("{owner} is granted {}: {:?}", lease.key(), lease.validity()));
        let elected = self.world.now().elected.get(&owner).copied();
        let mut state = self.state();
        state.counts.grants += 1;
        // A holder that was paused until the end of its lease does nothing with it.
        if !state.holds(lease, self.tolerant) {
            return;
        }
        let Some(elected) = elected else {
            if self.in_order {
                state.broken(format!("{owner} is granted {} without a majority", lease.key()));
            }
            return;
        };
        let token = lease.owner().token().get();
        let tokens = &mut state.lock(lease).tokens;
        let before = tokens.range(..elected).next_back().is_some_and(|(_, other)| *other >= token);
        let after = tokens.range(elected..).next().is_some_and(|(_, other)| *other <= token);
        let twice = tokens.values().any(|other| *other == token);
        tokens.insert(elected, token);
        if twice || self.in_order && (before || after) {
            state.broken(format!("the token of {owner} does not rise"));
        }
    }

    /// Another process of a holder has adopted a grant, which must be the latest.
    pub fn adopted(&self, lease: &Lease) {
        self.world.note(|| format!("{} of {} is adopted: {:?}", lease.key(), lease.owner(), lease.validity()));
        let mut state = self.state();
        state.counts.adoptions += 1;
        if state.holds(lease, self.tolerant) && self.in_order {
            let last = state.lock(lease).tokens.values().next_back().copied();
            if last != Some(lease.owner().token().get()) {
                state.broken(format!("{} adopts {} after a token of {last:?}", lease.owner(), lease.key()));
            }
        }
    }

    /// A holder was told that its lease has ended.
    pub fn ended(&self, lease: &Lease, end: &LeaseState) {
        self.world.note(|| format!("{} of {} is over: {end:?}", lease.key(), lease.owner()));
        let mut state = self.state();
        state.counts.losses += 1;
        if lease.is_held() || matches!(end, LeaseState::Held(_)) {
            state.broken(format!("{} was told of the end of {} and holds it", lease.owner(), lease.key()));
        }
    }

    /// A holder checks whether it holds the lock. Returns the result.
    pub fn check(&self, lease: &Lease) -> bool {
        let (held, owner, this) = (lease.is_held(), lease.owner(), lease.state());
        let mut state = self.state();
        state.check(&lease.key().to_string(), CHECKED);
        let seen = state.lock(lease).leases.iter().rfind(|seen| seen.state.same_channel(&this));
        if held && seen.is_some_and(|seen| seen.over) {
            state.broken(format!("{} of {owner} was over and is held again", lease.key()));
        }
        held
    }

    /// A holder's write arrives at the resource that the lock guards.
    pub fn write(&self, lease: &Lease) {
        let owner = lease.owner().to_string();
        let elected = self.world.now().elected.get(&owner).copied().unwrap_or(0);
        let held = lease.is_held();
        let mut state = self.state();
        state.counts.writes += 1;
        match state.lock(lease).resource.write(lease.owner(), elected, self.in_order) {
            Ok(true) => {}
            Ok(false) => {
                state.counts.refused += 1;
                if held && self.in_order {
                    state.broken(format!("a write of {owner} is refused while it holds {}", lease.key()));
                }
            }
            Err(violation) => state.broken(violation),
        }
    }

    /// A future was dropped before it was done.
    pub fn dropped(&self) {
        self.state().counts.dropped += 1;
    }

    /// A contender was granted a lock after this wait without any fault.
    pub fn waited(&self, who: &str, time: Duration) {
        let mut state = self.state();
        state.counts.longest_wait = state.counts.longest_wait.max(time);
        let bound = longest_wait(&self.world.now().plan);
        if time > bound {
            state.broken(format!("{who} waited for {time:?} after all faults, more than {bound:?}"));
        }
    }

    /// A contender is done with a lease: nothing of it may keep others from the lock.
    pub fn given_back(&self, key: &LockKey) {
        self.state().locks.entry(key.to_string()).or_default().free_since = Some(Instant::now());
    }

    /// A contender that has waited since then is granted a lock. It must not have been free for long meanwhile.
    pub fn taken(&self, who: &str, key: &LockKey, asked: Instant) {
        let healed = self.world.now().healed;
        let mut state = self.state();
        let free_since = state.locks.get(&key.to_string()).and_then(|lock| lock.free_since);
        let Some(healed) = healed else { return };
        let since = free_since.map_or(asked, |free| free.max(asked)).max(healed);
        let free = since.elapsed();
        state.counts.longest_free = state.counts.longest_free.max(free);
        if free > LONGEST_FREE {
            state.broken(format!("{key} was free for {free:?} while {who} waited, more than {LONGEST_FREE:?}"));
        }
    }

    /// A promise that is checked elsewhere was broken.
    pub fn broken(&self, violation: String) {
        self.state().broken(violation);
    }

    /// The counts, or the first broken promise.
    pub fn judge(&self) -> Result<Counts, String> {
        let mut state = self.state();
        let locks: Vec<_> = state.locks.keys().cloned().collect();
        for lock in locks {
            state.check(&lock, usize::MAX);
            let held = |seen: &&SeenLease| !seen.over;
            if let Some(seen) = state.locks[&lock].leases.iter().find(held) {
                let violation = format!("{lock} of {} is held after all were released", seen.owner);
                state.broken(violation);
            }
        }
        state.violation.clone().map_or(Ok(state.counts), Err)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn lock(&mut self, lease: &Lease) -> &mut Lock {
        self.locks.entry(lease.key().to_string()).or_default()
    }

    /// Notes a new holder of a lock. Returns whether it holds the lock still.
    fn holds(&mut self, lease: &Lease, tolerant: bool) -> bool {
        let owner = lease.owner().to_string();
        self.check(&lease.key().to_string(), CHECKED);
        if !lease.is_held() {
            return false;
        }
        let lock = self.lock(lease);
        let other =
            lock.leases.iter().rev().find(|seen| !seen.over && seen.owner != owner).map(|seen| seen.owner.clone());
        lock.leases.push(SeenLease { owner: owner.clone(), state: lease.state(), over: false, end: None });
        match other {
            Some(_) if tolerant => self.counts.overlaps += 1,
            Some(other) => self.broken(format!("two holders of {}: {other} and {owner}", lease.key())),
            None => {}
        }
        true
    }

    /// Checks the last leases of a lock: a lease that has ended stays so, and ends only once.
    fn check(&mut self, key: &str, last: usize) {
        let mut violation = None;
        let leases = self.locks.get_mut(key).into_iter().flat_map(|lock| lock.leases.iter_mut().rev().take(last));
        for seen in leases {
            // As `Lease::is_held` does: the state first, then the clock.
            let (held, end) = {
                let state = seen.state.borrow();
                let end = Some(state.clone()).filter(|state| !matches!(state, LeaseState::Held(_)));
                (state.valid_at(Instant::now()).is_some(), end)
            };
            if seen.over && held {
                violation = Some(format!("{key} of {} was over and is held again", seen.owner));
            } else if seen.end.is_some() && seen.end != end {
                violation = Some(format!("{key} of {} ended twice: {:?}, then {end:?}", seen.owner, seen.end));
            }
            seen.over |= !held;
            seen.end = seen.end.take().or(end);
        }
        if let Some(violation) = violation {
            self.broken(violation);
        }
    }

    fn broken(&mut self, violation: String) {
        self.violation.get_or_insert(violation);
    }
}
