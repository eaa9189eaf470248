//! When the status of each lock is written: transitions at once, refreshed times within a budget of writes. Asks for the
//! reconciles that write it.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::{Stream, stream};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

use super::budget::{Budget, Refreshes};
use crate::api::{DistributedLockStatus, WatchedLock};
use crate::lock::subject::Subject;
use crate::operator::own_write::OwnWrite;

/// Schedules the status writes of all locks.
#[derive(Debug)]
pub(crate) struct StatusSchedule {
    state: Mutex<ScheduleState>,
    wake: Notify,
    reconcile: mpsc::UnboundedSender<ObjectRef<WatchedLock>>,
}

/// What is known of the locks' statuses, by UID of the lock.
#[derive(Debug)]
struct ScheduleState {
    refreshes: Refreshes,
    objects: HashMap<String, ObjectRef<WatchedLock>>,
    /// Locks whose turn it is to have their times refreshed.
    turns: HashSet<String>,
    written: HashMap<String, Written>,
}

/// A status that this process wrote: until the store shows the write, this is what the API server has.
#[derive(Debug)]
struct Written {
    write: OwnWrite,
    status: DistributedLockStatus,
}

impl StatusSchedule {
    /// A schedule with so many refreshes a second, and the stream of locks to reconcile. The stream does not end before
    /// the schedule is dropped.
    pub(crate) fn new(per_second: u32) -> (Self, impl Stream<Item = ObjectRef<WatchedLock>> + Send + 'static) {
        let (reconcile, receiver) = mpsc::unbounded_channel();
        let state = ScheduleState {
            refreshes: Refreshes::new(Budget::new(per_second, Instant::now())),
            objects: HashMap::new(),
            turns: HashSet::new(),
            written: HashMap::new(),
        };
        let requests = stream::unfold(receiver, |mut receiver| async { receiver.recv().await.map(|o| (o, receiver)) });
        (Self { state: Mutex::new(state), wake: Notify::new(), reconcile }, requests)
    }

    /// The lock changed its state: it is reconciled at once.
    pub(crate) fn changed(&self, subject: &Subject) {
        // Fails only after the controller has ended, and then the process ends too.
        let _ = self.reconcile.send(subject.object_ref());
    }

    /// The lock was renewed: its times are refreshed when its turn comes.
    pub(crate) fn renewed(&self, subject: &Subject) {
        let mut state = self.state();
        state.objects.entry(subject.uid.clone()).or_insert_with(|| subject.object_ref());
        state.refreshes.ask(&subject.uid);
        drop(state);
        self.wake.notify_one();
    }

    /// Whether it is the lock's turn to have its times refreshed. The call uses the turn up.
    pub(crate) fn take_turn(&self, uid: &str) -> bool {
        self.state().turns.remove(uid)
    }

    /// Whether a transition may show times: not while other locks wait for their turn.
    pub(crate) fn take_spare(&self, now: Instant) -> bool {
        self.state().refreshes.take(now)
    }

    /// Until when status may show its present times; `None` if this process wrote none.
    pub(crate) fn deadline(&self, uid: &str) -> Option<Instant> {
        self.state().refreshes.deadline(uid)
    }

    /// The status that the API server has: the `cached` one, or what this process wrote that `version` does not show yet.
    pub(crate) fn current(
        &self,
        uid: &str,
        version: Option<&str>,
        cached: Option<&DistributedLockStatus>,
    ) -> DistributedLockStatus {
        match self.state().written.get(uid) {
            Some(written) if written.write.is_ahead_of(version) => written.status.clone(),
            _ => cached.cloned().unwrap_or_default(),
        }
    }

    /// Records that `status` was written over the version `over`, which made the version `made`, and that it may show its
    /// times until `deadline`.
    pub(crate) fn record_write(
        &self,
        subject: &Subject,
        over: Option<String>,
        made: Option<String>,
        status: DistributedLockStatus,
        deadline: Option<Instant>,
    ) {
        let mut state = self.state();
        state.objects.entry(subject.uid.clone()).or_insert_with(|| subject.object_ref());
        state.refreshes.shows_until(&subject.uid, deadline);
        state.written.insert(subject.uid.clone(), Written { write: OwnWrite::new(over, made), status });
        drop(state);
        self.wake.notify_one();
    }

    /// Charges the budget for a write that could not wait for a turn.
    pub(crate) fn spend(&self, now: Instant) {
        self.state().refreshes.spend(now);
    }

    /// Forgets a lock that is gone.
    pub(crate) fn forget(&self, uid: &str) {
        let mut state = self.state();
        state.refreshes.forget(uid);
        state.objects.remove(uid);
        state.turns.remove(uid);
        state.written.remove(uid);
    }

    /// Forgets every lock that does not exist.
    pub(crate) fn retain(&self, exists: impl Fn(&str) -> bool) {
        let gone: Vec<_> = self.state().objects.keys().filter(|uid| !exists(uid)).cloned().collect();
        for uid in &gone {
            self.forget(uid);
        }
    }

    /// Gives turns as the budget allows, for ever.
    pub(crate) async fn run(&self) {
        loop {
            let next = self.give_turns();
            let turn = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = turn => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// Gives the turns that are due. Returns when the next ones are.
    fn give_turns(&self) -> Option<Instant> {
        let mut state = self.state();
        let due = state.refreshes.due(Instant::now());
        state.turns.extend(due.refresh.iter().cloned());
        for uid in due.refresh.iter().chain(&due.expire) {
            if let Some(object) = state.objects.get(uid) {
                let _ = self.reconcile.send(object.clone());
            }
        }
        state.refreshes.next_at()
    }

    fn state(&self) -> MutexGuard<'_, ScheduleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::lock::LockPhase;
    use crate::lock::fixtures;

    fn status(phase: LockPhase) -> DistributedLockStatus {
        DistributedLockStatus { phase: Some(phase), ..DistributedLockStatus::default() }
    }

    #[test]
    fn what_was_written_counts_until_the_store_shows_it() {
        let (schedule, _events) = StatusSchedule::new(20);
        let subject = Subject::of(&fixtures::watched(fixtures::lock()));
        let write = |over: &str, made: Option<&str>| {
            let (over, made) = (Some(over.to_owned()), made.map(str::to_owned));
            schedule.record_write(&subject, over, made, status(LockPhase::Held), None);
        };
        let phase = |version: &str, cached: Option<LockPhase>| {
            schedule.current(&subject.uid, Some(version), cached.map(status).as_ref()).phase
        };
        write("100", Some("102"));
        assert_eq!(phase("101", None), Some(LockPhase::Held));
        assert_eq!(phase("102", Some(LockPhase::Lost)), Some(LockPhase::Lost));
        assert_eq!(phase("103", None), None);
    }
}
