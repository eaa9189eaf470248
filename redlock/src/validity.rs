//! Until when a grant is valid, on the holder's own monotonic clock.

use std::time::Duration;

use tokio::time::Instant;

/// Share of the TTL by which the clocks of masters and holder may differ in rate: one in a hundred, as the RedLock page
/// proposes.
const DRIFT_DIVISOR: u32 = 100;
/// Granularity of key expiry on a master (1 ms) and of the holder's timers (1 ms).
const GRANULARITY: Duration = Duration::from_millis(2);

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
    sent_at + ttl.saturating_sub(drift(ttl))
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

    proptest! {
        #[test]
        fn validity_ends_before_the_key_does(ttl in 1_u64..86_400_000) {
            let (sent_at, ttl) = (Instant::now(), Duration::from_millis(ttl));
            prop_assert!(valid_until(sent_at, ttl) < sent_at + ttl);
        }
    }
}
