//! The state of a lease: held, lost or released.

use tokio::time::Instant;

use crate::error::Loss;
use crate::lease::grant::Grant;

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
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::error::Error;

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
