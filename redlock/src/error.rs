//! What can go wrong, which master said so, and the bounded words for it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::quorum::Quorum;

/// The words for what went wrong: reasons of conditions, labels of metrics, and the base of exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reason {
    /// Another holds the lock.
    Contended,
    /// Too few masters answered.
    NoQuorum,
    /// A majority answered, but too little validity is left.
    TooSlow,
    /// Masters are up, but quarantined until they can do no harm.
    Quarantined,
    /// Masters refuse the credentials, or deny permission to a command.
    Auth,
    /// Masters cannot store locks: a replica, loading, or unable to write.
    Misconfigured,
    /// Masters are out of memory.
    OutOfMemory,
    /// The lease had already ended.
    Expired,
    /// Another has the lock, or may have had it since the last renewal.
    Lost,
    /// The claim can never be granted: its TTL is zero or above the cap, or tokens have run out.
    Invalid,
    /// The client was shut down.
    ShutDown,
}

impl Reason {
    /// The word, in the form of a Kubernetes condition's reason.
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

/// Why a master gave no usable answer.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum MasterError {
    /// There is no connection: refused, reset, no such host, or not tried again yet. The call fails at once.
    #[error("not reachable: {0}")]
    Unreachable(String),
    /// No answer within the call timeout.
    #[error("no answer in time")]
    Timeout,
    /// It is quarantined: its [armed marker](crate::key::ARMED_KEY) is missing, or names another server process.
    #[error("kept out (not armed)")]
    Quarantined,
    /// It refuses the credentials, or denies permission to a command or key. With TLS also: one side does not accept the
    /// other's certificate. Files of credentials and certificates that cannot be read count as refused.
    #[error("refused: {0}")]
    Auth(String),
    /// It cannot store locks: a replica, loading, unable to save or to replicate as configured, without RESP3 (older than
    /// Redis 6), or without TLS where the endpoint asks for it.
    #[error("not fit to keep locks: {0}")]
    Misconfigured(String),
    /// It has no memory left for the key.
    #[error("out of memory")]
    OutOfMemory,
    /// It refuses a TTL of less than a millisecond, or above its cap.
    #[error("TTL is zero or above the master's cap")]
    TtlRefused,
    /// It gave an answer that this version does not understand.
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

/// A master that gave no usable answer, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterFailure {
    /// Name of the master.
    pub master: String,
    /// Why it gave none.
    pub error: MasterError,
}

impl fmt::Display for MasterFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.master, self.error)
    }
}

/// Why a [`Client`](crate::Client) cannot be made.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientError {
    /// There is nobody to ask.
    #[error("a client needs at least one master")]
    NoMasters,
    /// More than anybody can ask at once in good time.
    #[error("{masters} masters are more than {most}")]
    TooManyMasters {
        /// Masters given.
        masters: usize,
        /// Masters permitted.
        most: usize,
    },
    /// The call timeout is too short for any call, or longer than any caller waits.
    #[error("a call timeout of {0:?} is not between 1ms and 1min")]
    CallTimeout(Duration),
}

