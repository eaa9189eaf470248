//! Where contenders meet: Redis servers, one lock on them, the processes that contend for it, and their reports.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use redlock_engine::permissions::acl_rules;
use redlock_engine::{Client, Credentials, Endpoint, LeaseOptions, LockKey, Marker, RedisMaster};
use redlock_test_servers::server::{PATIENCE, Server};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::checker::{Contender, Entry, Library};
use crate::contend;
use crate::protocol::{Order, Report, Stamp};

/// Our contenders' call timeout.
const CALL_TIMEOUT: Duration = Duration::from_millis(100);
/// The user of the lock's namespace on the masters.
const USER: &str = "ns-interop";

/// Five masters and a lock on them, with the user that the operator creates for the lock's namespace.
pub struct Arena {
    pub servers: Vec<Server>,
    pub key: LockKey,
    /// The longest TTL that anybody asks for, and that masters grant to ours.
    longest_ttl: Duration,
    password: String,
    /// Files with the user's name and password, as they are mounted from the Secret.
    secret: TempDir,
    history: Arc<watch::Sender<Vec<Entry>>>,
    contenders: AtomicU32,
    seed: u64,
}

/// A contender that takes orders.
pub struct Handle {
    pub contender: Contender,
    orders: mpsc::UnboundedSender<Order>,
    process: Option<Child>,
    /// Ends when all its reports are in the history.
    reporting: JoinHandle<()>,
}

impl Arena {
    pub async fn start(longest_ttl: Duration, seed: u64) -> Self {
        let servers = futures::future::join_all((0..5).map(|_| Server::start(&[]))).await;
        let key = LockKey::new("interop", "job").expect("a valid key");
        let password = format!("{:032x}", rand::random::<u128>());
        let secret = tempfile::tempdir().expect("a folder for the Secret");
        for (file, content) in [("username", USER), ("password", password.as_str())] {
            std::fs::write(secret.path().join(file), content).expect("a file of the Secret");
        }
        let (history, contenders) = (Arc::new(watch::Sender::new(Vec::new())), AtomicU32::new(0));
        let arena = Self { servers, key, longest_ttl, password, secret, history, contenders, seed };
        for server in &arena.servers {
            arena.arm(server).await;
        }
        arena
    }

    /// A client of our engine, as a process of its own would have one.
    pub fn client(&self, call_timeout: Duration) -> Client {
        let file = |name: &str| self.secret.path().join(name);
        let credentials = Credentials::Files { username: file("username"), password: file("password") };
        let masters = self.servers.iter().map(|server| {
            let endpoint = server.endpoint(Marker::Required);
            RedisMaster::connect(Endpoint { credentials: credentials.clone(), ..endpoint })
        });
        Client::new(masters, call_timeout).expect("valid settings")
    }

    /// Starts a contender as a process of its own, and checks that its clock is ours.
    pub async fn start_contender(&self, library: Library, ttl: Duration) -> Handle {
        self.spawn(library, ttl, &[]).await
    }

    /// Starts a contender that claims sections without the lock.
    pub async fn start_cheat(&self, library: Library, ttl: Duration) -> Handle {
        self.spawn(library, ttl, &["--unlocked"]).await
    }

