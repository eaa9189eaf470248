//! A Redis server as a node.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::error::NodeError;
use super::key::LockKey;
use super::node::{Kept, Node, Reading, Vote};
use super::owner::Owner;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host name or IP address, and port. The name is resolved afresh at each connection.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

/// How to log in.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// No login.
    None,
    /// A user and its password.
    Password {
        /// ACL user.
        username: String,
        /// Its password.
        password: String,
    },
    /// Files that hold the user and its password, read at each connection, so that a rotated password is taken up.
    Files {
        /// File with the ACL user.
        username: PathBuf,
        /// File with its password.
        password: PathBuf,
    },
}

/// Whether a server shows by a marker that it may vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// It votes only while `redlock:armed` names its present process (a `RedisLockCluster`'s node).
    Required,
    /// Somebody else runs it, and there is no marker.
    Unused,
}

/// One server: its name, where it listens, how to log in, and whether it shows a marker.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// What it is called in errors and logs.
    pub name: String,
    /// Where it listens.
    pub address: Address,
    /// How to log in.
    pub credentials: Credentials,
    /// Whether its votes need the armed marker.
    pub marker: Marker,
}

/// Whether the server is connected and fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The first connection is still being made.
    Connecting,
    /// Connected to the server process with this `run_id`.
    Up {
        /// Names the server process; another after each restart.
        run_id: String,
    },
    /// Not connected, and why.
    Down(NodeError),
}

/// A Redis server as a node: one connection, kept and renewed in the background, shared by all locks of the process.
#[derive(Debug)]
pub struct RedisNode {
    endpoint: Endpoint,
    health: watch::Receiver<Health>,
}

impl RedisNode {
    /// Begins to connect, in the background of the current tokio runtime, until the value is dropped.
    #[must_use]
    pub fn connect(endpoint: Endpoint) -> Self {
        let (_, health) = watch::channel(Health::Connecting);
        Self { endpoint, health }
    }

    /// Whether the server is connected, and changes of that.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl Node for RedisNode {
    fn name(&self) -> &str {
        &self.endpoint.name
    }

    async fn acquire(&self, _: &LockKey, _: &Owner, _: Duration, _: Instant) -> Result<Vote, NodeError> {
        todo!()
    }

    async fn renew(&self, _: &LockKey, _: &Owner, _: Duration, _: Instant) -> Result<Kept, NodeError> {
        todo!()
    }

    async fn seed(&self, _: &LockKey, _: &Owner, _: Duration, _: Instant) -> Result<Kept, NodeError> {
        todo!()
    }

    async fn release(&self, _: &LockKey, _: &Owner, _: Instant) -> Result<bool, NodeError> {
        todo!()
    }

    async fn read(&self, _: &LockKey, _: Instant) -> Result<Reading, NodeError> {
        todo!()
    }

    async fn subscribe(
        &self,
        _: &LockKey,
        _: usize,
        _: mpsc::UnboundedSender<usize>,
        _: Instant,
    ) -> Result<(), NodeError> {
        todo!()
    }
}
