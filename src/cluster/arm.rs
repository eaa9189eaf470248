//! The operator's side of a master's Redis server: what it says of itself, letting it vote, and who may log in.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisConnectionInfo, RedisError,
    ServerErrorKind,
};

use super::snapshot::{ArmedMarker, Facts};
use crate::contract::credentials::{Password, RootKey, client_rules};
use crate::contract::names::{CLIENT_USER_PREFIX, EVERY_NAMESPACE, OPERATOR_USER, client_user};
use redlock_engine::key::{ARMED_KEY, PREFIX as KEY_PREFIX};

/// Limit on connecting, login included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Limit on one answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// What is wrong with a server that has them. Without their number: it could change at each look, and status would be written
/// each time.
const FOREIGN_KEYS: &str = "it has keys of unknown origin: a master must serve locks alone";
/// Fencing tokens of locks that were not granted for so long are forgotten. No lease is longer, and a token is a time: later
/// ones are larger without the record.
const FENCES_KEPT: Duration = Duration::from_secs(24 * 3600);

/// What a server did not do.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum AdminError {
    /// No connection, or no answer in time.
    #[error("not reachable: {0}")]
    Unreachable(String),
    /// It refuses the operator's password.
    #[error(
        "it refuses the operator's password: its pod was made with an earlier key of the cluster; delete the pod to have it replaced"
    )]
    Login,
    /// It answered with an error, or with something that this version does not understand.
    #[error("it answered: {0}")]
    Refused(String),
}

/// How far arming came.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ArmError {
    /// The marker was not sent: the server is not armed.
    #[error("not armed: {0}")]
    NotSent(AdminError),
    /// The marker was sent, and the answer is missing: it may be armed.
    #[error("no answer to arming: {0}")]
    Unknown(AdminError),
}

/// A connection of the operator to one server process. It is not renewed when it breaks, so whatever is said on it is said to
/// the process that was asked first.
#[derive(Clone)]
pub struct Admin {
    connection: MultiplexedConnection,
}

/// Who shall be able to log in: a password per namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clients(BTreeMap<String, Password>);

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Admin")
    }
}

// === impl Admin ===

