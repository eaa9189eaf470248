//! Scripts on a server: those that the operator loads for clients that may not run others, and those that never end.

use std::sync::LazyLock;

use redis::Pipeline;
use redlock_engine::redis_master::scripts;

use super::{Admin, AdminError};

/// The scripts of the release before this one, so that its clients go on while they are updated one by one. Empty: there is none yet.
const FORMER: [&str; 0] = [];

/// The scripts that clients may run where they may not run any other, and their digests.
static LOADED: LazyLock<Vec<(&'static str, String)>> = LazyLock::new(|| {
    let all = scripts().into_iter().chain(FORMER);
    all.map(|source| (source, redis::Script::new(source).get_hash().to_owned())).collect()
});

/// Digests of the scripts that the operator loads.
pub(super) fn digests() -> Vec<&'static str> {
    LOADED.iter().map(|(_, digest)| digest.as_str()).collect()
}

/// Adds the commands that load the scripts.
pub(super) fn add_loads(commands: &mut Pipeline) {
    for (source, _) in LOADED.iter() {
        commands.cmd("SCRIPT").arg("LOAD").arg(*source).ignore();
    }
}

// === impl Admin ===

impl Admin {
    /// Loads the scripts again, where the server has forgotten them (`SCRIPT FLUSH`).
    pub(crate) async fn load_scripts(&mut self) -> Result<(), AdminError> {
        let mut commands = redis::pipe();
        add_loads(&mut commands);
        commands.exec_async(&mut self.connection).await.map_err(Into::into)
    }

    /// Ends the script that a client has been running for too long. [`AdminError::Busy`] if that cannot be ended, because it has
    /// written: Redis would rather go on than keep half of its writes.
    pub(crate) async fn kill_script(&mut self) -> Result<(), AdminError> {
        let mut commands = redis::pipe();
        commands.cmd("SCRIPT").arg("KILL").cmd("FUNCTION").arg("KILL").ignore_errors();
        let answers: Vec<redis::RedisResult<redis::Value>> = commands.query_async(&mut self.connection).await?;
        let mut is_unkillable = false;
        for answer in answers {
            match answer {
                Ok(_) => return Ok(()),
                Err(error) => is_unkillable |= error.code() == Some("UNKILLABLE"),
            }
        }
        // Neither: it has ended by itself.
        if is_unkillable { Err(AdminError::Busy) } else { Ok(()) }
    }
}