    async fn spawn(&self, library: Library, ttl: Duration, flags: &[&str]) -> Handle {
        let contender = self.new_contender(library);
        let masters: Vec<_> = self.servers.iter().map(|s| format!("127.0.0.1:{}", s.port)).collect();
        let millis = |time: Duration| format!("{}ms", time.as_millis());
        let mut command = match library {
            Library::Redsync => Command::new(program("redsync")),
            Library::Redlock4 | Library::Redlock5 => {
                let mut command = Command::new("node");
                let line = if library == Library::Redlock4 { "4" } else { "5" };
                command.arg(program("node-redlock/main.js")).args(["--line", line]);
                command
            }
            Library::Ours => {
                let mut command = Command::new(our_program());
                command.args(["--identity", &format!("c{}", contender.number)]);
                command.args(["--call-timeout", &millis(CALL_TIMEOUT)]);
                command
            }
        };
        command.args(["--masters", &masters.join(","), "--key", self.key.redis_key(), "--ttl", &millis(ttl)]);
        command.arg("--secret").arg(self.secret.path());
        command.args(["--seed", &self.seed_of(contender).to_string()]).args(flags);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}; `make interop` builds it"));
        let (input, output) = process.stdin.take().zip(process.stdout.take()).expect("pipes to the process");
        let (orders, to_write) = mpsc::unbounded_channel();
        tokio::spawn(write_orders(to_write, input));
        let reporting = tokio::spawn(read_reports(contender, output, Arc::clone(&self.history)));
        let handle = Handle { contender, orders, process: Some(process), reporting };
        self.check_clock(&handle).await;
        handle
    }

    /// Starts a contender of our engine in the test's own process.
    pub fn join(&self, ttl: Duration) -> Handle {
        let contender = self.new_contender(Library::Ours);
        let (orders, ordered) = mpsc::unbounded_channel();
        let history = Arc::clone(&self.history);
        let ours = contend::Contender {
            client: self.client(CALL_TIMEOUT),
            key: self.key.clone(),
            options: LeaseOptions::new(format!("c{}", contender.number), ttl),
            unlocked: false,
            random: StdRng::seed_from_u64(self.seed_of(contender)),
            orders: ordered,
            report: move |report| history.send_modify(|all| all.push(Entry::Reported(contender, report))),
        };
        Handle { contender, orders, process: None, reporting: tokio::spawn(ours.run()) }
    }

    fn new_contender(&self, library: Library) -> Contender {
        Contender { library, number: self.contenders.fetch_add(1, Ordering::Relaxed) }
    }

    fn seed_of(&self, contender: Contender) -> u64 {
        // Small enough for JavaScript's numbers.
        (self.seed + u64::from(contender.number)) % (1 << 31)
    }

    /// The time of its clock must lie between two readings of ours.
    async fn check_clock(&self, handle: &Handle) {
        let (since, before) = (self.so_far(), Stamp::now());
        handle.tell(Order::Clock);
        let shown = self.report_of(handle.contender, since, |report| match report {
            Report::Clock(now) => Some(*now),
            _ => None,
        });
        let (shown, after) = (shown.await, Stamp::now());
        assert!(before <= shown && shown <= after, "{:?} has another clock", handle.contender);
    }

    /// How many entries there are by now: later ones are new.
    pub fn so_far(&self) -> usize {
        self.history.borrow().len()
    }

    /// All entries.
    pub fn history(&self) -> Vec<Entry> {
        self.history.borrow().clone()
    }

    /// Waits for the first entry after `since` that `pick` accepts, and returns what `pick` makes of it.
    pub async fn entry<T>(&self, since: usize, what: &str, mut pick: impl FnMut(&Entry) -> Option<T>) -> T {
        let mut history = self.history.subscribe();
        let mut found = None;
        let seen = history.wait_for(|all| {
            found = all[since..].iter().find_map(&mut pick);
            found.is_some()
        });
        // An arena keeps its history: the channel does not close.
        drop(timeout(PATIENCE, seen).await);
        found.unwrap_or_else(|| {
            panic!("not within {PATIENCE:?}: {what}; the last that was heard: {:#?}", self.last_entries())
        })
    }

    fn last_entries(&self) -> Vec<Entry> {
        let all = self.history.borrow();
        all[all.len().saturating_sub(20)..].to_vec()
    }

    /// Waits for the first report of a contender after `since` that `pick` accepts.
    pub async fn report_of<T>(
        &self,
        contender: Contender,
        since: usize,
        mut pick: impl FnMut(&Report) -> Option<T>,
    ) -> T {
        let what = format!("a report of {contender:?}");
        let picked = self.entry(since, &what, |entry| match entry {
            Entry::Reported(by, report) if *by == contender => pick(report),
            _ => None,
        });
        picked.await
    }

    /// The value and the end of validity of a contender's next section.
    pub async fn section_of(&self, contender: Contender, since: usize) -> (String, Stamp) {
        let started = self.report_of(contender, since, |report| match report {
            Report::Start { value, until, .. } => Some((value.clone(), *until)),
            _ => None,
        });
        started.await
    }

    /// Waits until each library has held the lock after `since`.
    pub async fn progress_of_all(&self, since: usize) {
        for library in Library::ALL {
            let what = format!("a section of {library}");
            let begun = self.entry(since, &what, |entry| {
                let Entry::Reported(by, Report::Start { at, until, .. }) = entry else { return None };
                (by.library == library && at < until).then_some(())
            });
            begun.await;
        }
    }

    /// Kills a contender's process, and notes when it was dead. All its reports are in the history then.
    pub async fn kill(&self, handle: Handle) -> Stamp {
        let Handle { contender, process, reporting, .. } = handle;
        process.expect("a process of its own").kill().await.expect("SIGKILL to our own child");
        let died = Stamp::now();
        reporting.await.expect("its reports understood");
        self.history.send_modify(|all| all.push(Entry::Dead(contender, died)));
        died
    }

    /// Ends a contender without killing it.
    pub async fn end(&self, handle: Handle) {
        let Handle { contender, orders, process, reporting } = handle;
        drop(orders);
        if let Some(mut process) = process {
            let status = timeout(PATIENCE, process.wait()).await.unwrap_or_else(|_| panic!("{contender:?} goes on"));
            assert!(status.expect("its status").success(), "{contender:?} failed");
        }
        timeout(PATIENCE, reporting).await.expect("no more reports").expect("its reports understood");
    }

    /// Arms a master that was down at `crashed`, as the operator does: only when every lock that it may have voted for has
    /// expired.
    pub async fn rearm_master(&self, index: usize, crashed: Instant) {
        sleep_until(crashed + self.longest_ttl + self.longest_ttl / 10).await;
        self.arm(&self.servers[index]).await;
    }

    /// Arms a master as the operator does: creates the user, which an empty master does not have, and writes the marker of
    /// its present process.
    async fn arm(&self, server: &Server) {
        let rules = acl_rules(self.key.namespace(), false).join(" ");
        let () = server.run(&format!("ACL SETUSER {USER} reset on >{} {rules}", self.password)).await;
        server.arm_with(self.longest_ttl).await;
    }
}

