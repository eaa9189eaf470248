//! The Secret `<cluster>-client` (`<cluster>.<its namespace>-client` of a cluster elsewhere), in the form of a service binding: the operator writes it, clients mount and read it.
//!
//! | key | value |
//! |---|---|
//! | `type`, `provider` | `redlock`, `redlock-operator` |
//! | `endpoints` | a line a master: `name=host:port` |
//! | `username`, `password` | the login of the clients of the namespace on every master |
//! | `namespace`, `prefix` | the namespace, and what the keys of its locks begin with |
//! | `max-ttl` | the longest lease that masters grant, such as `60s` |
//! | `call-timeout` | the call timeout, such as `50ms` |

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::ByteString;
use redlock_engine::key::PREFIX;
use redlock_engine::{Address, Credentials, Endpoint, Marker};

use super::credentials::Password;
use super::names::MANAGER;
use crate::duration;

/// Type of the Secret.
pub(crate) const SECRET_TYPE: &str = "servicebinding.io/redlock";

const TYPE: &str = "type";
const PROVIDER: &str = "provider";
const ENDPOINTS: &str = "endpoints";
const USERNAME: &str = "username";
const PASSWORD: &str = "password";
const NAMESPACE: &str = "namespace";
const KEY_PREFIX: &str = "prefix";
const MAX_TTL: &str = "max-ttl";
const CALL_TIMEOUT: &str = "call-timeout";

/// What the operator tells the clients of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientSecret {
    /// Name and address (`host:port`) of each master.
    pub(crate) endpoints: Vec<(String, String)>,
    /// ACL user of the clients.
    pub(crate) username: String,
    /// Its password.
    pub(crate) password: Password,
    /// The namespace whose locks these credentials are for.
    pub(crate) namespace: String,
    /// Longest lease that the masters grant.
    pub(crate) max_ttl: Duration,
    /// Timeout of a call to one master.
    pub(crate) call_timeout: Duration,
}

/// What a client needs of the mounted Secret. User and password stay in their files and are read at each connection, so
/// that a rotated password is taken up.
#[derive(Debug)]
pub(crate) struct MountedSecret {
    /// The masters.
    pub(crate) endpoints: Vec<Endpoint>,
    /// The namespace whose locks these credentials are for.
    pub(crate) namespace: String,
    /// Longest lease that the masters grant.
    pub(crate) max_ttl: Duration,
    /// Timeout of a call to one master.
    pub(crate) call_timeout: Duration,
}

/// Why the mounted Secret cannot be used. Shows nothing of it that is secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// A file is missing, or cannot be read.
    #[error(
        "failed to read {}: {error}; mount the Secret `<cluster>-client` of this pod's namespace, or \
         `<cluster>.<its namespace>-client` where the cluster is in another, at {} (the operator writes it when the namespace has a \
         DistributedLock of the cluster)",
        path.display(), dir.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// The folder in which the Secret should be mounted.
        dir: PathBuf,
        /// Why it cannot be read.
        error: io::Error,
    },
    /// A file has another form than the operator writes.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl ClientSecret {
    /// The data of the Secret.
    pub(crate) fn data(&self) -> BTreeMap<String, ByteString> {
        let endpoints = self.endpoints.iter().fold(String::new(), |mut lines, (name, address)| {
            // Writing to a String cannot fail.
            let _ = writeln!(lines, "{name}={address}");
            lines
        });
        let entries = [
            (TYPE, "redlock".to_owned()),
            (PROVIDER, MANAGER.to_owned()),
            (ENDPOINTS, endpoints),
            (USERNAME, self.username.clone()),
            (PASSWORD, self.password.expose().to_owned()),
            (NAMESPACE, self.namespace.clone()),
            (KEY_PREFIX, format!("{PREFIX}{}/", self.namespace)),
            (MAX_TTL, duration::format(self.max_ttl)),
            (CALL_TIMEOUT, duration::format(self.call_timeout)),
        ];
        entries.map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes()))).into()
    }
}

impl MountedSecret {
    /// Reads the Secret that is mounted at `dir`.
    pub(crate) fn read(dir: &Path) -> Result<Self, SecretError> {
        let text = |file: &str| {
            let path = dir.join(file);
            let content = fs::read_to_string(&path).map_err(|error| SecretError::Missing {
                path: path.clone(),
                dir: dir.to_owned(),
                error,
            })?;
            Ok(content.trim().to_owned())
        };
        let invalid = |file: &str| {
            let path = dir.join(file);
            move |reason: String| SecretError::Invalid { path, reason }
        };
        let duration = |file: &str| duration::parse(&text(file)?).map_err(invalid(file));
        for file in [USERNAME, PASSWORD] {
            if text(file)?.is_empty() {
                return Err(invalid(file)("is empty".to_owned()));
            }
        }
        let credentials = Credentials::Files { username: dir.join(USERNAME), password: dir.join(PASSWORD) };
        let endpoints = parse_endpoints(&text(ENDPOINTS)?, &credentials).map_err(invalid(ENDPOINTS))?;
        let namespace = text(NAMESPACE)?;
        Ok(Self { endpoints, namespace, max_ttl: duration(MAX_TTL)?, call_timeout: duration(CALL_TIMEOUT)? })
    }
}

