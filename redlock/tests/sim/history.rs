//! What happened in a schedule, and the promises that it must keep.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redlock_engine::{Lease, LeaseState};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::plan::{Plan, longest_wait};
use crate::resource::Resource;
use crate::rules::Rule;
use crate::world::World;

/// Leases of one lock that are looked at again after their end, each time the lock is looked at. At the end all are.
const LOOKED_AT: usize = 8;

/// Notes what holders learn, and checks it: no two hold a lock, tokens rise, what has ended stays ended.
pub struct History {
    world: World,
    /// Whether two holders at once are no violation.
    tolerant: bool,
    /// Whether grants, and so tokens and writes, have an order: not where holders overlap, nor where majorities do not.
    in_order: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    locks: BTreeMap<String, Lock>,
    counts: Counts,
    violation: Option<String>,
}

/// What is known of one lock.
#[derive(Default)]
struct Lock {
    known: Vec<Known>,
    /// Tokens of grants, in the order in which they had a majority.
    tokens: BTreeMap<u64, u64>,
    resource: Resource,
}

/// A lease as its holder sees it.
struct Known {
    owner: String,
    state: watch::Receiver<LeaseState>,
    /// Whether it was found not to be held.
    over: bool,
    /// How it ended, if its watchdog has said so.
    end: Option<LeaseState>,
}

/// How much happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub grants: u64,
    pub adoptions: u64,
    pub losses: u64,
    pub writes: u64,
    /// Writes that the resource refused.
    pub refused: u64,
    /// Futures that were dropped in the midst.
    pub dropped: u64,
    /// Pairs of holders at once, where that is tolerated.
    pub overlaps: u64,
    /// The longest wait for a lock after all faults.
    pub longest_wait: Duration,
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
        // One that was paused until its end does not act.
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

    /// Another process of a holder has learned that it goes on with a grant: the latest one.
    pub fn adopted(&self, lease: &Lease) {
        self.world.note(|| format!("{} of {} is adopted: {:?}", lease.key(), lease.owner(), lease.validity()));
        let mut state = self.state();
        state.counts.adoptions += 1;
        if state.holds(lease, self.tolerant) && self.in_order {
            let last = state.lock(lease).tokens.values().next_back().copied();
            if last != Some(lease.owner().token().get()) {
                state.broken(format!("{} goes on with {} after a token of {last:?}", lease.owner(), lease.key()));
            }
        }
    }

    /// A holder was told that its lease is over.
    pub fn ended(&self, lease: &Lease, end: &LeaseState) {
        self.world.note(|| format!("{} of {} is over: {end:?}", lease.key(), lease.owner()));
        let mut state = self.state();
        state.counts.losses += 1;
        if lease.is_held() || matches!(end, LeaseState::Held(_)) {
            state.broken(format!("{} was told of the end of {} and holds it", lease.owner(), lease.key()));
        }
    }

    /// A holder looks whether it holds. Answers that.
    pub fn look(&self, lease: &Lease) -> bool {
        let (held, owner, this) = (lease.is_held(), lease.owner(), lease.state());
        let mut state = self.state();
        state.look(&lease.key().to_string());
        let known = state.lock(lease).known.iter().rfind(|known| known.state.same_channel(&this));
        if held && known.is_some_and(|known| known.over) {
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

    /// A future was dropped in the midst.
    pub fn dropped(&self) {
        self.state().counts.dropped += 1;
    }

    /// A contender was granted a lock after it had waited so long without any fault.
    pub fn waited(&self, who: &str, time: Duration) {
        let mut state = self.state();
        state.counts.longest_wait = state.counts.longest_wait.max(time);
        let bound = longest_wait(&self.world.now().plan);
        if time > bound {
            state.broken(format!("{who} waited for {time:?} after all faults, more than {bound:?}"));
        }
    }

    /// A promise was broken that is checked elsewhere.
    pub fn broken(&self, violation: String) {
        self.state().broken(violation);
    }

    /// What happened, or the first promise that was broken.
    pub fn judge(&self) -> Result<Counts, String> {
        let mut state = self.state();
        let locks: Vec<_> = state.locks.keys().cloned().collect();
        for lock in locks {
            state.look_at_all(&lock, usize::MAX);
            let held = |known: &&Known| !known.over;
            if let Some(known) = state.locks[&lock].known.iter().find(held) {
                let violation = format!("{lock} of {} is held after all was given back", known.owner);
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

    /// Somebody holds a lock from now on, if still. Answers that.
    fn holds(&mut self, lease: &Lease, tolerant: bool) -> bool {
        let owner = lease.owner().to_string();
        self.look(&lease.key().to_string());
        if !lease.is_held() {
            return false;
        }
        let lock = self.lock(lease);
        let other =
            lock.known.iter().rev().find(|known| !known.over && known.owner != owner).map(|known| known.owner.clone());
        lock.known.push(Known { owner: owner.clone(), state: lease.state(), over: false, end: None });
        match other {
            Some(_) if tolerant => self.counts.overlaps += 1,
            Some(other) => self.broken(format!("two holders of {}: {other} and {owner}", lease.key())),
            None => {}
        }
        true
    }

    fn look(&mut self, key: &str) {
        self.look_at_all(key, LOOKED_AT);
    }

    /// Looks at the last leases of a lock: one that was over stays so, and ends only once.
    fn look_at_all(&mut self, key: &str, last: usize) {
        let mut violation = None;
        let known = self.locks.get_mut(key).into_iter().flat_map(|lock| lock.known.iter_mut().rev().take(last));
        for known in known {
            // As `Lease::is_held` does: the state first, then the clock.
            let (held, end) = {
                let state = known.state.borrow();
                let end = Some(state.clone()).filter(|state| !matches!(state, LeaseState::Held(_)));
                (state.valid_at(Instant::now()).is_some(), end)
            };
            if known.over && held {
                violation = Some(format!("{key} of {} was over and is held again", known.owner));
            } else if known.end.is_some() && known.end != end {
                violation = Some(format!("{key} of {} ended twice: {:?}, then {end:?}", known.owner, known.end));
            }
            known.over |= !held;
            known.end = known.end.take().or(end);
        }
        if let Some(violation) = violation {
            self.broken(violation);
        }
    }

    fn broken(&mut self, violation: String) {
        self.violation.get_or_insert(violation);
    }
}
