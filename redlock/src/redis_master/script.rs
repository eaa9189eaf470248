//! The scripts that run on a server: loaded at each connection, called by hash, and sent whole where the server has
//! forgotten them.

use std::sync::LazyLock;

use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use redis::{ErrorKind, FromRedisValue, RedisResult, ServerErrorKind};

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
/// A server that may not be asked to EVAL is fit where an administrator has [loaded](scripts) them.
pub(super) async fn load(connection: &mut MultiplexedConnection) -> Result<(), MasterError> {
    let (mut commands, all) = (redis::Pipeline::new(), all());
    for script in all {
        commands.cmd("EVAL").arg(script.source).arg(0);
    }
    for script in all {
        commands.cmd("EVALSHA").arg(&script.hash).arg(0);
    }
    let answers = connection.req_packed_commands(&commands, 0, 2 * all.len()).await.map_err(|e| master_error(&e))?;
    let mut failures: Vec<_> = answers.into_iter().map(|answer| answer.extract_error().err()).collect();
    let not_run = failures.split_off(all.len()).into_iter().flatten().next();
    let not_loaded = failures.into_iter().flatten().next();
    let Some(not_run) = not_run else { return Ok(()) };
    let is_unknown = not_run.kind() == ErrorKind::Server(ServerErrorKind::NoScript);
    let (command, error, remedy) = match not_loaded {
        Some(error) if is_unknown => ("EVAL", error, "permit EVAL, or load the scripts with SCRIPT LOAD"),
        _ => ("EVALSHA", not_run, "permit EVALSHA, which runs the scripts"),
    };
    Err(match master_error(&error) {
        MasterError::Auth(why) => MasterError::Auth(format!("{why}; {remedy}")),
        MasterError::Protocol(why) if why.contains("unknown command") => {
            MasterError::Misconfigured(format!("has no command {command}: {remedy}"))
        }
        other => other,
    })
}
