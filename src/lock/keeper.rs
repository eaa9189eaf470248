//! The actors of all locks: given jobs, asked where their locks stand, told to stop.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::warn;

use super::Subject;
use super::actor::Actor;
use super::job::{Job, Task};
use super::notices::Notices;
use super::publisher::Publisher;
use super::state::{Ending, State};
use crate::operator::leadership::Leadership;
use crate::operator::metrics::Metrics;
use redlock_engine::Owner;

/// How long an actor may take to stop. The engine's release ends within one limit on a call (at most 1 s), after at most
/// 1 s for a first connection.
const STOP_LIMIT: Duration = Duration::from_secs(4);

/// What all actors share.
#[derive(Debug)]
pub struct Shared {
    /// Whether this process decides.
    pub leadership: Leadership,
    /// Counts what happens.
    pub metrics: Metrics,
    /// Tells of transitions.
    pub notices: Notices,
    /// Has status shown.
    pub publisher: Arc<Publisher>,
    #[cfg(test)]
    failed: Mutex<std::collections::HashSet<String>>,
}

/// How an actor is to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Give back what is held; if nothing is, this grant.
    Release(Option<Owner>),
    /// Leave what is held on the masters.
    Abandon,
}

#[derive(Debug)]
struct Entry {
    subject: Arc<Subject>,
    jobs: watch::Sender<Job>,
    state: watch::Receiver<State>,
    task: JoinHandle<()>,
}

/// The actors, by UID of their lock.
#[derive(Debug)]
pub struct Keeper {
    shared: Arc<Shared>,
    actors: Mutex<HashMap<String, Entry>>,
}

impl Keeper {
    /// No actors yet.
    #[must_use]
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, actors: Mutex::default() }
    }

    /// Has the actor of `subject` do `job`, and starts it if there is none. An actor that does it already goes on.
    pub fn assign(&self, subject: &Subject, job: Job) {
        let mut actors = self.actors();
        if let Some(entry) = actors.get(&subject.uid)
            && !entry.task.is_finished()
        {
            entry.jobs.send_if_modified(|current| {
                let other = !current.covers(&job);
                if other {
                    *current = job;
                }
                other
            });
            return;
        }
        let subject = Arc::new(subject.clone());
        let (jobs, assigned) = watch::channel(job);
        let (reported, state) = watch::channel(State::Starting);
        let actor = Actor::new(Arc::clone(&subject), Arc::clone(&self.shared), assigned, reported);
        let entry = Entry { subject: Arc::clone(&subject), jobs, state, task: tokio::spawn(actor.run()) };
        actors.insert(subject.uid.clone(), entry);
    }

    /// Where the lock stands; `None` without an actor.
    #[must_use]
    pub fn state(&self, uid: &str) -> Option<State> {
        self.actors().get(uid).map(|entry| entry.state.borrow().clone())
    }

    /// The locks that have an actor.
    #[must_use]
    pub fn subjects(&self) -> Vec<Arc<Subject>> {
        self.actors().values().map(|entry| Arc::clone(&entry.subject)).collect()
    }

    /// Stops the actor and says how it ended; `None` without an actor, or if it could not end in time. Ends within 4 s.
    pub async fn stop(&self, uid: &str, how: Stop) -> Option<Ending> {
        let entry = self.actors().remove(uid)?;
        entry.stop(how).await
    }

    /// Stops all actors, leaving what they hold on the masters for the next process to go on with.
    pub async fn shut_down(&self) {
        let all: Vec<_> = self.actors().drain().map(|(_, entry)| entry).collect();
        join_all(all.into_iter().map(|entry| entry.stop(Stop::Abandon))).await;
    }

    fn actors(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.actors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    async fn stop(mut self, how: Stop) -> Option<Ending> {
        let task = match how {
            Stop::Release(owner) => Task::Release(owner),
            Stop::Abandon => Task::Abandon,
        };
        self.jobs.send_modify(|job| job.task = task);
        if timeout(STOP_LIMIT, &mut self.task).await.is_err() {
            warn!(
                namespace = self.subject.namespace,
                name = self.subject.name,
                "the keeper of a lock did not stop in time"
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

impl Shared {
    /// What actors share.
    #[must_use]
    pub fn new(leadership: Leadership, metrics: Metrics, notices: Notices, publisher: Arc<Publisher>) -> Self {
        Self {
            leadership,
            metrics,
            notices,
            publisher,
            #[cfg(test)]
            failed: Mutex::default(),
        }
    }

    /// Panics at the first call for a lock.
    #[cfg(test)]
    pub(super) fn fail_once(&self, uid: &str) {
        let first = self.failed.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned());
        assert!(!first, "failing as told");
    }
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
