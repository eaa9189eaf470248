//! Endpoints as URLs: `redis://`, `rediss://` and `unix://`.

use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::percent_decode_str;

use super::endpoint::{Address, ClientCertificate, Credentials, Endpoint, Marker, TlsFiles};

/// The port of a URL that names none.
const DEFAULT_PORT: u16 = 6379;
/// The ACL user of a URL that has only a password.
const DEFAULT_USER: &str = "default";

/// Why a text is no [`Endpoint`]. It shows nothing of the text, which may have a password.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidEndpoint {
    /// Another scheme, or none.
    #[error("the URL must begin with redis://, rediss:// or unix://")]
    Scheme,
    /// A password without `:` before it, a user without a password, or an empty one.
    #[error("before the @ there must be user:password, or :password")]
    Credentials,
    /// No host, or one with other characters than a host name has.
    #[error("there must be a host name, an IPv4 address, or an IPv6 address in brackets")]
    Host,
    /// A port that is none.
    #[error("the port must be a number from 1 to 65535")]
    Port,
    /// Another database than 0.
    #[error("locks are in database 0: the URL must end after the port")]
    Database,
    /// A Unix socket without an absolute path, or with a host.
    #[error("the path of a Unix socket must be absolute, as in unix:///run/redis.sock")]
    Path,
    /// A `%` that two hexadecimal digits do not follow, or that gives no UTF-8.
    #[error("a % must be followed by two hexadecimal digits, and what they encode must be UTF-8")]
    Encoding,
    /// A parameter that is unknown, is given twice, has no value, or is not one of this scheme.
    #[error("after the ? there may be authorities, certificate and key, each once, of a rediss:// URL only")]
    Parameter,
    /// TLS without the authorities that are trusted for the server.
    #[error("a rediss:// URL needs ?authorities=/path/to/ca.pem: the system's authorities are not trusted")]
    Authorities,
    /// A client's certificate without its key, or the key without it.
    #[error("certificate and key of the client must be given together")]
    ClientCertificate,
}

/// Reads a URL: `redis://[user:password@]host[:port]`, `rediss://...?authorities=/path/to/ca.pem`, or `unix:///path`.
///
/// - User and password may come before the host, or before the path of a Unix socket. Special characters in them, and in
///   paths, are percent-encoded (`%40` for `@`). With `:password@` alone the user is `default`.
/// - The port is 6379 unless it is given. IPv6 addresses are in brackets.
/// - `rediss://` is TLS. It takes the paths of [`TlsFiles`] as parameters: `authorities`, and `certificate` with `key` for
///   a server that asks for them.
///
/// The name of the endpoint is its address, and it has no marker: see [`Marker::Unused`] for what that asks of whoever runs
/// the server. Other names, markers and [files](Credentials::Files) of credentials are set in the fields.
///
/// ```
/// use redlock_engine::{Address, Endpoint};
///
/// let endpoint: Endpoint = "redis://app:p%40ss@redis-0.example.net".parse()?;
/// assert_eq!(endpoint.address, Address::Tcp("redis-0.example.net".to_owned(), 6379));
/// assert_eq!(endpoint.name, "redis-0.example.net:6379");
/// # Ok::<(), redlock_engine::InvalidEndpoint>(())
/// ```
impl FromStr for Endpoint {
    type Err = InvalidEndpoint;

    fn from_str(url: &str) -> Result<Self, InvalidEndpoint> {
        let (scheme, rest) = url.split_once("://").ok_or(InvalidEndpoint::Scheme)?;
        let (rest, parameters) = match rest.split_once('?') {
            Some((rest, parameters)) => (rest, Some(parameters)),
            None => (rest, None),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (credentials, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (credentials(user)?, host),
            None => (Credentials::None, authority),
        };
        let files = tls_files(parameters)?;
        let address = match (scheme, files) {
            ("redis", None) => {
                let (host, port) = host_and_port(host, path)?;
                Address::Tcp(host, port)
            }
            ("rediss", Some(files)) => {
                let (host, port) = host_and_port(host, path)?;
                Address::Tls(host, port, files)
            }
            ("rediss", None) => return Err(InvalidEndpoint::Authorities),
            ("unix", None) if host.is_empty() && path.len() > 1 => Address::Unix(decode(path)?.into()),
            ("unix", None) => return Err(InvalidEndpoint::Path),
            ("redis" | "unix", Some(_)) => return Err(InvalidEndpoint::Parameter),
            _ => return Err(InvalidEndpoint::Scheme),
        };
        Ok(Self { name: address.to_string(), address, credentials, marker: Marker::Unused })
    }
}

impl TryFrom<&str> for Endpoint {
    type Error = InvalidEndpoint;

