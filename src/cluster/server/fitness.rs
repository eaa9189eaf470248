//! What a server says of itself, and whether it is fit to vote.

use std::collections::{BTreeMap, BTreeSet};

use redlock_engine::key::{ARMED_KEY, PREFIX as KEY_PREFIX};
use redlock_engine::marker::ArmedMarker;

use super::{Admin, AdminError};
use crate::contract::names::CLIENT_USER_PREFIX;

/// Why a server with such keys is unfit. Their number is left out: it can change at each look, and each change of the text would be
/// a write of the status.
const FOREIGN_KEYS: &str = "it has keys of unknown origin: a master must serve locks alone";

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Identifies the server process: Redis draws a new one at each start.
    pub(crate) run_id: String,
    /// The armed marker, whichever process it names.
    pub(crate) marker: Option<ArmedMarker>,
    /// Why it must not be armed; `None` if it may.
    pub(crate) unfit: Option<String>,
    /// Namespaces whose clients can log in, each with the digests of its passwords.
    pub(crate) namespaces: BTreeMap<String, BTreeSet<String>>,
    /// It has `CLIENT SETINFO`.
    pub(crate) knows_setinfo: bool,
}

// === impl Facts ===

impl Facts {
    /// Whether the marker names this very process. A marker of another process came back with old data and proves nothing.
    pub(crate) fn is_armed(&self) -> bool {
        self.marker.as_ref().is_some_and(|marker| marker.run_id == self.run_id)
    }
}

// === impl Admin ===

impl Admin {
    /// What the server says of itself.
    pub(crate) async fn facts(&mut self) -> Result<Facts, AdminError> {
        let (info, marker, keys, users): (String, Option<String>, u64, Vec<String>) = redis::pipe()
            .cmd("INFO")
            .arg(&["server", "replication", "persistence", "memory"])
            .cmd("GET")
            .arg(ARMED_KEY)
            .cmd("DBSIZE")
            .cmd("ACL")
            .arg("LIST")
            .query_async(&mut self.connection)
            .await?;
        let facts = parse_facts(&info, marker.as_deref(), &users)?;
        if facts.is_armed() || facts.unfit.is_some() || keys == 0 || !self.has_foreign_keys().await? {
            return Ok(facts);
        }
        Ok(Facts { unfit: Some(FOREIGN_KEYS.to_owned()), ..facts })
    }

    /// Whether the server is armed: its `run_id`, and whether the marker names it.
    pub(crate) async fn check(&mut self) -> Result<(String, bool), AdminError> {
        let (info, marker): (String, Option<String>) =
            redis::pipe().cmd("INFO").arg("server").cmd("GET").arg(ARMED_KEY).query_async(&mut self.connection).await?;
        let run_id = field(&info, "run_id")?.to_owned();
        let armed = marker.as_deref().and_then(ArmedMarker::parse).is_some_and(|marker| marker.run_id == run_id);
        Ok((run_id, armed))
    }

    /// Whether the server has keys that do not belong to locks.
    ///
    /// Keys of locks are no obstacle. They were written by clients of this very process, since it started empty: it may have been
    /// about to be armed.
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
}

fn parse_facts(info: &str, marker: Option<&str>, users: &[String]) -> Result<Facts, AdminError> {
    let mut version = field(info, "redis_version")?.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (version.next().unwrap_or(0), version.next().unwrap_or(0));
    Ok(Facts {
        run_id: field(info, "run_id")?.to_owned(),
        marker: marker.and_then(ArmedMarker::parse),
        unfit: unfit(info)?,
        namespaces: users.iter().filter_map(|user| parse_user(user)).collect(),
        knows_setinfo: version >= (7, 2),
    })
}

/// The namespace of a client's user and the digests of its passwords, from a line of `ACL LIST`: `user ns-shop on #… ~redlock:shop/* …`.
fn parse_user(line: &str) -> Option<(String, BTreeSet<String>)> {
    let mut words = line.split(' ');
    let namespace = words.nth(1)?.strip_prefix(CLIENT_USER_PREFIX)?;
    Some((namespace.to_owned(), words.filter_map(|word| word.strip_prefix('#')).map(str::to_owned).collect()))
}

/// Why a server must not vote; the most important reason first.
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

/// The value of a field of `INFO`.
fn field<'a>(info: &'a str, name: &str) -> Result<&'a str, AdminError> {
    let value = info.lines().find_map(|line| line.split_once(':').filter(|(key, _)| *key == name));
    value.map(|(_, value)| value.trim()).ok_or_else(|| AdminError::Refused(format!("INFO without {name}")))
}

#[cfg(test)]
mod tests;
