//! What an actor is told to do.

use std::sync::Arc;

use super::connections::Engine;
use redlock_engine::{Error, LeaseOptions, LockKey, Owner, Reason};

/// What an actor is to do.
#[derive(Clone, Debug)]
pub struct Job {
    /// The masters.
    pub engine: Arc<Engine>,
    /// The lock.
    pub key: LockKey,
    /// What to do with it.
    pub task: Task,
}

/// What an actor is to do with its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Take it and keep it; first try to go on with a grant that another process made.
    Hold {
        /// In which name, and how.
        options: LeaseOptions,
        /// The grant to go on with.
        adopt: Option<Owner>,
    },
    /// Renew the leader's grant as long as it stands, and nothing more.
    Follow {
        /// In which name, and how.
        options: LeaseOptions,
        /// The grant.
        owner: Owner,
    },
    /// Watch who holds it.
    Observe,
    /// Give back what is held, or this grant if nothing is; then end.
    Release(Option<Owner>),
    /// Leave what is held on the masters, and end.
    Abandon,
    /// Panic, once.
    #[cfg(test)]
    Fail,
}

impl Job {
    /// Whether an actor with this job already does what `other` asks for.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let same_task = match (&self.task, &other.task) {
            // The grant to go on with matters only at the start: later it is the actor who knows better.
            (Task::Hold { options: a, .. }, Task::Hold { options: b, .. }) => a == b,
            (a, b) => a == b,
        };
        same_task && Arc::ptr_eq(&self.engine, &other.engine) && self.key == other.key
    }

    /// Takes note of masters that refuse the operator's password.
    pub(super) fn note_refused_credentials(&self, error: &Error) {
        if error.reason() == Reason::Auth {
            self.engine.credentials_were_refused();
        }
    }
}
