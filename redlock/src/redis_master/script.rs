//! The scripts that run on a server: called by hash, and sent whole where the server does not know them.

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, FromRedisValue, RedisResult, ServerErrorKind};

/// The source of a script that runs only on an armed master.
macro_rules! armed {
    ($file:literal) => {
        concat!(include_str!("../scripts/armed.lua"), include_str!($file))
    };
}

/// The source of a script that shows the owner.
macro_rules! with_owner {
    ($file:literal) => {
        concat!(include_str!("../scripts/owner.lua"), include_str!($file))
    };
}

/// Compare and reset the expiry.
pub(super) static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new("renew", armed!("../scripts/renew.lua")));
/// Set where missing.
pub(super) static SEED: LazyLock<Script> = LazyLock::new(|| Script::new("seed", armed!("../scripts/seed.lua")));
/// Compare and delete.
pub(super) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new("release", include_str!("../scripts/release.lua")));
/// Enter the queue and read.
pub(super) static ENQUEUE: LazyLock<Script> =
    LazyLock::new(|| Script::new("enqueue", with_owner!("../scripts/enqueue.lua")));
/// Read owner, remaining time and fence.
pub(super) static READ: LazyLock<Script> = LazyLock::new(|| Script::new("read", with_owner!("../scripts/read.lua")));

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

    /// Runs it. Where the server does not know it, EVAL rather than SCRIPT LOAD: it needs one permission less, and a
    /// `SCRIPT FLUSH` in between does no harm.
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