    fn try_from(url: &str) -> Result<Self, InvalidEndpoint> {
        url.parse()
    }
}

fn credentials(text: &str) -> Result<Credentials, InvalidEndpoint> {
    let (username, password) = text.split_once(':').ok_or(InvalidEndpoint::Credentials)?;
    if password.is_empty() {
        return Err(InvalidEndpoint::Credentials);
    }
    let username = if username.is_empty() { DEFAULT_USER.to_owned() } else { decode(username)? };
    Ok(Credentials::Password { username, password: decode(password)? })
}

/// The host and port of a server, of which `path` names the database.
fn host_and_port(text: &str, path: &str) -> Result<(String, u16), InvalidEndpoint> {
    let (host, port) = match text.strip_prefix('[') {
        Some(address) => {
            let (address, port) = address.split_once(']').ok_or(InvalidEndpoint::Host)?;
            address.parse::<Ipv6Addr>().map_err(|_| InvalidEndpoint::Host)?;
            (address, port)
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let is_in_names = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    if host.is_empty() || !host.chars().all(is_in_names) {
        return Err(InvalidEndpoint::Host);
    }
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or(InvalidEndpoint::Port)?,
        None if port.is_empty() => DEFAULT_PORT,
        None => return Err(InvalidEndpoint::Port),
    };
    if matches!(path, "" | "/" | "/0") { Ok((host.to_owned(), port)) } else { Err(InvalidEndpoint::Database) }
}

/// The files that the parameters name; `None` without parameters.
fn tls_files(parameters: Option<&str>) -> Result<Option<TlsFiles>, InvalidEndpoint> {
    let Some(parameters) = parameters else { return Ok(None) };
    let [mut authorities, mut certificate, mut key] = [const { None::<PathBuf> }; 3];
    for parameter in parameters.split('&') {
        let (name, path) = parameter.split_once('=').ok_or(InvalidEndpoint::Parameter)?;
        let file = match name {
            "authorities" => &mut authorities,
            "certificate" => &mut certificate,
            "key" => &mut key,
            _ => return Err(InvalidEndpoint::Parameter),
        };
        if path.is_empty() || file.replace(decode(path)?.into()).is_some() {
            return Err(InvalidEndpoint::Parameter);
        }
    }
    let client = match (certificate, key) {
        (Some(certificate), Some(key)) => Some(ClientCertificate { certificate, key }),
        (None, None) => None,
        _ => return Err(InvalidEndpoint::ClientCertificate),
    };
    let authorities = authorities.ok_or(InvalidEndpoint::Authorities)?;
    Ok(Some(TlsFiles { authorities, client }))
}

/// The text with its percent-encoding removed. The library leaves a `%` that encodes nothing as it is: here it is refused,
/// since it is a password that was not encoded.
fn decode(text: &str) -> Result<String, InvalidEndpoint> {
    let encodes = |after: &str| after.len() >= 2 && after.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    if !text.split('%').skip(1).all(encodes) {
        return Err(InvalidEndpoint::Encoding);
    }
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| InvalidEndpoint::Encoding)?;
    Ok(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.to_owned(), port)
    }

    fn login(username: &str, password: &str) -> Credentials {
        Credentials::Password { username: username.to_owned(), password: password.to_owned() }
    }

    fn tls(port: u16, client: Option<(&str, &str)>) -> Address {
        let client =
            client.map(|(certificate, key)| ClientCertificate { certificate: certificate.into(), key: key.into() });
        Address::Tls("r".to_owned(), port, TlsFiles { authorities: "/etc/my ca.pem".into(), client })
    }

