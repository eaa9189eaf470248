//! Arming: the marker without which a server has no vote, and the cap on leases that it carries.

use std::fmt;
use std::time::Duration;

use redlock_engine::key::ARMED_KEY;

use super::acl::Clients;
use super::fitness::Facts;
use super::{Admin, AdminError};

/// The value of the armed marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArmedMarker {
    /// The server process that was armed.
    pub(crate) run_id: String,
    /// Longest lease that it may grant.
    pub(crate) cap: Duration,
}

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

// === impl ArmedMarker ===

impl ArmedMarker {
    /// The marker that this text is; `None` if the operator did not write it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (run_id, cap) = text.split_once(' ')?;
        Some(Self { run_id: run_id.to_owned(), cap: Duration::from_millis(cap.parse().ok()?) })
    }
}

impl fmt::Display for ArmedMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.run_id, self.cap.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fixtures::facts;

    #[test]
    fn a_marker_is_read_as_it_was_written() {
        let marker = ArmedMarker { run_id: "a1b2".to_owned(), cap: Duration::from_millis(60_000) };
        assert_eq!(marker.to_string(), "a1b2 60000");
        assert_eq!(ArmedMarker::parse("a1b2 60000"), Some(marker));
        for foreign in ["", "a1b2", "a1b2 x", "a1b2 -1", "a b 1"] {
            assert_eq!(ArmedMarker::parse(foreign), None, "{foreign:?}");
        }
        assert!(facts(Some("run-1")).is_armed());
        assert!(!facts(Some("run-0")).is_armed());
        assert!(!facts(None).is_armed());
    }
}
