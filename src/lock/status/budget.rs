//! Which lock may have its times refreshed in status, and when: one budget of writes for all, shared fairly. No IO, no clock.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// A token bucket whose balance may be negative: a write that cannot wait delays later ones.
#[derive(Debug)]
pub(crate) struct Budget {
    per_write: Duration,
    burst: u32,
    /// When the bucket is, or was, exactly full. Each write moves this by the time in which one write refills.
    full_at: Instant,
}

/// The locks that wait for a refresh, first come first served, and the deadlines of the times that statuses show.
#[derive(Debug)]
pub(crate) struct Refreshes {
    budget: Budget,
    waiting: VecDeque<String>,
    queued: HashSet<String>,
    deadlines: BTreeSet<(Instant, String)>,
    deadline_of: HashMap<String, Instant>,
}

/// What is due now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Due {
    /// Locks whose turn it is: their times may be written.
    pub(crate) refresh: Vec<String>,
    /// Locks whose times in status end now: they must be refreshed or removed.
    pub(crate) expire: Vec<String>,
}

impl Budget {
    /// A full budget of so many writes a second. One second's worth may be used at once.
    pub(crate) fn new(per_second: u32, now: Instant) -> Self {
        let burst = per_second.max(1);
        Self { per_write: Duration::from_secs(1) / burst, burst, full_at: now }
    }

    /// Takes a write if the budget has one.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let affordable = now >= self.next_at();
        if affordable {
            self.spend(now);
        }
        affordable
    }

    /// Takes a write even if the budget has none.
    pub(crate) fn spend(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now) + self.per_write;
    }

    /// When the budget has a write again.
    pub(crate) fn next_at(&self) -> Instant {
        let at = self.full_at.checked_sub(self.per_write * (self.burst - 1));
        at.unwrap_or(self.full_at)
    }
}

impl Refreshes {
    /// No lock waits, and no status shows times.
    pub(crate) fn new(budget: Budget) -> Self {
        Self {
            budget,
            waiting: VecDeque::new(),
            queued: HashSet::new(),
            deadlines: BTreeSet::new(),
            deadline_of: HashMap::new(),
        }
    }

    /// Queues a lock whose status shows older times than its lease has. Asking again keeps the place in the queue.
    pub(crate) fn ask(&mut self, lock: &str) {
        if self.queued.insert(lock.to_owned()) {
            self.waiting.push_back(lock.to_owned());
        }
    }

    /// Records until when status of the lock may show its present times; `None` if it shows none.
    pub(crate) fn shows_until(&mut self, lock: &str, deadline: Option<Instant>) {
        if let Some(old) = self.deadline_of.remove(lock) {
            self.deadlines.remove(&(old, lock.to_owned()));
        }
        if let Some(deadline) = deadline {
            self.deadline_of.insert(lock.to_owned(), deadline);
            self.deadlines.insert((deadline, lock.to_owned()));
        }
    }

    /// Until when status of the lock may show its present times.
    pub(crate) fn deadline(&self, lock: &str) -> Option<Instant> {
        self.deadline_of.get(lock).copied()
    }

    /// Forgets a lock that is gone.
    pub(crate) fn forget(&mut self, lock: &str) {
        self.shows_until(lock, None);
        if self.queued.remove(lock) {
            self.waiting.retain(|waiting| waiting != lock);
        }
    }

    /// Takes a write outside the queue, if the budget has one and no lock waits.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        self.waiting.is_empty() && self.budget.take(now)
    }

    /// Takes a write that cannot wait.
    pub(crate) fn spend(&mut self, now: Instant) {
        self.budget.spend(now);
    }

    /// Removes and returns what is due now. A lock whose times end is returned once: its deadline leaves the queue.
    pub(crate) fn due(&mut self, now: Instant) -> Due {
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

    /// When something is due next; `None` if nothing is.
    pub(crate) fn next_at(&self) -> Option<Instant> {
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
        // Late enough that the bucket's arithmetic can go back a second.
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
    fn nobody_jumps_the_queue() {
        let now = start();
        let mut refreshes = refreshes(1, now);
        assert!(refreshes.take(now));
        refreshes.ask("a");
        assert!(!refreshes.take(now + 2 * SECOND), "a waits");
        assert_eq!(refreshes.due(now + 2 * SECOND).refresh, ["a"]);
    }

    #[test]
    fn times_that_end_are_due_once_and_only_if_not_refreshed() {
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