/// The masters: a line each, `name=host:port`.
fn parse_endpoints(text: &str, credentials: &Credentials) -> Result<Vec<Endpoint>, String> {
    let mut endpoints: Vec<Endpoint> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, host, port) = parse_endpoint(line).ok_or_else(|| format!("{line:?} is not name=host:port"))?;
        let address = Address::Tcp(host.to_owned(), port);
        // One server that votes twice would make a majority of its own.
        if endpoints.iter().any(|e| e.name == name || e.address == address) {
            return Err(format!("{line:?} names a master for the second time"));
        }
        let credentials = credentials.clone();
        endpoints.push(Endpoint { name: name.to_owned(), address, credentials, marker: Marker::Required });
    }
    if endpoints.is_empty() { Err("names no master".to_owned()) } else { Ok(endpoints) }
}

fn parse_endpoint(line: &str) -> Option<(&str, &str, u16)> {
    let (name, address) = line.split_once('=')?;
    let (host, port) = address.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let port = port.parse().ok().filter(|&port: &u16| port > 0)?;
    (!name.is_empty() && !host.is_empty()).then_some((name, host, port))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::super::credentials::RootKey;
    use super::*;

    fn mounted(changes: &[(&str, Option<&str>)]) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        let files = [
            ("type", "redlock"),
            ("endpoints", "main-0=main-0.locks.svc:6379\nmain-1=[fd00::1]:6380\n"),
            ("username", "ns-shop"),
            ("password", "hunter2"),
            ("namespace", "shop"),
            ("max-ttl", "60s"),
            ("call-timeout", "50ms\n"),
        ];
        for (file, content) in files {
            match changes.iter().find(|(changed, _)| *changed == file) {
                Some((_, None)) => {}
                Some((_, Some(other))) => fs::write(dir.path().join(file), other).unwrap(),
                None => fs::write(dir.path().join(file), content).unwrap(),
            }
        }
        dir
    }

    #[test]
    fn a_mounted_secret_tells_where_the_masters_are() {
        let dir = mounted(&[]);
        let secret = MountedSecret::read(dir.path()).unwrap();
        let places: Vec<_> = secret.endpoints.iter().map(|e| (e.name.as_str(), e.address.clone())).collect();
        assert_eq!(
            places,
            [
                ("main-0", Address::Tcp("main-0.locks.svc".to_owned(), 6379)),
                ("main-1", Address::Tcp("fd00::1".to_owned(), 6380)),
            ]
        );
        assert!(secret.endpoints.iter().all(|e| e.marker == Marker::Required));
        assert_eq!(secret.namespace, "shop");
        assert_eq!((secret.max_ttl, secret.call_timeout), (Duration::from_secs(60), Duration::from_millis(50)));
        assert!(!format!("{secret:?}").contains("hunter2"));
    }

    #[test]
    fn a_file_that_is_missing_or_wrong_is_named() {
        for (file, content, word) in [
            ("endpoints", None, "mount the Secret `<cluster>-client`"),
            ("password", None, "mount the Secret `<cluster>-client`"),
            ("password", Some(""), "is empty"),
            ("endpoints", Some("\n"), "names no master"),
            ("endpoints", Some("main-0.locks.svc:6379"), "is not name=host:port"),
            ("endpoints", Some("main-0=main-0.locks.svc:0"), "is not name=host:port"),
            ("endpoints", Some("a=host:6379\nb=host:6379"), "for the second time"),
            ("max-ttl", Some("60"), "write it as"),
            ("call-timeout", Some("0s"), "more than zero"),
        ] {
            let dir = mounted(&[(file, content)]);
            let error = MountedSecret::read(dir.path()).unwrap_err().to_string();
            let path = dir.path().join(file).display().to_string();
            assert!(error.contains(&path) && error.contains(word), "{file}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_client_reads_what_the_operator_writes() {
        let password = RootKey::generate().client_password("uid", 1, 1);
        let written = ClientSecret {
            endpoints: vec![("main-0".to_owned(), "main-0.locks.svc:6379".to_owned())],
            username: "ns-billing".to_owned(),
            password: password.clone(),
            namespace: "billing".to_owned(),
            max_ttl: Duration::from_secs(60),
            call_timeout: Duration::from_millis(50),
        };
        let data: BTreeMap<_, _> =
            written.data().into_iter().map(|(k, v)| (k, String::from_utf8(v.0).unwrap())).collect();
        let expected = [
            ("call-timeout", "50ms"),
            ("endpoints", "main-0=main-0.locks.svc:6379\n"),
            ("max-ttl", "60s"),
            ("namespace", "billing"),
            ("password", password.expose()),
            ("prefix", "redlock:billing/"),
            ("provider", "redlock-operator"),
            ("type", "redlock"),
            ("username", "ns-billing"),
        ];
        assert_eq!(data, expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        let dir = tempfile::tempdir().unwrap();
        for (file, content) in &data {
            fs::write(dir.path().join(file), content).unwrap();
        }
        let read = MountedSecret::read(dir.path()).unwrap();
        assert_eq!(read.endpoints[0].address, Address::Tcp("main-0.locks.svc".to_owned(), 6379));
        assert_eq!((read.namespace.as_str(), read.max_ttl), ("billing", Duration::from_secs(60)));
        assert_eq!(read.call_timeout, Duration::from_millis(50));
    }
}
