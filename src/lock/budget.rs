//! Which lock's times may be refreshed in status, and when: a global budget of writes, shared fairly. No IO, no clock.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// A token bucket whose balance may go below zero: a write that cannot wait is paid for by later ones.
#[derive(Debug)]
pub struct Budget {
    per_write: Duration,
    burst: u32,
    /// When the bucket is, or was, exactly full. Each write moves it by the time that a write is worth.
    full_at: Instant,
}

/// The locks that want a refresh, first come first served, and those whose published times run out.
#[derive(Debug)]
pub struct Refreshes {
    budget: Budget,
    waiting: VecDeque<String>,
    queued: HashSet<String>,
    deadlines: BTreeSet<(Instant, String)>,
    deadline_of: HashMap<String, Instant>,
}

/// What is to be done now.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Locks whose turn it is: their times may be written.
    pub refresh: Vec<String>,
    /// Locks whose published times run out: they are to be refreshed or removed.
    pub expire: Vec<String>,
}

impl Budget {
    /// A full budget of so many writes a second, of which a second's worth may come at once.
    #[must_use]
    pub fn new(per_second: u32, now: Instant) -> Self {
        let burst = per_second.max(1);
        Self { per_write: Duration::from_secs(1) / burst, burst, full_at: now }
    }

    /// Takes a write if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        let affordable = now >= self.next_at();
        if affordable {
            self.spend(now);
        }
        affordable
    }

    /// Takes a write whether there is one or not.
    pub fn spend(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now) + self.per_write;
    }

    /// From when on there is a write.
    #[must_use]
    pub fn next_at(&self) -> Instant {
        let at = self.full_at.checked_sub(self.per_write * (self.burst - 1));
        at.unwrap_or(self.full_at)
    }
}

impl Refreshes {
    /// Nothing asked for yet.
    #[must_use]
    pub fn new(budget: Budget) -> Self {
        Self {
            budget,
            waiting: VecDeque::new(),
            queued: HashSet::new(),
            deadlines: BTreeSet::new(),
            deadline_of: HashMap::new(),
        }
    }

    /// The lock has newer times than status shows. Asking again keeps the place in the line.
    pub fn ask(&mut self, lock: &str) {
        if self.queued.insert(lock.to_owned()) {
            self.waiting.push_back(lock.to_owned());
        }
    }

    /// Status of the lock now shows times that must not stand after `deadline`; or none.
    pub fn shows_until(&mut self, lock: &str, deadline: Option<Instant>) {
        if let Some(old) = self.deadline_of.remove(lock) {
            self.deadlines.remove(&(old, lock.to_owned()));
        }
        if let Some(deadline) = deadline {
            self.deadline_of.insert(lock.to_owned(), deadline);
            self.deadlines.insert((deadline, lock.to_owned()));
        }
    }

    /// Until when the times that status of the lock shows may stand.
    #[must_use]
    pub fn deadline(&self, lock: &str) -> Option<Instant> {
        self.deadline_of.get(lock).copied()
    }

    /// The lock is gone.
    pub fn forget(&mut self, lock: &str) {
        self.shows_until(lock, None);
        if self.queued.remove(lock) {
            self.waiting.retain(|waiting| waiting != lock);
        }
    }

    /// A write outside the line, if there is one to spare: not while others wait.
    pub fn take(&mut self, now: Instant) -> bool {
        self.waiting.is_empty() && self.budget.take(now)
    }

    /// A write that cannot wait.
    pub fn spend(&mut self, now: Instant) {
        self.budget.spend(now);
    }

    /// Takes out what is to be done now. A lock whose times run out is told once: its deadline is forgotten.
    pub fn due(&mut self, now: Instant) -> Due {
        let mut due = Due::default();
        while !self.waiting.is_empty() && self.budget.take(now) {
            if let Some(lock) = self.waiting.pop_front() {
                self.queued.remove(&lock);
                due.refresh.push(lock);
            }
        }
        while let Some((at, lock)) = self.deadlines.first().cloned() {
            if at > now {
                break;
            }
            self.deadlines.remove(&(at, lock.clone()));
            due.expire.push(lock);
        }
        due
    }

