//! Where the chaos happens: real Redis servers behind links, contenders as processes, and a watch on what the masters have.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redlock_engine::LockKey;
use redlock_engine::permissions::acl_rules;
use redlock_test_servers::faketime::library;
use redlock_test_servers::proxy::Proxy;
use redlock_test_servers::server::Server;
use redlock_test_servers::stamp::Stamp;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::Mutex;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::history::{Contender, ContenderFault, Event, History};
use crate::idle::LONGEST_TTL;
use crate::protocol::Report;

/// Contenders' call timeout: long, because the machine is busy.
const CALL_TIMEOUT: Duration = Duration::from_millis(100);
/// The user of the locks' namespace on the masters.
const USER: &str = "ns-soak";
const NAMESPACE: &str = "soak";
pub const MASTERS: usize = 5;
/// Names of the locks.
pub const LOCKS: [&str; 3] = ["main", "second", "third"];
/// How often the masters are read.
const POLL: Duration = Duration::from_millis(25);

/// Five masters, the locks on them, and the history of what happens.
pub struct Arena {
    pub masters: Vec<Master>,
    pub history: History,
    password: String,
    /// Files with the user's name and password, as they are mounted from the Secret.
    secret: TempDir,
    watches: Vec<AbortHandle>,
    seed: u64,
}

/// A master and the link by which contenders reach it.
pub struct Master {
    pub server: Mutex<Server>,
    pub link: Proxy,
}

/// A contender's process. It is killed when this is dropped.
pub struct Process {
    pub contender: Contender,
    child: Child,
    /// Ends when all its reports are in the history.
    reporting: JoinHandle<()>,
    is_stopped: AtomicBool,
}

impl Arena {
    pub async fn start(seed: u64) -> Self {
        let history = History::default();
        let password = format!("{:032x}", rand::random::<u128>());
        let secret = tempfile::tempdir().expect("a folder for the Secret");
        for (file, content) in [("username", USER), ("password", password.as_str())] {
            std::fs::write(secret.path().join(file), content).expect("a file of the Secret");
        }
        let (mut masters, mut watches) = (Vec::new(), Vec::new());
        for index in 0..MASTERS {
            let server = Server::start(&[]).await;
            watches.push(tokio::spawn(watch_master(index, server.port, history.clone())).abort_handle());
            masters.push(Master { link: Proxy::to(server.port).await, server: Mutex::new(server) });
        }
        watches.push(tokio::spawn(watch_clock(history.clone())).abort_handle());
        let arena = Self { masters, history, password, secret, watches, seed };
        for index in 0..MASTERS {
            arena.arm(index).await;
        }
        arena
    }

    /// Arms a master as the operator does: creates the user, which an empty master does not have, and writes the marker of
    /// its present process.
    pub async fn arm(&self, index: usize) {
        let server = self.masters[index].server.lock().await;
        let rules = acl_rules(NAMESPACE, false).join(" ");
        let () = server.run(&format!("ACL SETUSER {USER} reset on >{} {rules}", self.password)).await;
        server.arm_with(LONGEST_TTL).await;
        self.history.push(Event::Up(index));
    }

    /// Arms a master that has lost its data, as the operator does: only when every lock that it may have voted for has
    /// expired.
    pub async fn rearm(&self, index: usize, lost: Instant) {
        sleep_until(lost + LONGEST_TTL + LONGEST_TTL / 10).await;
        self.arm(index).await;
    }

    /// Starts a contender whose wall clock differs by so many seconds. `cheat` names a rule that it breaks.
    pub fn spawn(&self, contender: Contender, offset: i64, cheat: Option<&str>) -> Process {
        let ports: Vec<_> = self.masters.iter().map(|master| master.link.port.to_string()).collect();
        let mut command = Command::new(program());
        command.args(["--masters", &ports.join(","), "--namespace", NAMESPACE, "--locks", &LOCKS.join(",")]);
        command.args(["--identity", &contender.to_string(), "--call-timeout", &CALL_TIMEOUT.as_millis().to_string()]);
        // Each draws other times.
        command.args(["--seed", &(self.seed.wrapping_add(contender.0.into()) % (1 << 32)).to_string()]);
        command.args(cheat.iter().flat_map(|cheat| ["--cheat", cheat])).arg("--secret").arg(self.secret.path());
        if offset != 0 {
            command.env("LD_PRELOAD", library());
            command.envs([("FAKETIME", format!("{offset:+}")), ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned())]);
        }
        let started = Stamp::now();
        self.history.push_at(started, Event::Started(contender, offset));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}; `make soak` builds it"));
        let output = child.stdout.take().expect("a pipe from the process");
        let reporting = tokio::spawn(read_reports(contender, started, output, self.history.clone()));
        Process { contender, child, reporting, is_stopped: AtomicBool::new(false) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.watches.iter().for_each(AbortHandle::abort);
    }
}

