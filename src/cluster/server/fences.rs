//! Trims old fencing tokens, so that the record of locks that nobody uses any more does not grow for ever.

use std::time::Duration;

use super::{Admin, AdminError};

/// How long the token of a lock is kept after its last grant. No lease is longer. A token is a time, so later tokens are larger
/// without the record.
const FENCE_RETENTION: Duration = Duration::from_secs(24 * 3600);

impl Admin {
    /// Removes the fencing tokens of locks that were not granted for a day. `unix_micros`: the operator's wall clock.
    pub(crate) async fn trim_fences(&mut self, unix_micros: u64) -> Result<(), AdminError> {
        let oldest = unix_micros.saturating_sub(u64::try_from(FENCE_RETENTION.as_micros()).unwrap_or(u64::MAX));
        let mut cursor = 0_u64;
        loop {
            let (next, keys): (u64, Vec<String>) = redis::cmd("SCAN")
                .arg(cursor)
                .arg(&["MATCH", "redlock:*#fences", "COUNT", "1000"])
                .query_async(&mut self.connection)
                .await?;
            // The name of a lock may end like that, too. The keys of a lock and of its queue have a slash.
            for key in keys.iter().filter(|key| !key.contains('/')) {
                let mut trim = redis::cmd("ZREMRANGEBYSCORE");
                trim.arg(key).arg("-inf").arg(format!("({oldest}"));
                trim.exec_async(&mut self.connection).await?;
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }
}
