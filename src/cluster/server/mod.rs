//! The operator's side of a master's Redis server. All commands to Redis are sent from here.
//!
//! # Layout
//! - [`Admin`]: a connection, logged in as the operator
//! - [`fitness`]: what a server says of itself, and whether it may vote; [`clock`]: what its clock must be
//! - [`arm`]: the armed marker, without which a server has no vote, and how both it and the users are set and taken away
//! - [`acl`]: the users of clients, and what each of them may do
//! - [`scripts`]: the scripts that clients may run, and those that never end

pub(crate) mod acl;
pub(crate) mod arm;
pub(crate) mod clock;
pub(crate) mod fitness;
mod scripts;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisConnectionInfo, RedisError,
    ServerErrorKind,
};
use tokio::net::TcpStream;

use crate::contract::credentials::Password;
use crate::contract::names::OPERATOR_USER;

/// Timeout of connecting, login included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of one reply.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// What tells a server for which pod it was started: an argument on its command line. Nobody can change it while the server runs, and it
/// has no effect of its own: no server of ours writes to syslog.
pub(crate) const IDENTITY_DIRECTIVE: &str = "syslog-ident";

/// Why a server did not do what it was asked. The texts are stable: they appear in `status`, which is written when they change.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum AdminError {
    /// No connection, or no reply in time.
    #[error("not reachable: {0}")]
    Unreachable(String),
    /// It accepts connections, and answers nothing in time.
    #[error("it accepts connections and answers nothing")]
    Silent,
    /// It runs a client's script for too long, and answers nothing else.
    #[error("it is busy with a client's script")]
    Busy,
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
pub(crate) struct Admin {
    connection: MultiplexedConnection,
    /// Of the decision to arm it that was begun on this connection, and not carried out.
    nonce: Option<String>,
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
        match Client::open(address)?.get_multiplexed_async_connection_with_config(&config).await {
            Ok(connection) => Ok(Self { connection, nonce: None }),
            Err(error) if error.is_timeout() && accepts_connections(host, port).await => Err(AdminError::Silent),
            Err(error) => Err(error.into()),
        }
    }

    /// The same, if it is the server of this very pod that answers. The address of a pod that is gone can be another's by now, also
    /// that of another master of the same cluster, which takes the same password.
    pub(crate) async fn connect_to_pod(
        host: &str,
        port: u16,
        pod_uid: &str,
        password: &Password,
    ) -> Result<Self, AdminError> {
        let mut admin = Self::connect(host, port, password).await?;
        admin.require_pod(pod_uid).await?;
        Ok(admin)
    }

    /// Fails unless the server was started for this pod.
    pub(crate) async fn require_pod(&mut self, pod_uid: &str) -> Result<(), AdminError> {
        let mut commands = redis::pipe();
        commands.cmd("CONFIG").arg("GET").arg(IDENTITY_DIRECTIVE);
        // Where the buffers of clients take too much memory, this connection is not the one that is closed.
        commands.cmd("CLIENT").arg("NO-EVICT").arg("ON").ignore();
        let ((_, name),): ((String, String),) = commands.query_async(&mut self.connection).await?;
        if name == pod_uid {
            Ok(())
        } else {
            Err(AdminError::Unreachable("the server of another pod answers at its address".to_owned()))
        }
    }
}

/// Whether something listens there. A frozen process does: its kernel accepts for it.
async fn accepts_connections(host: &str, port: u16) -> bool {
    let connecting = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect((host, port)));
    connecting.await.is_ok_and(|connected| connected.is_ok())
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
        let says = |code: &str| {
            let errors = error.clone().into_server_errors();
            errors.is_some_and(|errors| errors.iter().any(|(_, error)| error.code() == code))
        };
        if says("BUSY") {
            return Self::Busy;
        }
        match error.kind() {
            // Not a refusal of the operator: the clients have taken all connections.
            ErrorKind::Server(_) if error.to_string().contains("max number of clients reached") => {
                Self::Unreachable("its clients have taken all connections".to_owned())
            }
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