/// Why an operation on a lock did not succeed. Each variant says which operations end with it.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Another holds the lock. From [`acquire`](crate::Client::acquire) when its time is over, and from
    /// [`try_acquire`](crate::Client::try_acquire).
    #[error("{}", held_by(holder.as_deref(), *remaining))]
    Contended {
        /// Value of the key on the most masters: `<identity>@<token>.<nonce>`, or another library's value. `None` where it was
        /// not read, or could not be.
        holder: Option<String>,
        /// Time until a majority of the masters is free, on their clocks, unless the lease is renewed. `None` without a
        /// `holder`; with one, its key never expires: it is held until somebody deletes the key.
        remaining: Option<Duration>,
    },
    /// Nobody holds the lock: several contenders asked for it at once and have split the votes, or others go first.
    /// From [`acquire`](crate::Client::acquire) when its time is over, and from
    /// [`try_acquire`](crate::Client::try_acquire).
    #[error("nobody holds it: the votes were split, or it was released just now")]
    Split,
    /// Too few masters gave a usable answer. From every operation except a release.
    #[error("{usable} of {masters} masters usable, {needed} needed ({})", list(failures))]
    NoQuorum {
        /// Masters that gave a usable answer.
        usable: usize,
        /// Masters needed.
        needed: usize,
        /// Masters configured.
        masters: usize,
        /// The other masters, and what they said.
        failures: Vec<MasterFailure>,
    },
    /// A majority agreed, but nothing is left of the lease, or less than
    /// [`min_validity`](crate::LeaseOptions::min_validity). The grant was released. (For a further [`Hold`](crate::Hold):
    /// the hold was not made, and the lease goes on.)
    #[error("{}", too_slow(*left, *needed))]
    TooSlow {
        /// Validity that was left.
        left: Duration,
        /// Least validity that the caller asked for.
        needed: Duration,
    },
    /// The lease had already ended: a majority still had the grant to [adopt](crate::Client::adopt), but answered when the
    /// validity that counts from the question was over. What is left of it on the masters ends by itself.
    #[error("the lease had already ended")]
    Expired,
    /// Another has the lock, or may have had it since the last renewal: a majority of masters does not have the grant to
    /// [adopt](crate::Client::adopt).
    #[error("lost: {held_elsewhere} of {masters} masters do not hold this lease")]
    Lost {
        /// Masters that answered and do not have this owner's key.
        held_elsewhere: usize,
        /// Masters configured.
        masters: usize,
    },
    /// One of several locks was lost while the next of them was waited for. From
    /// [`acquire_all`](crate::Client::acquire_all) when its time is over.
    #[error("a lock was lost while the others were waited for: {0}")]
    LostWhileWaiting(Loss),
    /// The options can never work. (A TTL above a master's cap is the master's
    /// answer: [`MasterError::TtlRefused`].)
    #[error("{0}")]
    Invalid(String),
    /// Masters have seen the largest token that there is, for this lock or in this process for its namespace: no larger one
    /// can be granted. Only a broken clock or client, or a hostile one, writes such a token.
    #[error("fencing tokens have run out")]
    TokensRunOut,
    /// The client was [shut down](crate::Client::shutdown). What it had asked for is being released.
    #[error("the client was shut down")]
    ShutDown,
}

/// Why a lease ended against its holder's will. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// It could not be renewed before its validity ended.
    Expired {
        /// Why the last renewal failed: what the masters said. `None` where none was tried, or none had ended.
        last_failure: Option<Arc<Error>>,
    },
    /// A majority of masters does not have it any more: another owner has it, or may have had it since.
    Taken,
    /// It was renewed as often as [`max_renewals`](crate::LeaseOptions::max_renewals) permits. The holder is told while
    /// the masters still have the lock, so that it can undo its work. The lock is released when the lease is dropped or
    /// released, at the latest when the validity of its last renewal ends. (A [shared](crate::LeaseOptions::is_shared) one
    /// only when the lease is released.)
    MaxRenewals,
    /// The client was [shut down](crate::Client::shutdown), which released the lease. Only from
    /// [`Lease::run`](crate::Lease::run): the state of such a lease is [`LeaseState::Released`](crate::LeaseState::Released).
    ShutDown,
}

impl Loss {
    /// The word for it, in the form of a Kubernetes condition's reason.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Expired { .. } => "Expired",
            Self::Taken => "Taken",
            Self::MaxRenewals => "MaxRenewals",
            Self::ShutDown => "ShutDown",
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired { last_failure: Some(error) } => {
                return write!(f, "the lease could not be renewed before it ended: {error}");
            }
            Self::Expired { last_failure: None } => "the lease was not renewed before it ended",
            Self::Taken => "a majority of the masters does not hold the lease any more",
            Self::MaxRenewals => "the lease was renewed as often as it may be",
            Self::ShutDown => "the client was shut down",
        })
    }
}

impl std::error::Error for Loss {}

fn held_by(holder: Option<&str>, remaining: Option<Duration>) -> String {
    match (holder, remaining) {
        (Some(holder), Some(_)) => format!("held by {holder}"),
        (Some(holder), None) => {
            format!("held by {holder}, whose key never expires: delete it on the masters to free it")
        }
        (None, _) => "held by another".to_owned(),
    }
}

fn too_slow(left: Duration, needed: Duration) -> String {
    if left.is_zero() {
        "the masters agreed too late: nothing is left of the lease".to_owned()
    } else {
        format!("only {left:?} of validity is left, and {needed:?} is needed")
    }
}

