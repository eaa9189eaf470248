//! Arming: the marker without which a server has no vote, and the cap on leases that it carries.

use std::time::Duration;

use redlock_engine::key::ARMED_KEY;
use redlock_engine::marker::ArmedMarker;

use super::acl::Clients;
use super::fitness::Facts;
use super::{Admin, AdminError};

/// How far arming came.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ArmError {
    /// The marker was not sent: the server is not armed.
    #[error("not armed: {0}")]
    NotSent(AdminError),
    /// The marker was sent, and the reply is missing: the server may be armed.
    #[error("no answer to arming: {0}")]
    Unknown(AdminError),
}

// === impl Admin ===

impl Admin {
    /// Lets the server vote: first the users of its clients, then its marker.
    ///
    /// The caller has recorded `facts.run_id`. It read `facts` on this connection, so the server is still that process.
    pub(crate) async fn arm(&mut self, facts: &Facts, clients: &Clients, max_ttl: Duration) -> Result<(), ArmError> {
        self.set_users(facts, clients).await.map_err(ArmError::NotSent)?;
        let marker = ArmedMarker { run_id: facts.run_id.clone(), cap: max_ttl };
        let set = redis::cmd("SET").arg(ARMED_KEY).arg(marker.to_string()).exec_async(&mut self.connection).await;
        set.map_err(|error| ArmError::Unknown(error.into()))
    }

    /// Writes a changed cap into the marker of an armed server. `XX`: a marker that was lost meanwhile is not written again.
    pub(crate) async fn set_cap(&mut self, facts: &Facts, max_ttl: Duration) -> Result<(), AdminError> {
        let marker = ArmedMarker { run_id: facts.run_id.clone(), cap: max_ttl };
        let mut set = redis::cmd("SET");
        set.arg(ARMED_KEY).arg(marker.to_string()).arg("XX");
        set.exec_async(&mut self.connection).await.map_err(Into::into)
    }
}
