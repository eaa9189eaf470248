//! Arming and disarming. A server votes while it has its marker; its clients can log in while they have users.
//!
//! # Invariant
//! Users and marker appear together, and only by the decision that was made last about this server process, with nothing lost since.
//! Each decision to arm begins with a nonce of its own on the server, which replaces that of any other, and then reads the facts on
//! which it is made. The users and the marker are set in one transaction that takes the nonce away and is cancelled unless the nonce
//! is still there: so by `FLUSHALL`, by a later decision (of another leader, while this process was stopped), and by disarming.
//! Later, the users and the cap are changed in a transaction that is cancelled unless the marker of this very process is still there.

use std::time::Duration;

use redis::{ErrorKind, Pipeline, ServerErrorKind};
use redlock_engine::key::ARMED_KEY;
use redlock_engine::marker::ArmedMarker;

use super::acl::Clients;
use super::fitness::Facts;
use super::{Admin, AdminError};
use crate::contract::names::CLIENT_USER_PREFIX;

/// The nonce of the last decision to arm this server. Clients cannot reach it.
pub(crate) const ARMING_KEY: &str = "redlock:arming";
/// Why this server process was disarmed: it is never armed again. Clients cannot reach it.
pub(crate) const DISARMED_KEY: &str = "redlock:disarmed";

/// How far arming came.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ArmError {
    /// The marker was not sent, or not set: the server is not armed.
    #[error("not armed: {0}")]
    NotSent(AdminError),
    /// The marker was sent, and the reply is missing: the server may be armed.
    #[error("no answer to arming: {0}")]
    Unknown(AdminError),
}

// === impl ArmError ===

impl ArmError {
    /// What went wrong, however far it came.
    fn into_source(self) -> AdminError {
        match self {
            Self::NotSent(error) | Self::Unknown(error) => error,
        }
    }
}

// === impl Admin ===

impl Admin {
    /// Begins a decision to arm this server: an earlier one that is not carried out yet never is. The facts are read after this.
    pub(super) async fn begin_arming(&mut self) -> Result<(), AdminError> {
        let nonce = format!("{:032x}", rand::random::<u128>());
        self.nonce = None;
        let set = redis::cmd("SET").arg(ARMING_KEY).arg(&nonce).exec_async(&mut self.connection).await;
        set.map_err(AdminError::from)?;
        self.nonce = Some(nonce);
        Ok(())
    }

    /// Lets the server vote, and its clients log in.
    ///
    /// The caller has recorded `facts.run_id`. It read `facts` on this connection, so the server is still that process.
    pub(crate) async fn arm(&mut self, facts: &Facts, clients: &Clients, max_ttl: Duration) -> Result<(), ArmError> {
        let Some(nonce) = self.nonce.take() else {
            return Err(ArmError::NotSent(AdminError::Refused("no decision to arm it was begun".to_owned())));
        };
        let mut commands = redis::pipe();
        clients.add_changes(&mut commands, facts);
        let marker = ArmedMarker { run_id: facts.run_id.clone(), cap: max_ttl };
        commands.cmd("SET").arg(ARMED_KEY).arg(marker.to_string()).ignore();
        commands.cmd("DEL").arg(ARMING_KEY).ignore();
        self.transact(ARMING_KEY, |value| value == Some(&nonce), commands).await
    }

    /// Sets the users of `clients` on an armed server, deletes those of other namespaces, and writes the cap into its marker. Safe to
    /// repeat: a user that is set again stays connected.
    pub(crate) async fn maintain(
        &mut self,
        facts: &Facts,
        clients: &Clients,
        max_ttl: Duration,
    ) -> Result<(), AdminError> {
        let mut commands = redis::pipe();
        clients.add_changes(&mut commands, facts);
        let marker = ArmedMarker { run_id: facts.run_id.clone(), cap: max_ttl };
        commands.cmd("SET").arg(ARMED_KEY).arg(marker.to_string()).arg("XX").ignore();
        let is_own = |value: Option<&str>| {
            value.and_then(ArmedMarker::parse).is_some_and(|marker| marker.run_id == facts.run_id)
        };
        self.transact(ARMED_KEY, is_own, commands).await.map_err(ArmError::into_source)
    }

    /// Takes the vote and all clients from the server, for as long as its process lives, and says why on it. Each connection of a
    /// client ends with its user.
    ///
    /// Not a transaction: a server that is full, or a replica, refuses some of it, and the rest must be done all the same.
    pub(crate) async fn disarm(&mut self, why: &str) -> Result<(), AdminError> {
        self.nonce = None;
        let users: Vec<String> = redis::cmd("ACL").arg("USERS").query_async(&mut self.connection).await?;
        let mut commands = redis::pipe();
        for user in users.iter().filter(|user| user.starts_with(CLIENT_USER_PREFIX)) {
            commands.cmd("ACL").arg("DELUSER").arg(user);
        }
        commands.cmd("DEL").arg(ARMED_KEY).arg(ARMING_KEY);
        commands.cmd("SET").arg(DISARMED_KEY).arg(why).ignore_errors();
        commands.exec_async(&mut self.connection).await.map_err(Into::into)
    }

    /// Runs `commands` as one transaction, if the value of the key `guard` is as expected and nobody touches it until then.
    async fn transact(
        &mut self,
        guard: &str,
        is_expected: impl FnOnce(Option<&str>) -> bool,
        mut commands: Pipeline,
    ) -> Result<(), ArmError> {
        let mut watch = redis::pipe();
        watch.cmd("WATCH").arg(guard).ignore().cmd("GET").arg(guard);
        let watched: Result<(Option<String>,), _> = watch.query_async(&mut self.connection).await;
        let (value,) = watched.map_err(|error| ArmError::NotSent(error.into()))?;
        let cancelled = || ArmError::NotSent(AdminError::Refused("it changed meanwhile".to_owned()));
        if !is_expected(value.as_deref()) {
            // Whatever becomes of the answer, nothing else is guarded on this connection before it is watched anew.
            let _ = redis::cmd("UNWATCH").exec_async(&mut self.connection).await;
            return Err(cancelled());
        }
        // Nothing of a cancelled transaction is done. An answer to a single command of it is no such proof.
        match commands.atomic().query_async::<Option<()>>(&mut self.connection).await {
            Ok(Some(())) => Ok(()),
            Ok(None) => Err(cancelled()),
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::ExecAbort) => {
                Err(ArmError::NotSent(error.into()))
            }
            Err(error) => Err(ArmError::Unknown(error.into())),
        }
    }
}
