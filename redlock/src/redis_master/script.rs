//! The scripts that run on a server: loaded at each connection, called by hash, and sent whole where the server has
//! forgotten them.

use std::sync::LazyLock;

use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use redis::{ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind};

use super::error::master_error;
use crate::error::MasterError;

/// The source of a script: the guard, by which it does nothing without keys, its heads, and the script itself.
macro_rules! source {
    ($($file:literal),+) => {
        concat!(include_str!("../scripts/guard.lua"), $(include_str!(concat!("../scripts/", $file, ".lua"))),+)
    };
}

/// Compare and reset the expiry.
pub(super) static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new("renew", source!("armed", "fence", "renew")));
/// Set where missing.
pub(super) static SEED: LazyLock<Script> = LazyLock::new(|| Script::new("seed", source!("armed", "fence", "seed")));
/// Compare and delete.
pub(super) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new("release", source!("lapse", "fence", "release")));
/// Enter the queue and read.
pub(super) static ENQUEUE: LazyLock<Script> =
    LazyLock::new(|| Script::new("enqueue", source!("owner", "lapse", "enqueue")));
/// Read owner, remaining time and fence.
pub(super) static READ: LazyLock<Script> = LazyLock::new(|| Script::new("read", source!("owner", "read")));

/// The sources of all scripts. Where clients may not run EVAL, an administrator loads them with SCRIPT LOAD.
#[must_use]
pub fn scripts() -> [&'static str; 5] {
    all().map(|script| script.source)
}

/// All scripts.
pub(super) fn all() -> [&'static Script; 5] {
    [&RENEW, &SEED, &RELEASE, &ENQUEUE, &READ]
}

/// A script. Each is safe to run twice: where an answer was lost, it may be called again.
#[derive(Debug)]
pub(super) struct Script {
    name: &'static str,
    source: &'static str,
    hash: String,
}

impl Script {
    fn new(name: &'static str, source: &'static str) -> Self {
        Self { name, source, hash: redis::Script::new(source).get_hash().to_owned() }
    }

    /// Its name in errors.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Runs it. Where the server has forgotten it (`SCRIPT FLUSH`), EVAL rather than SCRIPT LOAD: it needs one permission
    /// less, and a second flush in between does no harm. The second round trip may come too late: then the outcome is
    /// unknown, as with any answer that does not come.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        mut connection: MultiplexedConnection,
        keys: &[&str],
        args: &[&str],
    ) -> RedisResult<T> {
        let command = |name: &str, script: &str| {
            let texts = keys.iter().chain(args).map(|text| text.len()).sum::<usize>();
            let mut command = redis::Cmd::with_capacity(3 + keys.len() + args.len(), script.len() + texts + 16);
            command.arg(name).arg(script).arg(keys.len()).arg(keys).arg(args);
            command
        };
        match command("EVALSHA", &self.hash).query_async(&mut connection).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                command("EVAL", self.source).query_async(&mut connection).await
            }
            answer => answer,
        }
    }
}

/// Lets the server run each script without keys, so that it knows them all: nothing more than EVAL needs to be permitted.
/// Only those that it does not know are sent: one that its other clients use, or an administrator has [loaded](scripts), is
/// not. So a server whose clients may not EVAL is fit where all are loaded.
pub(super) async fn load(connection: &mut MultiplexedConnection) -> Result<(), MasterError> {
    let all = all();
    let failures = run_all(connection, all.iter().map(|script| ("EVALSHA", script.hash.as_str()))).await?;
    let mut unknown = Vec::new();
    for (script, failure) in all.into_iter().zip(failures) {
        match failure {
            Some(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => unknown.push(script.source),
            Some(error) => return Err(refusal("EVALSHA", &error, "permit EVALSHA, which runs the scripts")),
            None => {}
        }
    }
    if unknown.is_empty() {
        return Ok(());
    }
    let failures = run_all(connection, unknown.into_iter().map(|source| ("EVAL", source))).await?;
    match failures.into_iter().flatten().next() {
        Some(error) => Err(refusal("EVAL", &error, "permit EVAL, or load the scripts with SCRIPT LOAD")),
        None => Ok(()),
    }
}

/// Runs scripts without keys, each by a command of its own, and returns what went wrong with each.
async fn run_all<'a>(
    connection: &mut MultiplexedConnection,
    scripts: impl ExactSizeIterator<Item = (&'a str, &'a str)>,
) -> Result<Vec<Option<RedisError>>, MasterError> {
    let (mut commands, count) = (redis::Pipeline::new(), scripts.len());
    for (command, script) in scripts {
        commands.cmd(command).arg(script).arg(0);
    }
    let answers = connection.req_packed_commands(&commands, 0, count).await.map_err(|e| master_error(&e))?;
    Ok(answers.into_iter().map(|answer| answer.extract_error().err()).collect())
}

/// The error of a server that does not run `command`, with what to do about it.
fn refusal(command: &str, error: &RedisError, remedy: &str) -> MasterError {
    match master_error(error) {
        MasterError::Auth(why) => MasterError::Auth(format!("{why}; {remedy}")),
        MasterError::Protocol(why) if why.contains("unknown command") => {
            MasterError::Misconfigured(format!("has no command {command}: {remedy}"))
        }
        other => other,
    }
}
