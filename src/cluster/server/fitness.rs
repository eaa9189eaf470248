//! What a server says of itself, and whether it is fit to vote.

use std::collections::{BTreeMap, BTreeSet};

use redlock_engine::key::ARMED_KEY;
use redlock_engine::marker::ArmedMarker;

use super::arm::{ARMING_KEY, DISARMED_KEY};
use super::clock::{ClockReading, LEAST_GAP, Moment};
use super::scripts::digests;
use super::{Admin, AdminError};
use crate::contract::names::CLIENT_USER_PREFIX;

/// Why a server with such keys is unfit. Their number is left out: it can change at each look, and each change of the text would be
/// a write of the status.
const FOREIGN_KEYS: &str =
    "it has keys and was never armed: a master must start empty and serve locks alone; delete its pod";
/// A script as harmless as any: it reads.
const PROBE: &str = "return redis.call('PTTL', KEYS[1])";

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Identifies the server process: Redis draws a new one at each start.
    pub(crate) run_id: String,
    /// The armed marker, whichever process it names.
    pub(crate) marker: Option<ArmedMarker>,
    /// Why it must not be armed, or not be armed any longer; `None` if it may.
    pub(crate) unfit: Option<String>,
    /// Namespaces whose clients can log in, each with the digests of its passwords.
    pub(crate) namespaces: BTreeMap<String, BTreeSet<String>>,
    /// It has `CLIENT SETINFO`.
    pub(crate) knows_setinfo: bool,
    /// It has the scripts that the operator loads.
    pub(crate) has_scripts: bool,
    /// Its clock.
    pub(crate) clock: ClockReading,
}

/// What a server answered, as it is parsed.
struct Answers {
    info: String,
    marker: Option<String>,
    nonce: Option<String>,
    disarmed: Option<String>,
    /// The lines of `ACL LIST`.
    users: Vec<String>,
    scripts: Vec<bool>,
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
    /// What the server says of itself, after which it may be armed on this connection.
    ///
    /// One that is not armed is written to: its facts begin a decision, so that none of an earlier leader is carried out after this.
    /// It is also asked to do what a master must: to run a script, and to let time pass.
    pub(crate) async fn facts(&mut self) -> Result<Facts, AdminError> {
        let before = self.poll().await?;
        if before.is_armed() {
            return Ok(before);
        }
        match self.begin_arming().await {
            Ok(()) => {}
            Err(AdminError::Refused(why)) => {
                let unfit = before.unfit.unwrap_or_else(|| format!("it cannot be written to: {why}"));
                return Ok(Facts { unfit: Some(unfit), ..before });
            }
            Err(error) => return Err(error),
        }
        let cannot_run_scripts = match self.probe_scripts().await {
            Ok(()) => None,
            Err(AdminError::Refused(why)) => {
                Some(format!("it cannot run scripts, without which no lock is released: {why}"))
            }
            Err(error) => return Err(error),
        };
        tokio::time::sleep(2 * LEAST_GAP).await;
        let facts = self.poll().await?;
        let fault = facts.clock.fault_since(&before.clock).map(|fault| fault.to_string());
        Ok(Facts { unfit: facts.unfit.or(cannot_run_scripts).or(fault), ..facts })
    }

    /// What the server says of itself. Changes nothing.
    pub(crate) async fn poll(&mut self) -> Result<Facts, AdminError> {
        let asked = Moment::now();
        let (time, info, (marker, nonce, disarmed), users, scripts) = redis::pipe()
            .cmd("TIME")
            .cmd("INFO")
            .arg(&["server", "replication", "persistence", "memory", "cluster", "keyspace"])
            .cmd("MGET")
            .arg(&[ARMED_KEY, ARMING_KEY, DISARMED_KEY])
            .cmd("ACL")
            .arg("LIST")
            .cmd("SCRIPT")
            .arg("EXISTS")
            .arg(digests())
            .query_async(&mut self.connection)
            .await?;
        let clock = ClockReading::of(time, asked, Moment::now())?;
        parse_facts(&Answers { info, marker, nonce, disarmed, users, scripts }, clock)
    }

