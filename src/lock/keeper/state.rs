//! What an actor knows of its lock. No IO, no clock.

use redlock_engine::error::MasterFailure;
use redlock_engine::{Error, Grant, Loss, MasterError, Owner, Reason, Released};
use tokio::time::Instant;

use crate::operator::metrics::LockActivity;

/// The state of a lock, as its actor knows it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    /// Nothing is known yet.
    Starting,
    /// Trying to adopt a grant of another process, or of an earlier connection.
    Adopting {
        /// The grant.
        owner: Owner,
        /// Why it is unknown whether the grant still stands.
        trouble: Option<Trouble>,
    },
    /// Not held. The actor contends for it.
    Contending {
        /// Why the last grant ended, if it ended against the holder's will.
        lost: Option<Loss>,
        /// The last answer of the masters.
        answer: Option<Refusal>,
    },
    /// Held by this resource.
    Held {
        /// Identity and token of the grant.
        owner: Owner,
        /// Proof of the lease, as of the last renewal.
        grant: Grant,
    },
    /// Not held, and not to be acquired again.
    Stopped {
        /// Why the last grant ended.
        loss: Loss,
        /// Of the object that asked for it.
        generation: Option<i64>,
    },
    /// A lock that others hold was observed.
    Observed(Sighting),
    /// The actor has ended.
    Ended(Ending),
}

/// Why a lock was not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Another holds it: the key's value, if it was read.
    Contended(Option<String>),
    /// A key that never expires is in the way: its value.
    Endless(String),
    /// Nobody holds it, but several contenders ask for it.
    Split,
    /// Too few masters voted.
    Trouble(Trouble),
}

/// Why there is no majority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// The reason as a bounded word.
    pub(crate) reason: Reason,
    /// Message for people. It stays the same while the masters' states do, so that status is not written again.
    pub(crate) message: String,
}

/// The holder of an observed lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sighting {
    /// Nobody holds it.
    Nobody,
    /// Somebody holds it.
    Somebody {
        /// The key's value.
        value: String,
        /// When its last renewal was first seen.
        renewed_at: Instant,
        /// Until when the key exists at least if it is not renewed; `None` for a key that never expires.
        valid_until: Option<Instant>,
        /// Number of masters that show this value.
        votes: usize,
    },
    /// Too few masters answer.
    Unknown(Trouble),
}

/// How an actor ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// There was nothing to release.
    Nothing,
    /// A release was sent, with this result.
    Released(Released),
    /// The lease was left on the masters, for another process to adopt.
    Abandoned,
}

impl State {
    /// Whether status shows both states alike: it need not show a renewal, a lost vote or passing time at once.
    pub(crate) fn shows_same_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Held { owner: a, .. }, Self::Held { owner: b, .. }) => a == b,
            (
                Self::Observed(Sighting::Somebody { value: a, .. }),
                Self::Observed(Sighting::Somebody { value: b, .. }),
            ) => a == b,
            _ => self == other,
        }
    }

    /// Whether this resource holds the lock.
    #[cfg(test)]
    pub(crate) fn is_held(&self) -> bool {
        matches!(self, Self::Held { .. })
    }

    /// What metrics show of the lock; `None` for nothing.
    pub(crate) fn activity(&self) -> Option<LockActivity> {
        match self {
            Self::Starting | Self::Stopped { .. } | Self::Ended(_) => None,
            Self::Adopting { .. } => Some(LockActivity::Unknown),
            Self::Contending { .. } => Some(LockActivity::Waiting),
            Self::Held { .. } => Some(LockActivity::Held),
            Self::Observed(_) => Some(LockActivity::Observed),
        }
    }

    /// Why there is no majority, if there is none.
    pub(crate) fn trouble(&self) -> Option<&Trouble> {
        match self {
            Self::Adopting { trouble, .. } => trouble.as_ref(),
            Self::Contending { answer: Some(Refusal::Trouble(trouble)), .. }
            | Self::Observed(Sighting::Unknown(trouble)) => Some(trouble),
            _ => None,
        }
    }
}

impl From<&Error> for Trouble {
    fn from(error: &Error) -> Self {
        let message = match error {
            Error::NoQuorum { usable, needed, masters, failures } => {
                format!("{usable} of {masters} masters usable, {needed} needed{}", list(failures))
            }
            Error::TooSlow { .. } => "a majority agreed, but too late: too little is left of the lease".into(),
            other => other.to_string(),
        };
        Self { reason: error.reason(), message }
    }
}

impl From<&Error> for Refusal {
    fn from(error: &Error) -> Self {
        match error {
            Error::Contended { holder: Some(holder), remaining: None } => Self::Endless(holder.clone()),
            Error::Contended { holder, .. } => Self::Contended(holder.clone()),
            Error::Split => Self::Split,
            other => Self::Trouble(other.into()),
        }
    }
}

/// The failed masters by name, each with a fixed phrase. (The errors' own texts alternate while a master is down: refused,
/// then slow.)
fn list(failures: &[MasterFailure]) -> String {
    let mut masters: Vec<_> = failures.iter().map(|f| format!("{}: {}", f.master, describe(&f.error))).collect();
    masters.sort_unstable();
    if masters.is_empty() { String::new() } else { format!(" ({})", masters.join("; ")) }
}

fn describe(error: &MasterError) -> &'static str {
    match error {
        MasterError::Unreachable(_) | MasterError::Timeout => "no answer",
        MasterError::Quarantined => "kept out (not armed)",
        MasterError::Auth(_) => "refuses the credentials",
        MasterError::Misconfigured(_) => "not fit to keep locks",
        MasterError::OutOfMemory => "out of memory",
        MasterError::TtlRefused => "refuses the ttl",
        MasterError::Protocol(_) => "unexpected answer",
        _ => "failed",
    }
}

#[cfg(test)]
mod tests {
    use redlock_engine::Token;

    use super::*;

    fn failure(master: &str, error: MasterError) -> MasterFailure {
        MasterFailure { master: master.to_owned(), error }
    }

    #[test]
    fn the_message_is_the_same_while_the_masters_are() {
        let error = |failures| Error::NoQuorum { usable: 2, needed: 3, masters: 5, failures };
        let once = error(vec![
            failure("q-1", MasterError::Timeout),
            failure("q-0", MasterError::Unreachable("connection refused (os error 111)".to_owned())),
            failure("q-4", MasterError::Quarantined),
        ]);
        let again = error(vec![
            failure("q-4", MasterError::Quarantined),
            failure("q-0", MasterError::Timeout),
            failure("q-1", MasterError::Unreachable("not tried again yet".to_owned())),
        ]);
        let trouble = Trouble::from(&once);
        assert_eq!(trouble, Trouble::from(&again));
        assert_eq!(
            trouble.message,
            "2 of 5 masters usable, 3 needed (q-0: no answer; q-1: no answer; q-4: kept out (not armed))"
        );
        assert_eq!(trouble.reason, Reason::NoQuorum);
    }

    #[test]
    fn a_renewal_is_shown_alike_and_another_grant_is_not() {
        let now = Instant::now();
        let held = |token, renewals| State::Held {
            owner: Owner::new("a", Token::new(token).unwrap(), 1),
            grant: Grant {
                acquired_at: now,
                renewed_at: now,
                valid_until: now,
                votes: 5,
                renewals,
                last_failure: None,
            },
        };
        assert!(held(1, 0).shows_same_as(&held(1, 9)));
        assert!(!held(1, 0).shows_same_as(&held(2, 0)));
        assert!(
            !held(1, 0)
                .shows_same_as(&State::Contending { lost: Some(Loss::Expired { last_failure: None }), answer: None })
        );
    }
}
