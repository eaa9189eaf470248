//! Which lock may have its times refreshed in status, and when: one budget of writes for all. No IO, no clock.
//!
//! Times are refreshed shortly before they would be in the past, not at each renewal. Where the budget does not suffice for all
//! locks, those that show times keep them, and the others show none: taking turns would cost a write more for each turn, to remove
//! the times of the lock before.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// A token bucket whose balance may be negative: a write that cannot wait delays later ones.
#[derive(Debug)]
pub(crate) struct Budget {
    /// The time in which one write refills; `None`: there are none.
    per_write: Option<Duration>,
    burst: u32,
    /// When the bucket is, or was, exactly full. Each write moves this by the time in which one write refills.
    full_at: Instant,
}

/// The locks that show no times and wait for some, first come first served, and the deadlines of the times that the others show.
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
    /// Locks whose times in status end now, and must be removed: the budget has no write for them.
    pub(crate) expire: Vec<String>,
}

impl Budget {
    /// A full budget of so many writes a second, which may be none. One second's worth may be used at once.
    pub(crate) fn new(per_second: u32, now: Instant) -> Self {
        Self { per_write: Duration::from_secs(1).checked_div(per_second), burst: per_second, full_at: now }
    }

    /// Takes a write if the budget has one.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let affordable = self.next_at().is_some_and(|at| now >= at);
        if affordable {
            self.spend(now);
        }
        affordable
    }

    /// Takes a write even if the budget has none.
    pub(crate) fn spend(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now) + self.per_write.unwrap_or_default();
    }

    /// When the budget has a write again; `None` if never.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        let at = self.full_at.checked_sub(self.per_write? * self.burst.saturating_sub(1));
        Some(at.unwrap_or(self.full_at))
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

    /// Queues a lock whose lease was renewed, unless its status shows times: these are refreshed when they end. Asking again keeps the
    /// place in the queue.
    pub(crate) fn ask(&mut self, lock: &str) {
        if !self.deadline_of.contains_key(lock) && self.queued.insert(lock.to_owned()) {
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
            self.leave_queue(lock);
        }
    }

    /// Until when status of the lock may show its present times.
    pub(crate) fn deadline(&self, lock: &str) -> Option<Instant> {
        self.deadline_of.get(lock).copied()
    }

    /// Forgets a lock that is gone.
    pub(crate) fn forget(&mut self, lock: &str) {
        self.shows_until(lock, None);
        self.leave_queue(lock);
    }

    fn leave_queue(&mut self, lock: &str) {
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
        while let Some((at, lock)) = self.deadlines.first().cloned() {
            if at > now {
                break;
            }
            self.deadlines.remove(&(at, lock.clone()));
            if self.budget.take(now) { due.refresh.push(lock) } else { due.expire.push(lock) }
        }
        while !self.waiting.is_empty() && self.budget.take(now) {
            if let Some(lock) = self.waiting.pop_front() {
                self.queued.remove(&lock);
                due.refresh.push(lock);
            }
        }
        due
    }

    /// When something is due next; `None` if nothing is.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        let turn = self.budget.next_at().filter(|_| !self.waiting.is_empty());
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
        let next = now + SECOND * 2 + SECOND / 10;
        assert_eq!(budget.next_at(), Some(next));
        assert!(!budget.take(next - Duration::from_millis(1)));
        assert!(budget.take(next));
    }

    #[test]
    fn a_budget_of_none_has_none_however_long_it_waits() {
        let now = start();
        let mut refreshes = refreshes(0, now);
        refreshes.ask("a");
        refreshes.spend(now);
        assert_eq!((refreshes.take(now), refreshes.next_at()), (false, None));
        assert_eq!(refreshes.due(now + 1000 * SECOND), Due::default());
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
    fn times_are_refreshed_when_they_end_and_not_at_each_renewal() {
        let now = start();
        let mut refreshes = refreshes(20, now);
        refreshes.shows_until("a", Some(now + 20 * SECOND));
        for step in [0, 10] {
            refreshes.ask("a");
            assert_eq!(refreshes.due(now + step * SECOND), Due::default(), "{step}");
        }
        assert_eq!(refreshes.next_at(), Some(now + 20 * SECOND));
        let due = refreshes.due(now + 20 * SECOND);
        assert_eq!((due.refresh, due.expire), (vec!["a".to_owned()], Vec::new()));
        assert_eq!(refreshes.deadline("a"), Some(now + 20 * SECOND), "what status shows is still known");
        assert_eq!(refreshes.due(now + 21 * SECOND), Due::default(), "once");
    }

    #[test]
    fn a_lock_that_shows_times_keeps_them_before_another_gets_some_and_what_cannot_be_paid_is_removed() {
        let now = start();
        let mut refreshes = refreshes(1, now);
        for lock in ["a", "b"] {
            refreshes.shows_until(lock, Some(now + SECOND));
        }
        refreshes.ask("c");
        assert!(refreshes.budget.take(now));
        let due = refreshes.due(now + SECOND);
        assert_eq!((due.refresh, due.expire), (vec!["a".to_owned()], vec!["b".to_owned()]));
        refreshes.shows_until("b", None);
        refreshes.ask("b");
        assert_eq!(refreshes.due(now + 2 * SECOND).refresh, ["c"], "who has waited for longer");
        assert_eq!(refreshes.due(now + 3 * SECOND).refresh, ["b"]);
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
