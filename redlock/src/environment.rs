//! What the engine needs from its environment besides the monotonic clock: the wall clock and randomness.
//!
//! The monotonic clock is tokio's, which a simulation can stop and set.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rand::RngExt as _;

/// The wall clock, for the tokens, and randomness, for the pauses and the owners. A simulation brings its own.
pub trait Environment: fmt::Debug + Send + Sync + 'static {
    /// Microseconds of the Unix epoch. May be wrong and may jump: safety does not depend on it.
    fn unix_micros(&self) -> u64;

    /// A random time up to `bound`, inclusive.
    fn random_up_to(&self, bound: Duration) -> Duration;

    /// A random number that no other grant has: the [owner](crate::owner)'s nonce.
    fn nonce(&self) -> u64;
}

/// The machine's clock and randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Environment for System {
    fn unix_micros(&self) -> u64 {
        // A clock before 1970 proposes the smallest token: a stale token is replaced by a larger one.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
    }

    fn random_up_to(&self, bound: Duration) -> Duration {
        rand::rng().random_range(Duration::ZERO..=bound)
    }

    fn nonce(&self) -> u64 {
        rand::rng().random()
    }
}
