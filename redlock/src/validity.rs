//! Until when a grant is valid, on the holder's own monotonic clock.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;

/// Share of the TTL by which the clocks of masters and holder may differ in rate: one in a hundred, as the RedLock page
/// proposes.
const DRIFT_DIVISOR: u32 = 100;
/// Granularity of key expiry on a master (1 ms) and of the holder's timers (1 ms).
const GRANULARITY: Duration = Duration::from_millis(2);
/// Longer than any lease or wait: 300 years.
const FAR: Duration = Duration::from_secs(300 * 366 * 24 * 3600);

/// What is subtracted from a lease of `ttl` because clocks do not run alike: 1 % of it plus 2 ms.
///
/// Source: the RedLock page's `CLOCK_DRIFT`, with the figures of its reference implementation, redlock-rb.
#[must_use]
pub fn drift(ttl: Duration) -> Duration {
    ttl / DRIFT_DIVISOR + GRANULARITY
}

/// The instant until which a lease of `ttl` is valid if its request was sent at `sent_at`.
///
/// `sent_at` must be taken before the first byte of *that* attempt is sent. A master starts to count when it executes the
/// command, which is later, so its key outlives this instant. Any sleep between the question and the answer is already
/// subtracted by that.
#[must_use]
pub fn valid_until(sent_at: Instant, ttl: Duration) -> Instant {
    later(sent_at, ttl.saturating_sub(drift(ttl)))
}

/// Refuses a lease of which nothing is left, or less than `needed`, with [`Error::TooSlow`].
pub(crate) fn check_left(left: Duration, needed: Duration) -> Result<(), Error> {
    if left.is_zero() || left < needed { Err(Error::TooSlow { left, needed }) } else { Ok(()) }
}

/// The instant `time` after `at`. Beyond the clock's end it is centuries away: a sum of times from outside never panics.
pub(crate) fn later(at: Instant, time: Duration) -> Instant {
    at.checked_add(time).or_else(|| at.checked_add(FAR)).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn drift_is_taken_off_a_lease() {
        for (ttl, left) in [(30_000, 29_698), (10_000, 9_898), (1_000, 988), (2, 0), (0, 0)] {
            let sent_at = Instant::now();
            let valid = valid_until(sent_at, Duration::from_millis(ttl)) - sent_at;
            // Integer division of a Duration keeps nanoseconds: compare rounded to milliseconds.
            assert_eq!(valid.as_millis(), left, "ttl {ttl} ms");
        }
    }

    #[test]
    fn a_time_beyond_the_end_of_the_clock_is_far_away_and_no_panic() {
        let now = Instant::now();
        assert_eq!(later(now, Duration::from_secs(1)), now + Duration::from_secs(1));
        for end in [later(now, Duration::MAX), valid_until(now, Duration::MAX), later(later(now, Duration::MAX), FAR)] {
            assert!(end >= now + FAR);
        }
    }

    proptest! {
        #[test]
        fn validity_ends_before_the_key_does(ttl in 1_u64..86_400_000) {
            let (sent_at, ttl) = (Instant::now(), Duration::from_millis(ttl));
            prop_assert!(valid_until(sent_at, ttl) < sent_at + ttl);
        }
    }
}