impl Process {
    pub fn stop(&self, history: &History, fault: ContenderFault) {
        history.push(Event::Halted(self.contender, fault));
        self.is_stopped.store(true, Ordering::SeqCst);
        self.signal(Signal::SIGSTOP);
    }

    pub fn go_on(&self, history: &History) {
        if self.is_stopped.swap(false, Ordering::SeqCst) {
            self.signal(Signal::SIGCONT);
            history.push(Event::Continued(self.contender));
        }
    }

    /// Kills it. All its reports are in the history then.
    pub async fn kill(mut self, history: &History) {
        history.push(Event::Halted(self.contender, ContenderFault::Kill));
        self.child.kill().await.expect("SIGKILL to our own child");
        self.reporting.await.expect("its reports understood");
    }

    /// Ends it without killing it: it releases what it has.
    pub async fn end(mut self, history: &History) {
        self.go_on(history);
        drop(self.child.stdin.take());
        if timeout(Duration::from_secs(20), self.child.wait()).await.is_err() {
            return self.kill(history).await;
        }
        self.reporting.await.expect("its reports understood");
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&self) -> bool {
        self.reporting.is_finished()
    }

    fn signal(&self, signal: Signal) {
        // One that cheats kills itself.
        if let Some(pid) = self.child.id() {
            kill(Pid::from_raw(pid.cast_signed()), signal).expect("a signal to our own child");
        }
    }
}

/// The contender, which Cargo builds as an example, beside the folder of the tests.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    test.ancestors().nth(2).expect("target/<profile>/deps/<test>").join("examples/soak-contender")
}

async fn read_reports(contender: Contender, started: Stamp, output: ChildStdout, history: History) {
    let mut lines = BufReader::new(output).lines();
    while let Some(line) = lines.next_line().await.expect("the output of a process") {
        let report: Report = line.parse().unwrap_or_else(|_| panic!("{contender} reports {line:?}"));
        assert!((started..=Stamp::now()).contains(&report.at), "{contender} has another monotonic clock: {line}");
        history.push_at(report.at, Event::Reported(contender, report));
    }
    history.push(Event::Dead(contender));
}

/// Reads a master again and again, and notes each change of an owner. Directly, not by the link: a fault of the link does
/// not hide it.
async fn watch_master(index: usize, port: u16, history: History) {
    let keys = LOCKS.map(|name| LockKey::new(NAMESPACE, name).expect("a valid key"));
    let mut read = redis::cmd("MGET");
    for key in &keys {
        read.arg(key.redis_key());
    }
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).expect("an address");
    // A stopped master answers when it is continued.
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let mut seen = vec![None; LOCKS.len()];
    loop {
        if let Ok(mut connection) = client.get_multiplexed_async_connection_with_config(&config).await {
            while let Ok(owners) = read.query_async::<Vec<Option<String>>>(&mut connection).await {
                for (lock, owner) in owners.into_iter().enumerate() {
                    if seen[lock] != owner {
                        seen[lock].clone_from(&owner);
                        history.push(Event::Seen { master: index, lock, owner });
                    }
                }
                sleep(POLL).await;
            }
        }
        sleep(POLL).await;
    }
}

/// Notes how late the runtime's timer is.
async fn watch_clock(history: History) {
    loop {
        let due = Instant::now() + Duration::from_millis(10);
        sleep_until(due).await;
        let late = due.elapsed();
        if late > Duration::from_millis(20) {
            history.push(Event::Busy(late));
        }
    }
}

/// Waits until one of these contenders has ended by itself.
pub async fn any_ends(processes: &[Process]) {
    while !processes.iter().any(Process::has_ended) {
        sleep(POLL).await;
    }
}

/// Ends all of them.
pub async fn end_all(processes: Vec<Process>, history: &History) {
    let mut ending = JoinSet::new();
    for process in processes {
        let history = history.clone();
        ending.spawn(async move { process.end(&history).await });
    }
    while let Some(ended) = ending.join_next().await {
        ended.expect("no panic");
    }
}
