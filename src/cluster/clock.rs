//! The wall clock. Only the steps with IO read it; decisions take the time as a value.

use jiff::Timestamp;

/// The time, in the precision that the API server keeps. So a time that was written compares equal when it is read.
pub(crate) fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}
