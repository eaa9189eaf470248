//! What can go wrong, which master said so, and the bounded words for it.

use std::fmt;
use std::time::Duration;

use crate::quorum::Quorum;

/// The words for what went wrong: reasons of conditions, labels of metrics, and what exit codes are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Another holds the lock.
    Contended,
    /// Too few masters answered.
    NoQuorum,
    /// A majority answered, but too late for what is left of the lease to be of use.
    TooSlow,
    /// Masters are up but kept out until they can do no harm.
    Quarantined,
    /// Masters refuse the credentials, or do not permit a command.
    Auth,
    /// Masters are not fit to keep locks: a replica, loading, or unable to write.
    Misconfigured,
    /// Masters are out of memory.
    OutOfMemory,
    /// The lease had already ended.
    Expired,
    /// Another has the lock, or may have had it since.
    Lost,
    /// What was asked for cannot be given: a TTL of zero or above the cap.
    Invalid,
    /// The client was shut down.
    ShutDown,
}

impl Reason {
    /// The word, in the form that Kubernetes wants of a condition's reason.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Contended => "Contended",
            Self::NoQuorum => "NoQuorum",
            Self::TooSlow => "TooSlow",
            Self::Quarantined => "Quarantined",
            Self::Auth => "Auth",
            Self::Misconfigured => "Misconfigured",
            Self::OutOfMemory => "OutOfMemory",
            Self::Expired => "Expired",
            Self::Lost => "Lost",
            Self::Invalid => "Invalid",
            Self::ShutDown => "ShutDown",
        }
    }
}

/// Why a master gave no vote.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum MasterError {
    /// There is no connection: refused, reset, no such host, or not tried again yet. Says so at once.
    #[error("not reachable: {0}")]
    Unreachable(String),
    /// No answer within the limit on a call.
    #[error("no answer in time")]
    Timeout,
    /// It runs, but its [armed marker](crate::key::ARMED_KEY) is missing, or names another server process.
    #[error("kept out (not armed)")]
    Quarantined,
    /// It refuses the credentials, or does not permit a command or key; with TLS also: one side does not accept the
    /// other's certificate. Files of credentials and certificates that cannot be read count as refused.
    #[error("refused: {0}")]
    Auth(String),
    /// It is not fit to keep locks: a replica, loading, unable to save or to replicate as it is told to, without RESP3
    /// (older than Redis 6), or without TLS where we speak it.
    #[error("not fit to keep locks: {0}")]
    Misconfigured(String),
    /// It has no memory left for the key.
    #[error("out of memory")]
    OutOfMemory,
    /// It does not give a lease of that length: less than a millisecond, or longer than its cap.
    #[error("TTL is zero or above the master's cap")]
    TtlRefused,
    /// It answered something that this version does not understand.
    #[error("unexpected answer: {0}")]
    Protocol(String),
}

impl MasterError {
    /// The bounded word for it.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Unreachable(_) | Self::Timeout => Reason::NoQuorum,
            Self::Quarantined => Reason::Quarantined,
            Self::Auth(_) => Reason::Auth,
            Self::Misconfigured(_) | Self::Protocol(_) => Reason::Misconfigured,
            Self::OutOfMemory => Reason::OutOfMemory,
            Self::TtlRefused => Reason::Invalid,
        }
    }
}

/// A master that gave no vote, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterFailure {
    /// Name of the master.
    pub master: String,
    /// Why it gave no vote.
    pub error: MasterError,
}

impl fmt::Display for MasterFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.master, self.error)
    }
}

