//! Where a server listens, how to log in, and whether it shows a marker.

use std::fmt;
use std::path::PathBuf;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};

use crate::redlock::error::NodeError;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host name or IP address, and port. The name is resolved afresh at each connection.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

/// How to log in. Its `Debug` shows no secret.
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

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Password { .. } => "Password(***)",
            Self::Files { .. } => "Files(***)",
        })
    }
}

impl Endpoint {
    /// How to connect now: files of credentials are read afresh.
    pub(super) async fn connection_info(&self) -> Result<ConnectionInfo, NodeError> {
        let invalid = |e: redis::RedisError| NodeError::Misconfigured(e.to_string());
        let address = match &self.address {
            Address::Tcp(host, port) => ConnectionAddr::Tcp(host.clone(), *port),
            Address::Unix(path) => ConnectionAddr::Unix(path.clone()),
        };
        // RESP3: releases arrive on the connection that carries the commands.
        let mut settings = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        if let Some((username, password)) = self.credentials.load().await? {
            settings = settings.set_username(username).set_password(password);
        }
        let info = address.into_connection_info().map_err(invalid)?;
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        Ok(info.set_redis_settings(settings).set_tcp_settings(tcp))
    }
}

impl Credentials {
    async fn load(&self) -> Result<Option<(String, String)>, NodeError> {
        match self {
            Self::None => Ok(None),
            Self::Password { username, password } => Ok(Some((username.clone(), password.clone()))),
            Self::Files { username, password } => Ok(Some((read(username).await?, read(password).await?))),
        }
    }
}

async fn read(path: &PathBuf) -> Result<String, NodeError> {
    match tokio::fs::read_to_string(path).await {
        Ok(text) => Ok(text.trim_end().to_owned()),
        Err(error) => Err(NodeError::Auth(format!("cannot read {}: {error}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_never_shown() {
        let password = Credentials::Password { username: "ns-a".to_owned(), password: "S3NT1NEL".to_owned() };
        assert!(!format!("{password:?}").contains("S3NT1NEL"));
    }
}