    /// When there will be something to do; `None` while nothing is waiting.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        let turn = (!self.waiting.is_empty()).then(|| self.budget.next_at());
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        turn.into_iter().chain(deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn start() -> Instant {
        // Far enough from the runtime's first instant for the bucket's arithmetic to go back a second.
        Instant::now() + 100 * SECOND
    }

    fn refreshes(per_second: u32, now: Instant) -> Refreshes {
        Refreshes::new(Budget::new(per_second, now))
    }

    #[test]
    fn a_full_budget_is_a_seconds_worth_and_fills_evenly() {
        let now = start();
        let mut budget = Budget::new(20, now);
        let taken = |budget: &mut Budget, at| (0..100).filter(|_| budget.take(at)).count();
        assert_eq!(taken(&mut budget, now), 20);
        assert_eq!(taken(&mut budget, now + SECOND / 2), 10);
        assert_eq!(taken(&mut budget, now + 10 * SECOND), 20, "what was not used is not saved");
    }

    #[test]
    fn a_write_that_could_not_wait_is_paid_for_later() {
        let now = start();
        let mut budget = Budget::new(10, now);
        (0..30).for_each(|_| budget.spend(now));
        assert!(!budget.take(now + SECOND));
        assert!(!budget.take(budget.next_at() - Duration::from_millis(1)));
        assert_eq!(budget.next_at(), now + SECOND * 2 + SECOND / 10);
        assert!(budget.take(budget.next_at()));
    }

    #[test]
    fn each_lock_has_its_turn_though_one_asks_all_the_time() {
        let now = start();
        let mut refreshes = refreshes(2, now);
        let mut turns = Vec::new();
        for step in 0..4 {
            (0..10).for_each(|_| refreshes.ask("greedy"));
            for lock in ["a", "b", "c"] {
                refreshes.ask(lock);
            }
            turns.extend(refreshes.due(now + step * SECOND).refresh);
        }
        assert_eq!(turns, ["greedy", "a", "b", "c", "greedy", "a", "b", "c"]);
    }

    #[test]
    fn nobody_jumps_the_line() {
        let now = start();
        let mut refreshes = refreshes(1, now);
        assert!(refreshes.take(now));
        refreshes.ask("a");
        assert!(!refreshes.take(now + 2 * SECOND), "a waits");
        assert_eq!(refreshes.due(now + 2 * SECOND).refresh, ["a"]);
    }

    #[test]
    fn times_that_run_out_are_told_once_and_only_if_not_refreshed() {
        let now = start();
        let mut refreshes = refreshes(20, now);
        refreshes.shows_until("a", Some(now + 2 * SECOND));
        refreshes.shows_until("b", Some(now + 3 * SECOND));
        refreshes.shows_until("a", Some(now + 5 * SECOND));
        assert_eq!(refreshes.next_at(), Some(now + 3 * SECOND));
        assert_eq!(refreshes.due(now + 3 * SECOND).expire, ["b"]);
        assert_eq!(refreshes.due(now + 4 * SECOND), Due::default());
        assert_eq!(refreshes.deadline("b"), Some(now + 3 * SECOND), "what status shows is still known");
        refreshes.forget("a");
        assert_eq!(refreshes.due(now + 9 * SECOND), Due::default());
        assert_eq!(refreshes.next_at(), None);
    }

    #[test]
    fn a_forgotten_lock_takes_no_turn() {
        let now = start();
        let mut refreshes = refreshes(1, now);
        for lock in ["a", "b"] {
            refreshes.ask(lock);
        }
        refreshes.forget("a");
        assert_eq!(refreshes.due(now).refresh, ["b"]);
    }
}