    #[test]
    fn a_url_gives_address_credentials_and_a_name_without_secrets() {
        let none = Credentials::None;
        for (url, name, address, credentials) in [
            ("redis://r", "r:6379", tcp("r", 6379), none.clone()),
            ("redis://10.0.0.1:7000/", "10.0.0.1:7000", tcp("10.0.0.1", 7000), none.clone()),
            ("redis://[::1]:7000/0", "[::1]:7000", tcp("::1", 7000), none.clone()),
            ("redis://[::1]", "[::1]:6379", tcp("::1", 6379), none.clone()),
            ("redis://app:S3NT1NEL@r", "r:6379", tcp("r", 6379), login("app", "S3NT1NEL")),
            ("redis://:p%40s%2Fs%3a%25@r", "r:6379", tcp("r", 6379), login("default", "p@s/s:%")),
            ("redis://a:b:c@r", "r:6379", tcp("r", 6379), login("a", "b:c")),
            ("rediss://r?authorities=/etc/my%20ca.pem", "r:6379", tls(6379, None), none.clone()),
            (
                "rediss://a:b@r:1?key=/k&authorities=/etc/my%20ca.pem&certificate=/c",
                "r:1",
                tls(1, Some(("/c", "/k"))),
                login("a", "b"),
            ),
            ("unix:///run/r%20s.sock", "/run/r s.sock", Address::Unix("/run/r s.sock".into()), none),
            ("unix://a:b@/r", "/r", Address::Unix("/r".into()), login("a", "b")),
        ] {
            let endpoint: Endpoint = url.parse().unwrap();
            assert_eq!((endpoint.name.as_str(), &endpoint.address), (name, &address), "{url}");
            assert!(endpoint.credentials == credentials, "{url}");
            assert_eq!(endpoint.marker, Marker::Unused);
            assert!(!format!("{endpoint:?}").contains("S3NT1NEL"), "{endpoint:?}");
        }
    }

    #[test]
    fn what_is_no_endpoint_is_refused_without_showing_it() {
        use InvalidEndpoint as No;
        for (url, why) in [
            ("", No::Scheme),
            ("r:6379", No::Scheme),
            ("http://r", No::Scheme),
            ("redis://", No::Host),
            ("redis://S3NT1NEL@r", No::Credentials),
            ("redis://S3NT1NEL:@r", No::Credentials),
            ("redis://a:S3NT1NEL%@r", No::Encoding),
            ("redis://a:S3NT1NEL%4@r", No::Encoding),
            ("redis://a:S3NT1NEL%ff@r", No::Encoding),
            // A password with a slash, or a question mark, that was not encoded.
            ("redis://a:S3NT1NEL/x@r", No::Port),
            ("redis://a:S3NT1NEL?x@r", No::Parameter),
            ("redis://a b", No::Host),
            ("redis://::1", No::Host),
            ("redis://[r]", No::Host),
            ("redis://[::1", No::Host),
            ("redis://r:", No::Port),
            ("redis://r:0", No::Port),
            ("redis://r:65536", No::Port),
            ("redis://[::1]7", No::Port),
            ("redis://r/1", No::Database),
            ("rediss://r", No::Authorities),
            ("rediss://r?certificate=/c&key=/k", No::Authorities),
            ("rediss://r?authorities=/a&key=/k", No::ClientCertificate),
            ("rediss://r?authorities=", No::Parameter),
            ("rediss://r?authorities=/a&authorities=/b", No::Parameter),
            ("rediss://r?insecure=1", No::Parameter),
            ("redis://r?authorities=/a", No::Parameter),
            ("unix://r/run", No::Path),
            ("unix://", No::Path),
            ("unix:///", No::Path),
        ] {
            let error = Endpoint::try_from(url).unwrap_err();
            assert_eq!(error, why, "{url}");
            assert!(!format!("{error} {error:?}").contains("S3NT1NEL"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in "\\PC*", scheme in "(redis|rediss|unix)://") {
            let _ = text.parse::<Endpoint>();
            let _ = format!("{scheme}{text}").parse::<Endpoint>();
        }
    }
}
