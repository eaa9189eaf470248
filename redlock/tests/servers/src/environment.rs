//! The environment of a process whose wall clock is wrong.

use std::fmt;
use std::time::Duration;

use redlock_engine::{Environment, System};

/// The machine's randomness, with this wall clock, in microseconds of the Unix epoch.
pub struct WallClock(pub fn() -> u64);

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WallClock({})", self.0())
    }
}

impl Environment for WallClock {
    fn unix_micros(&self) -> u64 {
        self.0()
    }

    fn random_up_to(&self, bound: Duration) -> Duration {
        System.random_up_to(bound)
    }

    fn nonce(&self) -> u64 {
        System.nonce()
    }
}
