//! Redis servers of a test: real processes on free ports, which end when they are dropped.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redlock_engine::key::ARMED_KEY;
use redlock_engine::marker::ArmedMarker;
use redlock_engine::{Address, Client, Credentials, Endpoint, Health, Lease, LockKey, Marker, Owner, RedisMaster};
use tempfile::TempDir;
use tokio::process::{Child, Command};

/// Cap on leases in the marker of an armed server.
pub const CAP: Duration = Duration::from_secs(60);
/// Call timeout of a test's clients: long, because a loaded machine must not make a test fail.
pub const CALL_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a test waits for an event before it fails.
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
        on_free_port(async |port| {
            let directory = tempfile::tempdir().expect("a folder for the server");
            let process = spawn(port, &directory, &flags, environment);
            let (flags, environment) = (flags.clone(), environment.to_vec());
            let mut server = Self { port, directory, process, flags, environment };
            server.has_started().await.then_some(server)
        })
        .await
    }

    /// Starts `count` armed servers.
    pub async fn start_armed(count: usize) -> Vec<Self> {
        let servers = futures::future::join_all((0..count).map(|_| Self::start(&[]))).await;
        for server in &servers {
            server.arm().await;
        }
        servers
    }

    async fn has_started(&mut self) -> bool {
        let (port, directory) = (self.port, &self.directory);
        has_started(&mut self.process, async || {
            // Another process's server on this port would have another folder.
            let mut connection = connect(port).await.ok()?;
            let mut config = redis::cmd("CONFIG");
            let (_, folder): (String, String) = config.arg("GET").arg("dir").query_async(&mut connection).await.ok()?;
            Some(folder == directory.path().canonicalize().expect("its folder").to_string_lossy())
        })
        .await
    }

    /// Runs a command, given in words.
    pub async fn run<T: redis::FromRedisValue>(&self, command: &str) -> T {
        self.ask(command).await.unwrap_or_else(|e| panic!("{command}: {e}"))
    }

    /// Runs a command, given in words, that the server may refuse.
    pub async fn ask<T: redis::FromRedisValue>(&self, command: &str) -> redis::RedisResult<T> {
        request(command).query_async(&mut connect(self.port).await?).await
    }

    /// Runs a command whose words may have spaces.
    pub async fn send<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> T {
        let mut connection = connect(self.port).await.expect("a connection");
        command.query_async(&mut connection).await.expect("an answer")
    }

    /// How often clients and scripts ran a command.
    pub async fn calls(&self, command: &str) -> u64 {
        self.count(command, "calls").await
    }

    /// How often a command was refused because the user had no permission for it.
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

    /// Writes the marker of its present process.
    pub async fn arm(&self) {
        self.arm_with(CAP).await;
    }

    /// Writes the marker of its present process, with another cap on leases.
    pub async fn arm_with(&self, cap: Duration) {
        let info: redis::InfoDict = self.run("INFO server").await;
        let marker = ArmedMarker { run_id: info.get("run_id").expect("a run_id"), cap };
        self.set(ARMED_KEY, marker.to_string().as_bytes(), &[]).await.expect("armed");
    }

    /// Sets a key, as a client of no lock library does. `None`: an option such as `NX` prevented it.
    pub async fn set(&self, key: &str, value: &[u8], options: &[&str]) -> Option<String> {
        let mut connection = connect(self.port).await.expect("a connection");
        redis::cmd("SET").arg(key).arg(value).arg(options).query_async(&mut connection).await.expect("an answer")
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

    /// How long a key still lives, in milliseconds; -2 if there is no such key.
    pub async fn pttl(&self, key: &LockKey) -> i64 {
        self.run(&format!("PTTL {}", key.redis_key())).await
    }

    /// Adds a place to a lock's queue, as another process does.
    pub async fn enter_queue(&self, key: &LockKey, score: i64, place: &str) {
        let mut connection = connect(self.port).await.expect("a connection");
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

    /// How many contenders listen for releases of a lock.
    pub async fn listeners(&self, key: &LockKey) -> usize {
        self.run::<Vec<String>>(&format!("PUBSUB CHANNELS {}#*", key.redis_key())).await.len()
    }

    /// Whether anybody listens to any channel.
    pub async fn has_listeners(&self) -> bool {
        !self.run::<Vec<String>>("PUBSUB CHANNELS").await.is_empty()
    }

    /// Connections of clients, without the connection that asks.
    pub async fn connections(&self) -> usize {
        self.run::<String>("CLIENT LIST").await.lines().filter(|line| !line.contains("cmd=client|list")).count()
    }

    fn signal(&self, signal: Signal) {
        let pid = self.process.id().expect("a running server");
        kill(Pid::from_raw(pid.cast_signed()), signal).expect("a signal to our own child");
    }

    /// Ends it as a crash does, and waits until its process has ended.
    pub async fn crash(&mut self) {
        self.process.kill().await.expect("SIGKILL to our own child");
    }

    /// Starts it again on the same port and folder. Nobody has armed the new process.
    pub async fn restart(&mut self) {
        self.process = spawn(self.port, &self.directory, &self.flags, &self.environment);
        assert!(self.has_started().await, "the server did not come back on its port");
    }

    /// Lets it hang: its connections stay open, and it answers nothing.
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
    redis_server(port, |command| {
        command.args(["--save", "", "--dir"]).arg(directory.path()).args(flags).envs(environment.iter().cloned());
    })
}

/// Starts a server on a free port. Another process may take the port first: then the server ends, `start` returns `None`,
/// and the next port is tried.
pub async fn on_free_port<S>(start: impl AsyncFn(u16) -> Option<S>) -> S {
    for _ in 0..20 {
        if let Some(server) = start(free_port()).await {
            return server;
        }
    }
    panic!("redis-server did not start on any of 20 ports: is it installed?");
}

/// A port that nobody listens to just now.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port()
}

