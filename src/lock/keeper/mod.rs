//! The keeper of running leases: one actor a lock, which gets assignments and publishes the state of its lock.
//!
//! # Layout
//! - [`actor`]: acquires and keeps one lock; [`observe`]: observes one that others hold
//! - [`context`]: what all actors share, and how they publish states
//! - [`assignment`]: what an actor does; [`state`]: what it knows of its lock

pub(crate) mod actor;
pub(crate) mod assignment;
pub(crate) mod context;
pub(crate) mod observe;
#[cfg(test)]
pub(crate) mod server_tests;
pub(crate) mod state;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use redlock_engine::Owner;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::warn;

use super::subject::Subject;
use actor::Actor;
use assignment::{Assignment, LockTarget};
use context::KeeperContext;
use state::{Ending, State};

/// How long an actor may take to end. The engine's release ends within one call timeout (at most 1 s), after at most 1 s
/// for a first connection.
const STOP_TIMEOUT: Duration = Duration::from_secs(4);

/// The actors, by UID of their lock.
#[derive(Debug)]
pub(crate) struct Keeper {
    context: Arc<KeeperContext>,
    actors: Mutex<HashMap<String, RunningActor>>,
}

/// An actor, and what the keeper shares with it.
#[derive(Debug)]
struct RunningActor {
    subject: Arc<Subject>,
    assigned: watch::Sender<(LockTarget, Assignment)>,
    state: watch::Receiver<State>,
    task: JoinHandle<()>,
}

// === impl Keeper ===

impl Keeper {
    /// A keeper without actors.
    pub(crate) fn new(context: Arc<KeeperContext>) -> Self {
        Self { context, actors: Mutex::default() }
    }

    /// Gives the actor of `subject` an assignment, and starts the actor if there is none. An actor that does the same
    /// already is not interrupted.
    pub(crate) fn assign(&self, subject: &Subject, target: LockTarget, assignment: Assignment) {
        let mut actors = self.actors();
        if let Some(entry) = actors.get(&subject.uid)
            && !entry.task.is_finished()
        {
            entry.assigned.send_if_modified(|current| {
                let is_new = !(current.0.is_same(&target) && current.1.covers(&assignment));
                if is_new {
                    *current = (target, assignment);
                }
                is_new
            });
            return;
        }
        let subject = Arc::new(subject.clone());
        let (assigned, assignments) = watch::channel((target, assignment));
        let (published, state) = watch::channel(State::Starting);
        let actor = Actor::new(Arc::clone(&subject), Arc::clone(&self.context), assignments, published);
        let entry = RunningActor { subject: Arc::clone(&subject), assigned, state, task: tokio::spawn(actor.run()) };
        actors.insert(subject.uid.clone(), entry);
    }

    /// The state of the lock; `None` without an actor.
    pub(crate) fn state(&self, uid: &str) -> Option<State> {
        self.actors().get(uid).map(|entry| entry.state.borrow().clone())
    }

    /// The locks that have an actor.
    pub(crate) fn subjects(&self) -> Vec<Arc<Subject>> {
        self.actors().values().map(|entry| Arc::clone(&entry.subject)).collect()
    }

    /// Has the actor release its lease, or `recorded` if it has no lease, and ends the actor. Returns within 4 s how the
    /// actor ended; `None` without an actor, or if the actor did not end in time.
    pub(crate) async fn release(&self, uid: &str, recorded: Option<Owner>) -> Option<Ending> {
        self.stop(uid, Assignment::Release(recorded)).await
    }

    /// Ends the actor and leaves its lease on the masters. Returns as [`Self::release`] does.
    pub(crate) async fn abandon(&self, uid: &str) -> Option<Ending> {
        self.stop(uid, Assignment::Abandon).await
    }

    /// Ends all actors and leaves their leases on the masters, for the next process to adopt.
    pub(crate) async fn abandon_all(&self) {
        let all: Vec<_> = self.actors().drain().map(|(_, entry)| entry).collect();
        join_all(all.into_iter().map(|entry| entry.stop(Assignment::Abandon))).await;
    }

    async fn stop(&self, uid: &str, last: Assignment) -> Option<Ending> {
        let entry = self.actors().remove(uid)?;
        entry.stop(last).await
    }

    fn actors(&self) -> MutexGuard<'_, HashMap<String, RunningActor>> {
        self.actors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl RunningActor ===

impl RunningActor {
    /// Gives the actor its last assignment and waits for its end.
    async fn stop(mut self, last: Assignment) -> Option<Ending> {
        self.assigned.send_modify(|(_, assignment)| *assignment = last);
        if timeout(STOP_TIMEOUT, &mut self.task).await.is_err() {
            warn!(
                namespace = self.subject.namespace,
                name = self.subject.name,
                "the actor of a lock did not end in time and is aborted"
            );
            self.task.abort();
            return None;
        }
        match *self.state.borrow() {
            State::Ended(ending) => Some(ending),
            _ => None,
        }
    }
}
