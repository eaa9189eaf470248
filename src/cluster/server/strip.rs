//! Stripping: takes from a server what it needs to vote, so that every grant on it ends by its own time.

use redlock_engine::key::ARMED_KEY;

use super::{Admin, AdminError};
use crate::contract::names::CLIENT_USER_PREFIX;

// === impl Admin ===

impl Admin {
    /// Takes the marker and the users of all clients, in one transaction. Redis closes the connections of a user that it deletes.
    /// From its answer on the server grants and renews nothing, for any client. Safe to repeat.
    pub(crate) async fn strip(&mut self) -> Result<(), AdminError> {
        let users: Vec<String> = redis::cmd("ACL").arg("USERS").query_async(&mut self.connection).await?;
        let clients: Vec<_> = users.iter().filter(|user| user.starts_with(CLIENT_USER_PREFIX)).collect();
        let mut commands = redis::pipe();
        commands.atomic().cmd("DEL").arg(ARMED_KEY).ignore();
        if !clients.is_empty() {
            commands.cmd("ACL").arg("DELUSER").arg(clients).ignore();
        }
        commands.exec_async(&mut self.connection).await.map_err(Into::into)
    }
}