impl Admin {
    /// Connects to `host` (a pod's IP address) and logs in as the operator.
    pub async fn connect(host: &str, port: u16, password: &Password) -> Result<Self, AdminError> {
        let login = RedisConnectionInfo::default().set_username(OPERATOR_USER).set_password(password.expose());
        let address = ConnectionAddr::Tcp(host.to_owned(), port).into_connection_info()?.set_redis_settings(login);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT));
        let connection = Client::open(address)?.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Self { connection })
    }

    /// What the server says of itself.
    pub async fn facts(&mut self) -> Result<Facts, AdminError> {
        let (info, marker, keys, users): (String, Option<String>, u64, Vec<String>) = redis::pipe()
            .cmd("INFO")
            .arg(&["server", "replication", "persistence", "memory"])
            .cmd("GET")
            .arg(ARMED_KEY)
            .cmd("DBSIZE")
            .cmd("ACL")
            .arg("USERS")
            .query_async(&mut self.connection)
            .await?;
        let facts = facts(&info, marker.as_deref(), &users)?;
        if facts.is_armed() || facts.unfit.is_some() || keys == 0 || !self.has_foreign_keys().await? {
            return Ok(facts);
        }
        Ok(Facts { unfit: Some(FOREIGN_KEYS.to_owned()), ..facts })
    }

    /// Whether the server has keys that are none of locks. Those of locks are from clients of this very process: it is
    /// started empty, and may have been on its way to be armed.
    async fn has_foreign_keys(&mut self) -> Result<bool, AdminError> {
        let mut cursor = 0_u64;
        loop {
            let (next, keys): (u64, Vec<String>) =
                redis::cmd("SCAN").arg(cursor).arg(&["COUNT", "1000"]).query_async(&mut self.connection).await?;
            if keys.iter().any(|key| !key.starts_with(KEY_PREFIX)) {
                return Ok(true);
            }
            if next == 0 {
                return Ok(false);
            }
            cursor = next;
        }
    }

    /// Whether the server is armed: its `run_id`, and whether the marker names it.
    pub async fn check(&mut self) -> Result<(String, bool), AdminError> {
        let (info, marker): (String, Option<String>) =
            redis::pipe().cmd("INFO").arg("server").cmd("GET").arg(ARMED_KEY).query_async(&mut self.connection).await?;
        let run_id = field(&info, "run_id")?.to_owned();
        let armed = marker.as_deref().and_then(ArmedMarker::parse).is_some_and(|marker| marker.run_id == run_id);
        Ok((run_id, armed))
    }

    /// Lets the server vote: its clients' users first, its marker last.
    ///
    /// The caller has recorded `facts.run_id`, and `facts` was read on this connection, so it is still that process.
    pub async fn arm(&mut self, facts: &Facts, clients: &Clients, max_ttl: Duration) -> Result<(), ArmError> {
        self.set_users(facts, clients).await.map_err(ArmError::NotSent)?;
        let marker = ArmedMarker { run_id: facts.run_id.clone(), cap_millis: max_ttl.as_millis() };
        let set = redis::cmd("SET").arg(ARMED_KEY).arg(marker.to_string()).exec_async(&mut self.connection).await;
        set.map_err(|error| ArmError::Unknown(error.into()))
    }

    /// Writes a changed cap into the marker of an armed server. `XX`: a marker that went missing since is not brought back.
    pub async fn set_cap(&mut self, facts: &Facts, max_ttl: Duration) -> Result<(), AdminError> {
        let marker = ArmedMarker { run_id: facts.run_id.clone(), cap_millis: max_ttl.as_millis() };
        let mut set = redis::cmd("SET");
        set.arg(ARMED_KEY).arg(marker.to_string()).arg("XX");
        set.exec_async(&mut self.connection).await.map_err(Into::into)
    }

    /// Makes the users of all `clients`, and removes those of other namespaces. Safe to repeat: a user that is set again
    /// stays connected.
    pub async fn set_users(&mut self, facts: &Facts, clients: &Clients) -> Result<(), AdminError> {
        let mut commands = redis::pipe();
        for (namespace, password) in &clients.0 {
            let rules = client_rules(namespace, password, facts.knows_setinfo);
            commands.cmd("ACL").arg("SETUSER").arg(client_user(namespace)).arg(rules).ignore();
        }
        for namespace in facts.namespaces.iter().filter(|namespace| !clients.0.contains_key(*namespace)) {
            commands.cmd("ACL").arg("DELUSER").arg(client_user(namespace)).ignore();
        }
        if commands.is_empty() {
            return Ok(());
        }
        commands.exec_async(&mut self.connection).await.map_err(Into::into)
    }

    /// Forgets fencing tokens of locks that were not granted for a day. `unix_micros`: the operator's wall clock.
    pub async fn trim_fences(&mut self, unix_micros: u64) -> Result<(), AdminError> {
        let oldest = unix_micros.saturating_sub(u64::try_from(FENCES_KEPT.as_micros()).unwrap_or(u64::MAX));
        let mut cursor = 0_u64;
        loop {
            let (next, keys): (u64, Vec<String>) = redis::cmd("SCAN")
                .arg(cursor)
                .arg(&["MATCH", "redlock:*#fences", "COUNT", "1000"])
                .query_async(&mut self.connection)
                .await?;
            // A lock may be called so as well: its key, and its queue's, have a slash.
            for key in keys.iter().filter(|key| !key.contains('/')) {
                let mut trim = redis::cmd("ZREMRANGEBYSCORE");
                trim.arg(key).arg("-inf").arg(format!("({oldest}"));
                trim.exec_async(&mut self.connection).await?;
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }
}

// === impl Clients ===

impl Clients {
    /// The clients of these namespaces, and the operator as a client, with the passwords that follow from `key`.
    #[must_use]
    pub fn of<'a>(key: &RootKey, namespaces: impl IntoIterator<Item = &'a String>) -> Self {
        let all = namespaces.into_iter().map(String::as_str).chain([EVERY_NAMESPACE]);
        Self(all.map(|namespace| (namespace.to_owned(), key.client_password(namespace))).collect())
    }

    /// Whether a server lets in exactly these. It says nothing of their passwords and rules.
    #[must_use]
    pub fn are_known_to(&self, facts: &Facts) -> bool {
        facts.namespaces.len() == self.0.len() && facts.namespaces.iter().all(|known| self.0.contains_key(known))
    }
}

// === impl ArmedMarker ===

impl ArmedMarker {
    /// The marker that a server has; `None` if it is none of ours.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (run_id, cap) = text.split_once(' ')?;
        Some(Self { run_id: run_id.to_owned(), cap_millis: cap.parse().ok()? })
    }
}

impl fmt::Display for ArmedMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.run_id, self.cap_millis)
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
            // The text of an IO error can differ from one attempt to the next, and status would be written each time.
            _ => Self::Unreachable("no connection".to_owned()),
        }
    }
}

fn facts(info: &str, marker: Option<&str>, users: &[String]) -> Result<Facts, AdminError> {
    let mut version = field(info, "redis_version")?.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (version.next().unwrap_or(0), version.next().unwrap_or(0));
    Ok(Facts {
        run_id: field(info, "run_id")?.to_owned(),
        marker: marker.and_then(ArmedMarker::parse),
        unfit: unfit(info)?,
        namespaces: users.iter().filter_map(|user| user.strip_prefix(CLIENT_USER_PREFIX)).map(str::to_owned).collect(),
        knows_setinfo: version >= (7, 2),
    })
}

/// Why a server must not vote, in the order of what a person should look at first.
fn unfit(info: &str) -> Result<Option<String>, AdminError> {
    let role = field(info, "role")?;
    let policy = field(info, "maxmemory_policy")?;
    Ok(if role != "master" {
        Some(format!("its role is {role}: it must be a master"))
    } else if field(info, "loading")? != "0" {
        Some("it is loading data: a master must start empty".to_owned())
    } else if policy != "noeviction" {
        Some(format!("its maxmemory-policy is {policy}: it must be noeviction, or held locks would be forgotten"))
    } else {
        None
    })
}

fn field<'a>(info: &'a str, name: &str) -> Result<&'a str, AdminError> {
    let value = info.lines().find_map(|line| line.split_once(':').filter(|(key, _)| *key == name));
    value.map(|(_, value)| value.trim()).ok_or_else(|| AdminError::Refused(format!("INFO without {name}")))
}

#[cfg(test)]
#[path = "arm_tests.rs"]
mod tests;
