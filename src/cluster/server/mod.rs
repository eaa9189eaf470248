//! The operator's side of a master's Redis server. All commands to Redis are sent from here.
//!
//! # Layout
//! - [`Admin`]: a connection, logged in as the operator
//! - [`fitness`]: what a server says of itself, and whether it may vote
//! - [`arm`]: the armed marker, without which a server has no vote
//! - [`strip`]: takes the marker and the clients' users
//! - [`acl`]: the users of clients, and what each of them may do

pub(crate) mod acl;
pub(crate) mod arm;
pub(crate) mod fitness;
mod strip;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisConnectionInfo, RedisError,
    ServerErrorKind,
};

use crate::contract::credentials::Password;
use crate::contract::names::OPERATOR_USER;

/// Timeout of connecting, login included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of one reply.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a server did not do what it was asked. The texts are stable: they appear in `status`, which is written when they change.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum AdminError {
    /// No connection, or no reply in time.
    #[error("not reachable: {0}")]
    Unreachable(String),
    /// It refuses the operator's password.
    #[error(
        "it refuses the operator's password: its pod was made with an earlier key of the cluster; delete the pod to have it replaced"
    )]
    Login,
    /// It replied with an error, or with something that this version does not understand.
    #[error("it answered: {0}")]
    Refused(String),
}

/// A connection of the operator to one server process.
///
/// It does not reconnect. So every command reaches the process that was asked first, and none that was started since.
#[derive(Clone)]
pub(crate) struct Admin {
    connection: MultiplexedConnection,
}

// === impl Admin ===

impl Admin {
    /// Connects to `host` (a pod's IP address) and logs in as the operator.
    pub(crate) async fn connect(host: &str, port: u16, password: &Password) -> Result<Self, AdminError> {
        let login = RedisConnectionInfo::default().set_username(OPERATOR_USER).set_password(password.expose());
        let address = ConnectionAddr::Tcp(host.to_owned(), port).into_connection_info()?.set_redis_settings(login);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT));
        let connection = Client::open(address)?.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Self { connection })
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Admin")
    }
}

// === impl AdminError ===

impl From<RedisError> for AdminError {
    fn from(error: RedisError) -> Self {
        if error.kind() == ErrorKind::AuthenticationFailed || matches!(error.code(), Some("WRONGPASS" | "NOAUTH")) {
            return Self::Login;
        }
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::BusyLoading) => Self::Unreachable("it is loading its data".to_owned()),
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::UnexpectedReturnType | ErrorKind::Parse => {
                Self::Refused(error.to_string())
            }
            _ if error.is_timeout() => Self::Unreachable("no answer in time".to_owned()),
            _ if error.is_connection_refusal() => Self::Unreachable("connection refused".to_owned()),
            // The text of an IO error can differ from one attempt to the next.
            _ => Self::Unreachable("no connection".to_owned()),
        }
    }
}
