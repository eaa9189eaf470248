//! Moments on the one clock that all processes of a machine share, so that their reports can be compared.

use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A moment of `CLOCK_MONOTONIC`, which all processes of a machine share. Written in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(Duration);

/// A text that no test writes.
#[derive(Debug)]
pub struct NotUnderstood;

impl Stamp {
    pub fn now() -> Self {
        Self(clock_gettime(ClockId::CLOCK_MONOTONIC).expect("the monotonic clock").into())
    }
}

impl Add<Duration> for Stamp {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

impl Sub for Stamp {
    type Output = Duration;

    /// Time since an earlier moment; zero where it is a later one.
    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_nanos().fmt(f)
    }
}

impl FromStr for Stamp {
    type Err = NotUnderstood;

    fn from_str(text: &str) -> Result<Self, NotUnderstood> {
        // The end of a lock that was lost long ago may lie before the clock's zero.
        let nanos: i64 = text.parse().map_err(|_| NotUnderstood)?;
        Ok(Self(Duration::from_nanos(nanos.max(0).cast_unsigned())))
    }
}
