//! What an actor knows of its lock: the keeper's answer to the controller.

use tokio::time::Instant;

use redlock_engine::error::MasterFailure;
use redlock_engine::{Error, Grant, Loss, MasterError, Owner, Reason, Released};

/// Where a lock stands, as its actor sees it.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// Nothing is known yet.
    Starting,
    /// Trying to go on with a grant that another process, or an earlier connection, made.
    Adopting {
        /// The grant.
        owner: Owner,
        /// Why it could not be told yet whether the grant still stands.
        trouble: Option<Trouble>,
    },
    /// Not held, and asked for.
    Contending {
        /// How the last grant ended, if it ended against the holder's will.
        lost: Option<Loss>,
        /// What the masters last said.
        answer: Option<Refusal>,
    },
    /// Held by this resource.
    Held {
        /// Who holds it.
        owner: Owner,
        /// The proof, as of the last renewal.
        grant: Grant,
    },
    /// What was seen of a lock that others hold.
    Observed(Sighting),
    /// The actor was told to stop, and has.
    Ended(Ending),
}

/// Why a lock was not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another holds it: the key's value, where it was read.
    Contended(Option<String>),
    /// Too few masters gave a vote.
    Trouble(Trouble),
}

/// Why masters do not make a majority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The bounded word.
    pub reason: Reason,
    /// For people. The same as long as the masters' states are the same, so that a status that shows it settles.
    pub message: String,
}

/// What was seen of a lock that others hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sighting {
    /// Nobody holds it.
    Nobody,
    /// Somebody does.
    Somebody {
        /// The key's value.
        value: String,
        /// When its last renewal was first seen.
        renewed_at: Instant,
        /// Until when the key is there at least, were it not renewed again; `None` for a key that never expires.
        valid_until: Option<Instant>,
        /// Masters that show it.
        votes: usize,
    },
    /// Too few masters answer to tell.
    Untold(Trouble),
}

/// How an actor ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// There was nothing to give back.
    Nothing,
    /// Given back, with that result.
    Released(Released),
    /// Left on the masters, for another process to go on with.
    Abandoned,
}

impl State {
    /// Whether `other` tells people the same: a renewal, a vote more or less, and time passing are no news.
    #[must_use]
    pub fn tells_the_same(&self, other: &Self) -> bool {
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
    #[must_use]
    pub fn is_held(&self) -> bool {
        matches!(self, Self::Held { .. })
    }

    /// What keeps the masters from a majority, if something does.
    #[must_use]
    pub fn trouble(&self) -> Option<&Trouble> {
        match self {
            Self::Adopting { trouble, .. } => trouble.as_ref(),
            Self::Contending { answer: Some(Refusal::Trouble(trouble)), .. }
            | Self::Observed(Sighting::Untold(trouble)) => Some(trouble),
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
            Error::TooSlow { .. } => {
                "a majority agreed, but too late for what is left of the lease to be of use".into()
            }
            other => other.to_string(),
        };
        Self { reason: error.reason(), message }
    }
}

impl From<&Error> for Refusal {
    fn from(error: &Error) -> Self {
        match error {
            Error::Contended { holder, .. } => Self::Contended(holder.clone()),
            other => Self::Trouble(other.into()),
        }
    }
}

/// The masters by name, each with what is wrong in words that do not change from one attempt to the next: the text of a
/// refused connection and that of a slow one alternate while a master is down.
fn list(failures: &[MasterFailure]) -> String {
    let mut masters: Vec<_> = failures.iter().map(|f| format!("{}: {}", f.master, word(&f.error))).collect();
    masters.sort_unstable();
    if masters.is_empty() { String::new() } else { format!(" ({})", masters.join("; ")) }
}

fn word(error: &MasterError) -> &'static str {
    match error {
        MasterError::Unreachable(_) | MasterError::Timeout => "no answer",
        MasterError::Quarantined => "kept out (not armed)",
        MasterError::Auth(_) => "refuses the credentials",
        MasterError::Misconfigured(_) => "not fit to keep locks",
        MasterError::OutOfMemory => "out of memory",
        MasterError::TtlRefused => "refuses the ttl",
        MasterError::Protocol(_) => "unexpected answer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redlock_engine::Token;

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
    fn a_renewal_is_no_news_but_another_grant_is() {
        let now = Instant::now();
        let held = |token, renewals| State::Held {
            owner: Owner::new("a", Token::new(token).unwrap()),
            grant: Grant { acquired_at: now, renewed_at: now, valid_until: now, votes: 5, renewals },
        };
        assert!(held(1, 0).tells_the_same(&held(1, 9)));
        assert!(!held(1, 0).tells_the_same(&held(2, 0)));
        assert!(!held(1, 0).tells_the_same(&State::Contending { lost: Some(Loss::Expired), answer: None }));
    }
}
