//! The assignment of an actor: what it does, and with which lock.

use std::sync::Arc;

use redlock_engine::{Error, LeaseOptions, LockKey, Owner, Reason};

use crate::lock::connections::Engine;

/// The lock of an actor, on the masters.
#[derive(Clone, Debug)]
pub(crate) struct LockTarget {
    /// The masters.
    pub(crate) engine: Arc<Engine>,
    /// The key of the lock.
    pub(crate) key: LockKey,
}

/// What an actor does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Assignment {
    /// Acquire the lock and keep it; first try to adopt a grant of another process.
    Hold {
        /// The leader's term. In a later one, another may have led in between: the grant to adopt counts again.
        term: u64,
        /// Identity and terms of the lease.
        options: LeaseOptions,
        /// The grant to adopt.
        adopt: Option<Owner>,
        /// What follows a loss.
        when_lost: WhenLost,
    },
    /// Renew the leader's grant as long as it stands. Acquire nothing.
    Follow {
        /// Identity and terms of the lease.
        options: LeaseOptions,
        /// The leader's grant.
        owner: Owner,
    },
    /// Observe who holds the lock.
    Observe,
    /// Release the lease, or this grant if there is no lease. Then end.
    Release(Option<Owner>),
    /// Leave the lease on the masters, and end.
    Abandon,
    /// Panic, once.
    #[cfg(test)]
    Fail,
}

/// What follows when a lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenLost {
    /// The lock is acquired again.
    Reacquire,
    /// It is not. That holds for this generation of the object: a change of spec is another assignment.
    Stop {
        /// `metadata.generation`.
        generation: Option<i64>,
    },
}

impl Assignment {
    /// Whether an actor with this assignment already does what `other` says.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            // The grant to adopt matters only at the start of a term: later the actor knows better.
            (
                Self::Hold { term, options, when_lost, .. },
                Self::Hold { term: new_term, options: new_options, when_lost: new_when_lost, .. },
            ) => (term, options, when_lost) == (new_term, new_options, new_when_lost),
            (a, b) => a == b,
        }
    }

    /// Whether an actor ends with this assignment.
    pub(crate) fn is_last(&self) -> bool {
        matches!(self, Self::Release(_) | Self::Abandon)
    }
}

impl LockTarget {
    /// Whether both are the same lock on the same connections.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.engine, &other.engine) && self.key == other.key
    }

    /// Reports an error by which masters refuse the operator's password.
    pub(crate) fn report_refused_credentials(&self, error: &Error) {
        if error.reason() == Reason::Auth {
            self.engine.report_refused_credentials();
        }
    }
}
