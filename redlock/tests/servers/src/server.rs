//! Redis servers of a test: real processes on free ports, ended when dropped.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redlock_engine::{Address, Client, Credentials, Endpoint, Health, Lease, LockKey, Marker, RedisMaster};
use tempfile::TempDir;
use tokio::process::{Child, Command};

/// Cap on leases in the marker of an armed server.
pub const CAP: Duration = Duration::from_secs(60);
/// Limit on a call to a master: generous, since a loaded machine must not make a test fail.
pub const CALL_TIMEOUT: Duration = Duration::from_millis(500);
/// How long an event may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A running `redis-server`.
pub struct Server {
    pub port: u16,
    directory: TempDir,
    process: Child,
    flags: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl Server {
    /// Starts a server without a marker, and waits until it answers.
    pub async fn start(flags: &[&str]) -> Self {
        Self::start_in(&[], flags).await
    }

    /// The same, with environment variables.
    pub async fn start_in(environment: &[(&'static str, String)], flags: &[&str]) -> Self {
        let flags: Vec<_> = flags.iter().map(ToString::to_string).collect();
        // Another process may take a free port before the server does: then the server ends, and the next is tried.
        for _ in 0..20 {
            let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
            let directory = tempfile::tempdir().expect("a folder for the server");
            let process = spawn(port, &directory, &flags, environment);
            let (flags, environment) = (flags.clone(), environment.to_vec());
            let mut server = Self { port, directory, process, flags, environment };
            if server.answers().await {
                return server;
            }
        }
        panic!("redis-server did not start on any of 20 ports: is it installed?");
    }

    /// Starts so many armed servers.
    pub async fn start_armed(count: usize) -> Vec<Self> {
        let servers = futures::future::join_all((0..count).map(|_| Self::start(&[]))).await;
        for server in &servers {
            server.arm().await;
        }
        servers
    }

    async fn answers(&mut self) -> bool {
        for _ in 0..1000 {
            if self.process.try_wait().expect("the state of a child").is_some() {
                return false;
            }
            // Another process's server on this port would have another folder.
            let mut config = redis::cmd("CONFIG");
            if let Ok(mut connection) = self.connect().await
                && let Ok((_, folder)) =
                    config.arg("GET").arg("dir").query_async::<(String, String)>(&mut connection).await
            {
                return folder == self.directory.path().canonicalize().expect("its folder").to_string_lossy();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    async fn connect(&self) -> redis::RedisResult<redis::aio::MultiplexedConnection> {
        // Longer limits than the library's: the machine may be busy.
        let config = redis::AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE));
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?;
        client.get_multiplexed_async_connection_with_config(&config.set_response_timeout(Some(PATIENCE))).await
    }

    /// Runs a command, given in words.
    pub async fn run<T: redis::FromRedisValue>(&self, command: &str) -> T {
        self.ask(command).await.unwrap_or_else(|e| panic!("{command}: {e}"))
    }

    /// Runs a command, given in words, that the server may refuse.
    pub async fn ask<T: redis::FromRedisValue>(&self, command: &str) -> redis::RedisResult<T> {
        let mut words = command.split_whitespace();
        let mut request = redis::cmd(words.next().expect("a command"));
        for word in words {
            request.arg(word);
        }
        request.query_async(&mut self.connect().await?).await
    }

    /// How often a command was carried out, by clients and scripts.
    pub async fn calls(&self, command: &str) -> u64 {
        self.count(command, "calls").await
    }

    /// How often a command was refused before it was carried out, for want of permission for one.
    pub async fn refusals(&self, command: &str) -> u64 {
        self.count(command, "rejected_calls").await
    }

    async fn count(&self, command: &str, field: &str) -> u64 {
        let info: redis::InfoDict = self.run("INFO commandstats").await;
        let counts = info.get::<String>(&format!("cmdstat_{command}")).unwrap_or_default();
        let count = counts.split(',').filter_map(|count| count.split_once('=')).find(|(name, _)| *name == field);
        count.map_or(0, |(_, count)| count.parse().expect("a number"))
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        self.directory.path()
    }

    /// Writes the marker of this very process.
    pub async fn arm(&self) {
        let info: redis::InfoDict = self.run("INFO server").await;
        let marker = format!("{} {}", info.get::<String>("run_id").expect("a run_id"), CAP.as_millis());
        let mut connection = self.connect().await.expect("a connection");
        let () = redis::cmd("SET").arg("redlock:armed").arg(marker).query_async(&mut connection).await.expect("armed");
    }

    /// Value of a key.
    pub async fn get(&self, key: &LockKey) -> Option<String> {
        self.run(&format!("GET {}", key.redis_key())).await
    }

    /// Deletes the key of a lock, if it has this value.
    pub async fn delete_of(&self, key: &LockKey, value: &str) {
        let compare_and_delete = "return(redis.call('GET',KEYS[1])==ARGV[1])and(redis.call('DEL',KEYS[1]))";
        let _: redis::Value = self.run(&format!("EVAL {compare_and_delete} 1 {} {value}", key.redis_key())).await;
    }

    /// What is left of a key, in milliseconds; -2 without.
    pub async fn pttl(&self, key: &LockKey) -> i64 {
        self.run(&format!("PTTL {}", key.redis_key())).await
    }

    /// Puts a place of somebody else's into a lock's queue.
    pub async fn enter_queue(&self, key: &LockKey, score: i64, place: &str) {
        let mut connection = self.connect().await.expect("a connection");
        let mut command = redis::cmd("ZADD");
        let () =
            command.arg(key.queue_key()).arg(score).arg(place).query_async(&mut connection).await.expect("entered");
    }

    /// A connection that listens to a channel.
    pub async fn subscriber(&self, channel: &str) -> redis::aio::PubSub {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).expect("an address");
        let mut subscriber = client.get_async_pubsub().await.expect("a connection");
        subscriber.subscribe(channel).await.expect("subscribed");
        subscriber
    }

    /// How many listen for releases of a lock.
    pub async fn listeners(&self, key: &LockKey) -> usize {
        self.run::<Vec<String>>(&format!("PUBSUB CHANNELS {}#*", key.redis_key())).await.len()
    }

    fn signal(&self, signal: Signal) {
        let pid = self.process.id().expect("a running server");
        kill(Pid::from_raw(pid.cast_signed()), signal).expect("a signal to our own child");
    }

    /// Ends it as a crash does, and waits until it is gone.
    pub async fn crash(&mut self) {
        self.process.kill().await.expect("SIGKILL to our own child");
    }

    /// Starts it again on the same port and folder, without a marker.
    pub async fn restart(&mut self) {
        self.process = spawn(self.port, &self.directory, &self.flags, &self.environment);
        assert!(self.answers().await, "the server did not come back on its port");
    }

    /// Lets it hang: connections stay, nothing is answered.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Ends [`Self::freeze`].
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// The server as a master.
    pub fn endpoint(&self, marker: Marker) -> Endpoint {
        Endpoint {
            name: format!("r{}", self.port),
            address: Address::Tcp("127.0.0.1".to_owned(), self.port),
            credentials: Credentials::None,
            marker,
        }
    }
}

fn spawn(port: u16, directory: &TempDir, flags: &[String], environment: &[(&'static str, String)]) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
        .arg(directory.path())
        .args(flags)
        .envs(environment.iter().cloned())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("redis-server: install the package redis-server")
}

/// A client of these servers, as masters of a `RedisLockCluster`.
pub fn client(servers: &[Server]) -> Client {
    Client::new(servers.iter().map(|s| RedisMaster::connect(s.endpoint(Marker::Required))), CALL_TIMEOUT)
        .expect("valid settings")
}

/// The same once it is connected to all of them, so that a first call takes no longer than any other.
pub async fn connected(servers: &[Server]) -> Client {
    let client = client(servers);
    until_connected(&client).await;
    client
}

/// Waits until a client is connected to all its masters.
pub async fn until_connected(client: &Client) {
    eventually("all are connected", async || {
        client.masters().iter().all(|n| matches!(n.health(), Health::Up { .. })).then_some(())
    })
    .await;
}

/// A lock of a namespace of tests.
pub fn key(name: &str) -> LockKey {
    LockKey::new("tests", name).expect("a valid name")
}

/// Deletes a lease's key on all servers until the lease has ended: a renewal in between seeds some of them again.
pub async fn delete_until_lost(servers: &[Server], lease: &Lease) {
    eventually("the lease is lost", async || {
        for server in servers {
            server.delete_of(lease.key(), &lease.owner().to_string()).await;
        }
        (!lease.is_held()).then_some(())
    })
    .await;
}

/// Waits until `check` answers something, asking again and again.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, check: impl Fn() -> F) -> T {
    let asked = async {
        loop {
            if let Some(answer) = check().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}