/// A `redis-server` process on this port of loopback, which ends when it is dropped. `configure` adds its arguments: a
/// configuration file must be the first.
pub fn redis_server(port: u16, configure: impl FnOnce(&mut Command)) -> Child {
    let mut command = Command::new("redis-server");
    configure(&mut command);
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("redis-server: install the package redis-server")
}

/// Waits until a server's process answers or has ended. `is_ours` says whether the server on its port is this one, or
/// `None` while none answers.
pub async fn has_started(process: &mut Child, is_ours: impl AsyncFn() -> Option<bool>) -> bool {
    for _ in 0..1000 {
        if process.try_wait().expect("the state of a child").is_some() {
            return false;
        }
        if let Some(is_ours) = is_ours().await {
            return is_ours;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    false
}

async fn connect(port: u16) -> redis::RedisResult<redis::aio::MultiplexedConnection> {
    // Longer timeouts than the library's: the machine may be busy.
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE));
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    client.get_multiplexed_async_connection_with_config(&config.set_response_timeout(Some(PATIENCE))).await
}

/// A command that is given in words.
pub fn request(command: &str) -> redis::Cmd {
    let mut words = command.split_whitespace();
    let mut request = redis::cmd(words.next().expect("a command"));
    for word in words {
        request.arg(word);
    }
    request
}

/// A client of these servers, as masters of a `RedisLockCluster`.
pub fn client(servers: &[Server]) -> Client {
    Client::new(servers.iter().map(|s| RedisMaster::connect(s.endpoint(Marker::Required))), CALL_TIMEOUT)
        .expect("valid settings")
}

/// The same, but connected to all of them, so that its first call takes no longer than any other.
pub async fn connected(servers: &[Server]) -> Client {
    let client = client(servers);
    until_connected(&client).await;
    client
}

/// Waits until a client is connected to all its masters.
pub async fn until_connected(client: &Client) {
    eventually("all are connected", async || {
        client.masters().iter().all(|m| matches!(m.health(), Health::Up { .. })).then_some(())
    })
    .await;
}

/// Waits until every server has a lock's key with this owner. A grant needs a majority only: the rest get the key later.
pub async fn held_everywhere(servers: &[Server], key: &LockKey, owner: &Owner) {
    let owner = owner.to_string();
    for server in servers {
        eventually("the owner's key on every master", async || (server.get(key).await? == owner).then_some(())).await;
    }
}

/// Waits until no server has a lock's key. A release is answered after a majority: the rest delete the key later.
pub async fn gone_everywhere(servers: &[Server], key: &LockKey) {
    for server in servers {
        eventually("no key on any master", async || server.get(key).await.is_none().then_some(())).await;
    }
}

/// Deletes a lock's key on all servers at once: one after the other, a renewal in between would seed the first again.
pub async fn delete_everywhere(servers: &[Server], key: &LockKey) {
    let command = format!("DEL {}", key.redis_key());
    futures::future::join_all(servers.iter().map(|server| server.run::<i64>(&command))).await;
}

/// Waits until nobody listens to any channel of these servers.
pub async fn nobody_listens(servers: &[Server]) {
    for server in servers {
        eventually("nobody listens", async || (!server.has_listeners().await).then_some(())).await;
    }
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

/// Calls `check` again and again until it returns a value, and fails the test after [`PATIENCE`].
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
