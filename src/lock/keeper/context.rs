//! What all actors share, and how an actor publishes the state of its lock.

#[cfg(test)]
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;

use super::state::State;
use crate::lock::events::EventSender;
use crate::lock::status::schedule::StatusSchedule;
use crate::lock::subject::Subject;
use crate::operator::leadership::Leadership;
use crate::operator::metrics::{CountedLock, Metrics};

/// What all actors share.
#[derive(Debug)]
pub(crate) struct KeeperContext {
    /// Whether this process may acquire and release.
    pub(crate) leadership: Leadership,
    /// Counts grants, renewals and losses.
    pub(crate) metrics: Metrics,
    /// Sends Events.
    pub(crate) events: EventSender,
    /// Schedules status writes.
    pub(crate) schedule: Arc<StatusSchedule>,
    #[cfg(test)]
    failed: Mutex<HashSet<String>>,
}

/// Publishes the state of one lock: to the keeper, and to the status schedule.
#[derive(Debug)]
pub(crate) struct StatePublisher {
    subject: Arc<Subject>,
    context: Arc<KeeperContext>,
    sender: watch::Sender<State>,
    counted: Mutex<Counted>,
}

/// How metrics count a lock.
#[derive(Debug)]
struct Counted {
    lock: CountedLock,
    /// Since when the lock is wanted and not held.
    wanted_since: Option<Instant>,
}

// === impl KeeperContext ===

impl KeeperContext {
    /// What actors share.
    pub(crate) fn new(
        leadership: Leadership,
        metrics: Metrics,
        events: EventSender,
        schedule: Arc<StatusSchedule>,
    ) -> Self {
        Self {
            leadership,
            metrics,
            events,
            schedule,
            #[cfg(test)]
            failed: Mutex::default(),
        }
    }

    /// Panics at the first call for a lock.
    #[cfg(test)]
    pub(crate) fn fail_once(&self, uid: &str) {
        let is_first = self.failed.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned());
        assert!(!is_first, "the first call fails");
    }
}

// === impl StatePublisher ===

impl StatePublisher {
    /// A publisher for the lock of `subject`.
    pub(crate) fn new(subject: Arc<Subject>, context: Arc<KeeperContext>, sender: watch::Sender<State>) -> Self {
        let counted = Counted { lock: context.metrics.counted_lock(), wanted_since: None };
        Self { subject, context, sender, counted: Mutex::new(counted) }
    }

    /// Publishes a state. Status is written at once if it shows the difference, and in turn after a renewal.
    pub(crate) fn publish(&self, state: State) {
        let before = self.sender.send_replace(state);
        let state = self.sender.borrow();
        self.count(&state);
        if !before.shows_same_as(&state) {
            self.context.schedule.changed(&self.subject);
        } else if before != *state && self.context.leadership.is_leader() {
            self.context.schedule.renewed(&self.subject);
        }
    }

    fn count(&self, state: &State) {
        // A panic between two of these lines costs a sample at most.
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.lock.becomes(state.activity());
        match state {
            State::Contending { .. } => {
                counted.wanted_since.get_or_insert_with(Instant::now);
            }
            State::Held { grant, .. } => {
                // One that was adopted was not wanted before.
                if let Some(since) = counted.wanted_since.take() {
                    self.context.metrics.granted(grant.votes, grant.acquired_at.saturating_duration_since(since));
                }
            }
            _ => counted.wanted_since = None,
        }
    }

    /// The state that was published last.
    pub(crate) fn current(&self) -> State {
        self.sender.borrow().clone()
    }
}