    /// Runs a script in both ways in which clients run them.
    async fn probe_scripts(&mut self) -> Result<(), AdminError> {
        let mut probes = redis::pipe();
        probes.cmd("EVAL").arg(PROBE).arg(1).arg(ARMING_KEY);
        probes.cmd("EVALSHA").arg(redis::Script::new(PROBE).get_hash()).arg(1).arg(ARMING_KEY);
        probes.exec_async(&mut self.connection).await.map_err(Into::into)
    }
}

fn parse_facts(answers: &Answers, clock: ClockReading) -> Result<Facts, AdminError> {
    let info = &answers.info;
    let mut version = field(info, "redis_version")?.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (version.next().unwrap_or(0), version.next().unwrap_or(0));
    let mut facts = Facts {
        run_id: field(info, "run_id")?.to_owned(),
        marker: answers.marker.as_deref().and_then(ArmedMarker::parse),
        unfit: answers.disarmed.clone().map_or_else(|| unfit(info), |why| Ok(Some(why)))?,
        namespaces: answers.users.iter().filter_map(|user| parse_user(user)).collect(),
        knows_setinfo: version >= (7, 2),
        has_scripts: answers.scripts.iter().all(|known| *known),
        clock,
    };
    let own_keys = [&answers.nonce, &answers.disarmed].into_iter().flatten().count();
    // No client can have written them: each logs in as a user, and those come with the marker.
    if !facts.is_armed() && facts.unfit.is_none() && keys(info) > own_keys {
        facts.unfit = Some(FOREIGN_KEYS.to_owned());
    }
    Ok(facts)
}

/// The namespace of a client's user and the digests of its passwords, from a line of `ACL LIST`: `user ns-shop on #… ~redlock:shop/* …`.
fn parse_user(line: &str) -> Option<(String, BTreeSet<String>)> {
    let mut words = line.split(' ');
    let namespace = words.nth(1)?.strip_prefix(CLIENT_USER_PREFIX)?;
    Some((namespace.to_owned(), words.filter_map(|word| word.strip_prefix('#')).map(str::to_owned).collect()))
}

/// Why a server must not vote; the most important reason first.
fn unfit(info: &str) -> Result<Option<String>, AdminError> {
    let (role, policy) = (field(info, "role")?, field(info, "maxmemory_policy")?);
    let replicas = field(info, "connected_slaves")?;
    Ok(if field(info, "cluster_enabled")? != "0" {
        Some("it is in cluster mode: a master must be a server on its own".to_owned())
    } else if role != "master" {
        Some(format!("its role is {role}: it must be a master"))
    } else if replicas != "0" {
        Some(format!(
            "it has {replicas} connected replicas: it must have none, or one could take its place without its locks"
        ))
    } else if field(info, "loading")? != "0" {
        Some("it is loading data: a master must start empty".to_owned())
    } else if policy != "noeviction" {
        Some(format!("its maxmemory-policy is {policy}: it must be noeviction, or held locks would be forgotten"))
    } else {
        None
    })
}

/// How many keys all its databases have.
fn keys(info: &str) -> usize {
    let databases = info.lines().filter_map(|line| line.strip_prefix("db")?.split_once(":keys="));
    databases.filter_map(|(_, counts)| counts.split(',').next()?.parse::<usize>().ok()).sum()
}

/// The value of a field of `INFO`.
fn field<'a>(info: &'a str, name: &str) -> Result<&'a str, AdminError> {
    let value = info.lines().find_map(|line| line.split_once(':').filter(|(key, _)| *key == name));
    value.map(|(_, value)| value.trim()).ok_or_else(|| AdminError::Refused(format!("INFO without {name}")))
}

#[cfg(test)]
mod tests;
