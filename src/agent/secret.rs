//! The mounted Secret `<cluster>-client`: where the masters are and how to log in.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::duration;
use redlock_engine::{Address, Credentials, Endpoint, Marker};

/// What the agent needs of the Secret. User and password stay in their files and are read at each connection, so that a
/// rotated password is taken up.
#[derive(Debug)]
pub struct Secret {
    /// The masters.
    pub endpoints: Vec<Endpoint>,
    /// The namespace whose locks these credentials are for.
    pub namespace: String,
    /// Longest lease that the masters grant.
    pub max_ttl: Duration,
    /// Limit on a call to one master.
    pub call_timeout: Duration,
}

/// Why the Secret cannot be used. Never shows what is in it, beyond what is no secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// A file is not there, or not readable.
    #[error(
        "failed to read {}: {error}; mount the Secret `<cluster>-client` of this pod's namespace at {} (the operator \
         writes it when the namespace has a DistributedLock of the cluster)",
        path.display(), dir.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// Where the Secret shall be mounted.
        dir: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file does not say what it should.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl Secret {
    /// Reads it from where it is mounted.
    pub fn read(dir: &Path) -> Result<Self, SecretError> {
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
        for file in ["username", "password"] {
            if text(file)?.is_empty() {
                return Err(invalid(file)("is empty".to_owned()));
            }
        }
        let credentials = Credentials::Files { username: dir.join("username"), password: dir.join("password") };
        let endpoints = parse_endpoints(&text("endpoints")?, &credentials).map_err(invalid("endpoints"))?;
        let namespace = text("namespace")?;
        Ok(Self { endpoints, namespace, max_ttl: duration("max-ttl")?, call_timeout: duration("call-timeout")? })
    }
}

/// The masters, of which each line names one: `name=host:port`.
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
        let secret = Secret::read(dir.path()).unwrap();
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
            let error = Secret::read(dir.path()).unwrap_err().to_string();
            let path = dir.path().join(file).display().to_string();
            assert!(error.contains(&path) && error.contains(word), "{file}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
