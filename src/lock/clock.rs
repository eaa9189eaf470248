//! The present moment. Only the steps with IO read it; decisions and status take the time as a value.

use jiff::Timestamp;
use tokio::time::Instant;

use super::status::Now;

/// The present moment, by both clocks.
pub(crate) fn now() -> Now {
    Now { wall: Timestamp::now(), mono: Instant::now() }
}