/// Why an operation on a lock did not succeed. Which operation can fail how is said at each of these.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// Another holds the lock, or several contenders have split the votes. Of [`acquire`](crate::Client::acquire) when
    /// its time is over, and of [`try_acquire`](crate::Client::try_acquire), which does not ask who it is.
    #[error("held by {}", holder.as_deref().unwrap_or("several contenders"))]
    Contended {
        /// Value of the key on the most masters, if it was read: `<identity>@<token>`, or another library's.
        holder: Option<String>,
        /// After how long a majority of the masters would be free, on their clocks, unless it is renewed.
        remaining: Option<Duration>,
    },
    /// Too few masters gave a usable answer. Of every operation but a release.
    #[error("{usable} of {masters} masters usable, {needed} needed ({})", list(failures))]
    NoQuorum {
        /// Masters that gave a usable answer.
        usable: usize,
        /// Masters needed.
        needed: usize,
        /// Masters configured.
        masters: usize,
        /// What the others said.
        failures: Vec<MasterFailure>,
    },
    /// A majority agreed, but nothing is left of the lease, or less than
    /// [`min_validity`](crate::LeaseOptions::min_validity). It was given back (a further [`Hold`](crate::Hold) is just
    /// not made).
    #[error("{left:?} left of the lease, {needed:?} needed")]
    TooSlow {
        /// What was left.
        left: Duration,
        /// What the caller asked for at least.
        needed: Duration,
    },
    /// The lease had already ended: a majority still had the grant to [adopt](crate::Client::adopt), but said so when
    /// the validity that counts from the question was over. What is left of it on the masters ends by itself.
    #[error("the lease had already ended")]
    Expired,
    /// Another has the lock, or may have had it since: a majority of masters does not hold the grant to
    /// [adopt](crate::Client::adopt).
    #[error("lost: {held_elsewhere} of {masters} masters do not hold this lease")]
    Lost {
        /// Masters that answered and do not hold this owner.
        held_elsewhere: usize,
        /// Masters configured.
        masters: usize,
    },
    /// The options cannot work whatever masters say, or the namespace's tokens have run out. (A TTL above a master's cap is
    /// what the master says: [`MasterError::TtlRefused`].)
    #[error("{0}")]
    Invalid(String),
    /// The client was [shut down](crate::Client::shutdown). What it had asked for is being given back.
    #[error("the client was shut down")]
    ShutDown,
}

fn list(failures: &[MasterFailure]) -> String {
    failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl Error {
    /// Too few masters gave a usable answer.
    pub(crate) fn no_quorum(quorum: Quorum, usable: usize, failures: Vec<MasterFailure>) -> Self {
        Self::NoQuorum { usable, needed: quorum.votes_needed(), masters: quorum.masters(), failures }
    }

    /// The bounded word for it. Of several masters' different failures the most frequent gives it; where none stands out
    /// it is [`Reason::NoQuorum`].
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Contended { .. } => Reason::Contended,
            Self::NoQuorum { failures, .. } => prevailing(failures),
            Self::TooSlow { .. } => Reason::TooSlow,
            Self::Expired => Reason::Expired,
            Self::Lost { .. } => Reason::Lost,
            Self::Invalid(_) => Reason::Invalid,
            Self::ShutDown => Reason::ShutDown,
        }
    }
}

fn prevailing(failures: &[MasterFailure]) -> Reason {
    let count = |reason| failures.iter().filter(|f| f.error.reason() == reason).count();
    let mut reasons: Vec<_> = failures.iter().map(|f| f.error.reason()).collect();
    reasons.sort_unstable();
    reasons.dedup();
    let most = reasons.iter().map(|&r| count(r)).max().unwrap_or(0);
    match reasons.iter().filter(|&&r| count(r) == most).collect::<Vec<_>>()[..] {
        [&one] => one,
        _ => Reason::NoQuorum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_quorum(errors: &[MasterError]) -> Error {
        let failures = errors.iter().map(|e| MasterFailure { master: "main-0".to_owned(), error: e.clone() }).collect();
        Error::NoQuorum { usable: 5 - errors.len(), needed: 3, masters: 5, failures }
    }

    #[test]
    fn what_most_masters_say_gives_the_reason() {
        let (down, auth) = (MasterError::Unreachable("refused".to_owned()), MasterError::Auth("WRONGPASS".to_owned()));
        for (errors, reason) in [
            (vec![down.clone(); 3], Reason::NoQuorum),
            (vec![MasterError::Quarantined, MasterError::Quarantined, down.clone()], Reason::Quarantined),
            (vec![auth.clone(), auth.clone(), auth.clone()], Reason::Auth),
            (vec![auth, MasterError::Quarantined, down], Reason::NoQuorum),
            (vec![MasterError::OutOfMemory; 3], Reason::OutOfMemory),
        ] {
            assert_eq!(no_quorum(&errors).reason(), reason, "{errors:?}");
        }
    }

    #[test]
    fn the_message_names_each_master_and_what_it_said() {
        let error = no_quorum(&[MasterError::Timeout, MasterError::Quarantined, MasterError::OutOfMemory]);
        assert_eq!(
            error.to_string(),
            "2 of 5 masters usable, 3 needed (main-0: no answer in time; main-0: kept out (not armed); main-0: out of memory)"
        );
    }
}