fn list(failures: &[MasterFailure]) -> String {
    failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl Error {
    /// Too few masters gave a usable answer.
    pub(crate) fn no_quorum(quorum: Quorum, usable: usize, failures: Vec<MasterFailure>) -> Self {
        Self::NoQuorum { usable, needed: quorum.votes_needed(), masters: quorum.masters(), failures }
    }

    /// The bounded word for it. Where masters failed in different ways, the most frequent one decides; where there is
    /// none, the word is [`Reason::NoQuorum`].
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Contended { .. } | Self::Split => Reason::Contended,
            Self::NoQuorum { failures, .. } => prevailing(failures),
            Self::TooSlow { .. } => Reason::TooSlow,
            Self::Expired | Self::LostWhileWaiting(Loss::Expired { .. }) => Reason::Expired,
            Self::Lost { .. } | Self::LostWhileWaiting(_) => Reason::Lost,
            Self::Invalid(_) | Self::TokensRunOut => Reason::Invalid,
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
    use std::sync::Arc;

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

    #[test]
    fn each_text_says_what_is_the_case() {
        let ms = Duration::from_millis;
        let contended =
            |holder: Option<&str>, remaining| Error::Contended { holder: holder.map(str::to_owned), remaining };
        let (needed, quarantined) = (Duration::ZERO, no_quorum(&[MasterError::Quarantined]));
        let last_failure = Some(Arc::new(quarantined.clone()));
        let expired = || Loss::Expired { last_failure: None };
        let texts: [(Box<dyn fmt::Display>, &str); 24] = [
            (Box::new(contended(Some("a@1"), Some(ms(5)))), "held by a@1"),
            (
                Box::new(contended(Some("6f1c"), None)),
                "held by 6f1c, whose key never expires: delete it on the masters to free it",
            ),
            (Box::new(contended(None, None)), "held by another"),
            (Box::new(Error::Split), "nobody holds it: the votes were split, or it was released just now"),
            (Box::new(quarantined), "4 of 5 masters usable, 3 needed (main-0: kept out (not armed))"),
            (
                Box::new(Error::TooSlow { left: Duration::ZERO, needed }),
                "the masters agreed too late: nothing is left of the lease",
            ),
            (
                Box::new(Error::TooSlow { left: ms(5), needed: ms(9) }),
                "only 5ms of validity is left, and 9ms is needed",
            ),
            (Box::new(Error::Expired), "the lease had already ended"),
            (Box::new(Error::Lost { held_elsewhere: 3, masters: 5 }), "lost: 3 of 5 masters do not hold this lease"),
            (
                Box::new(Error::LostWhileWaiting(Loss::MaxRenewals)),
                "a lock was lost while the others were waited for: the lease was renewed as often as it may be",
            ),
            (Box::new(Error::Invalid("no".to_owned())), "no"),
            (Box::new(Error::ShutDown), "the client was shut down"),
            (Box::new(expired()), "the lease was not renewed before it ended"),
            (
                Box::new(Loss::Expired { last_failure }),
                "the lease could not be renewed before it ended: 4 of 5 masters usable, 3 needed (main-0: kept out (not \
                 armed))",
            ),
            (Box::new(Loss::Taken), "a majority of the masters does not hold the lease any more"),
            (Box::new(Loss::ShutDown), "the client was shut down"),
            (Box::new(MasterError::Unreachable("refused".to_owned())), "not reachable: refused"),
            (Box::new(MasterError::Timeout), "no answer in time"),
            (Box::new(MasterError::Auth("WRONGPASS".to_owned())), "refused: WRONGPASS"),
            (Box::new(MasterError::Misconfigured("a replica".to_owned())), "not fit to keep locks: a replica"),
            (Box::new(MasterError::Protocol("x".to_owned())), "unexpected answer: x"),
            (Box::new(MasterError::TtlRefused), "TTL is zero or above the master's cap"),
            (Box::new(ClientError::NoMasters), "a client needs at least one master"),
            (Box::new(ClientError::CallTimeout(Duration::ZERO)), "a call timeout of 0ns is not between 1ms and 1min"),
        ];
        for (said, text) in texts {
            assert_eq!(said.to_string(), text);
        }
    }
}