impl Handle {
    pub fn tell(&self, order: Order) {
        self.orders.send(order).unwrap_or_else(|_| panic!("{:?} takes no orders", self.contender));
    }

    /// Stops its process.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Ends [`Self::freeze`].
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    pub fn is_process(&self) -> bool {
        self.process.is_some()
    }

    fn signal(&self, signal: Signal) {
        let pid = self.process.as_ref().and_then(Child::id).expect("a running process");
        kill(Pid::from_raw(pid.cast_signed()), signal).expect("a signal to our own child");
    }
}

/// A program that hack/interop.sh built.
fn program(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/interop").join(name)
}

/// Our own contender, which Cargo builds as an example, beside the folder of the tests.
fn our_program() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    test.ancestors().nth(2).expect("target/<profile>/deps/<test>").join("examples/interop-contender")
}

async fn write_orders(mut orders: mpsc::UnboundedReceiver<Order>, mut input: ChildStdin) {
    while let Some(order) = orders.recv().await {
        // The test learns from the missing report that the process has ended.
        if input.write_all(format!("{order}\n").as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read_reports(contender: Contender, output: ChildStdout, history: Arc<watch::Sender<Vec<Entry>>>) {
    let mut lines = BufReader::new(output).lines();
    while let Some(line) = lines.next_line().await.expect("the output of a process") {
        let report = line.parse().unwrap_or_else(|_| panic!("{contender:?} reports {line:?}"));
        history.send_modify(|all| all.push(Entry::Reported(contender, report)));
    }
}
