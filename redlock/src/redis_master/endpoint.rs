//! Address, credentials and marker of a server.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redis::{
    ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo,
    RedisError, TlsCertificates,
};
use rustls::AlertDescription as Alert;

use crate::error::MasterError;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host name or IP address, and port. The name is resolved again at each connection.
    Tcp(String, u16),
    /// The same inside TLS 1.2 or 1.3. The server must present a certificate for this host name or address.
    Tls(String, u16, TlsFiles),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Files for TLS, in PEM form. They are read at each connection, so that rotated certificates are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authorities that are trusted for the server. The system's own are not.
    pub authorities: PathBuf,
    /// The client's certificate, for a server that asks for one.
    pub client: Option<ClientCertificate>,
}

/// Files of a client's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate, with the intermediate ones up to the server's authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
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
    /// Files with the user and its password. They are read at each connection, so that a rotated password is used.
    /// White space at their ends is ignored.
    Files {
        /// File with the ACL user.
        username: PathBuf,
        /// File with its password.
        password: PathBuf,
    },
}

/// Whether a server's votes need the armed marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// It votes only while `redlock:armed` names its present process (a `RedisLockCluster`'s master).
    Required,
    /// Somebody else runs the server, and there is no marker: it votes at once after a restart. Its administrator must
    /// keep a server that lost its data away for as long as the longest lease, or two may hold a lock. A server that does
    /// not show its `run_id` cannot be told from another: nobody notices two addresses of it.
    Unused,
}

/// One server: its name, address, credentials and marker. Also made of a URL: see its `FromStr`.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Its name in errors and logs.
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
            Self::Tcp(host, port) | Self::Tls(host, port, _) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) | Self::Tls(host, port, _) => write!(f, "{host}:{port}"),
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
    /// How to connect now. Reads the files of credentials and certificates.
    pub(super) async fn client(&self) -> Result<redis::Client, MasterError> {
        let invalid = |e: RedisError| MasterError::Misconfigured(e.to_string());
        let (address, certificates) = match &self.address {
            Address::Tcp(host, port) => (ConnectionAddr::Tcp(host.clone(), *port), None),
            Address::Tls(host, port, files) => {
                let (host, port) = (host.clone(), *port);
                let address = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
                (address, Some(files.load().await?))
            }
            Address::Unix(path) => (ConnectionAddr::Unix(path.clone()), None),
        };
        // RESP3: releases arrive on the connection that carries the commands.
        let mut settings = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        if let Some((username, password)) = self.credentials.load().await? {
            settings = settings.set_username(username).set_password(password);
        }
        let info = address.into_connection_info().map_err(invalid)?;
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let info: ConnectionInfo = info.set_redis_settings(settings).set_tcp_settings(tcp);
        match certificates {
            Some(certificates) => redis::Client::build_with_tls(info, certificates)
                .map_err(|e| MasterError::Auth(format!("a file of TLS is not usable: {e}"))),
            None => redis::Client::open(info).map_err(invalid),
        }
    }
}

impl TlsFiles {
    async fn load(&self) -> Result<TlsCertificates, MasterError> {
        let client_tls = match &self.client {
            Some(ClientCertificate { certificate, key }) => {
                Some(ClientTlsConfig { client_cert: read(certificate).await?, client_key: read(key).await? })
            }
            None => None,
        };
        Ok(TlsCertificates { client_tls, root_cert: Some(read(&self.authorities).await?) })
    }
}

/// The error of a master with which TLS failed; `None` for other failures. Where one side does not accept the other's
/// certificate, it is [`MasterError::Auth`]. A server without TLS, or with an unsupported version, is misconfigured.
pub(super) fn tls_error(error: &RedisError) -> Option<MasterError> {
    // The library wraps its source in an `Arc`.
    let source = error.source()?.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    let tls: &rustls::Error = source.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref()?;
    Some(match tls {
        rustls::Error::InvalidCertificate(_)
        | rustls::Error::NoCertificatesPresented
        | rustls::Error::AlertReceived(
            Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::DecryptError
            | Alert::AccessDenied
            | Alert::CertificateRequired,
        ) => MasterError::Auth(format!("TLS: {tls}")),
        _ => MasterError::Misconfigured(format!("TLS: {tls}")),
    })
}

impl Credentials {
    async fn load(&self) -> Result<Option<(String, String)>, MasterError> {
        match self {
            Self::None => Ok(None),
            Self::Password { username, password } => Ok(Some((username.clone(), password.clone()))),
            Self::Files { username, password } => Ok(Some((read_line(username).await?, read_line(password).await?))),
        }
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, MasterError> {
    tokio::fs::read(path).await.map_err(|error| MasterError::Auth(format!("cannot read {}: {error}", path.display())))
}

async fn read_line(path: &Path) -> Result<String, MasterError> {
    match String::from_utf8(read(path).await?) {
        Ok(text) => Ok(text.trim_end().to_owned()),
        Err(_) => Err(MasterError::Auth(format!("{} is not UTF-8", path.display()))),
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
