//! The state of a lease: held, lost or released.

use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;

use crate::error::Error;
use crate::lease::grant::Grant;

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
    /// [`Lease::run`](crate::Lease::run): the state of such a lease is [`LeaseState::Released`].
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

/// State of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Held until [`Grant::valid_until`], unless it is renewed before.
    Held(Grant),
    /// Ended against the holder's will. Final: the lock may be acquired again, as another lease.
    Lost(Loss),
    /// Released, or abandoned for another process to adopt. Final.
    Released,
}

impl LeaseState {
    /// The grant, if it is valid at `now`.
    #[must_use]
    pub fn valid_at(&self, now: Instant) -> Option<&Grant> {
        match self {
            Self::Held(grant) if grant.is_valid_at(now) => Some(grant),
            _ => None,
        }
    }

    /// The state after the lease ends as `end` at `now`. `None` where it had ended before: that stays. A release that
    /// comes after the end of validity finds the lease expired.
    pub(crate) fn ended(&self, end: Self, now: Instant) -> Option<Self> {
        let Self::Held(grant) = self else { return None };
        let has_run_out = end == Self::Released && !grant.is_valid_at(now);
        Some(if has_run_out { Self::Lost(grant.expired()) } else { end })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_lease_ends_once_and_one_that_has_run_out_is_expired_however_it_was_to_end() {
        let now = Instant::now();
        let last_failure = Some(Arc::new(Error::ShutDown));
        let grant = Grant { last_failure: last_failure.clone(), ..Grant::new(now, Duration::from_secs(10), 3) };
        let (held, taken, over) = (LeaseState::Held(grant.clone()), LeaseState::Lost(Loss::Taken), grant.valid_until);
        let expired = LeaseState::Lost(Loss::Expired { last_failure });
        for (state, end, at, ended) in [
            (&held, &LeaseState::Released, now, Some(LeaseState::Released)),
            (&held, &LeaseState::Released, over, Some(expired)),
            (&held, &taken, over, Some(taken.clone())),
            (&taken, &LeaseState::Released, now, None),
            (&LeaseState::Released, &taken, now, None),
        ] {
            assert_eq!(state.ended(end.clone(), at), ended, "{state:?} ends as {end:?}");
        }
        assert_eq!((held.valid_at(now), held.valid_at(over), taken.valid_at(now)), (Some(&grant), None, None));
    }
}
