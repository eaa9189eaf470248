//! Asks each sidecar and each master's server, again and again, whatever becomes of their machines and objects.
//!
//! They are found by their processes: so also a server whose pod's object is gone, and both of two servers of one master.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redlock_test_servers::stamp::Stamp;

use crate::harness::agent::{Answer, PORT};
use crate::history::{Grant, History, Source};
use crate::inside::{self, Process, TIMEOUT};

/// How often each is asked.
const EVERY: Duration = Duration::from_millis(100);
/// How often new processes are looked for.
const LOOK: Duration = Duration::from_millis(300);
/// The port of a master.
const REDIS: u16 = 6379;

/// What all observers share.
#[derive(Clone)]
pub(crate) struct Observers {
    history: History,
    /// The locks, each by the name of its sidecars' lock and its key on the masters.
    locks: Arc<[(String, String)]>,
    /// Passwords of the operator's user: of the present cluster, and of those that were deleted.
    passwords: Arc<Mutex<Vec<String>>>,
    is_over: Arc<AtomicBool>,
}

// === impl Observers ===

impl Observers {
    /// Begins to look for sidecars and servers.
    pub(crate) fn start(history: History, locks: Vec<(String, String)>) -> Self {
        let observers =
            Self { history, locks: locks.into(), passwords: Arc::default(), is_over: Arc::new(AtomicBool::new(false)) };
        let looking = observers.clone();
        std::thread::spawn(move || looking.look());
        observers
    }

    /// The password of the operator's user on the servers that are started from now on.
    pub(crate) fn add_password(&self, password: String) {
        self.passwords.lock().unwrap_or_else(PoisonError::into_inner).push(password);
    }

    /// Ends all.
    pub(crate) fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether it was stopped.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn look(&self) {
        let mut known = HashSet::new();
        while !self.is_over() {
            for process in inside::processes("redis-server") {
                if known.insert(process.pid) {
                    let (observers, pid) = (self.clone(), process.pid);
                    inside::spawn(pid, move || observers.follow_server(pid));
                }
            }
            for process in inside::processes("redlock") {
                let Some(lock) = self.lock_of(&process) else { continue };
                if known.insert(process.pid) {
                    let observers = self.clone();
                    inside::spawn(process.pid, move || observers.follow_sidecar(&process, lock));
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The lock of a sidecar of this run.
    fn lock_of(&self, sidecar: &Process) -> Option<usize> {
        let name = sidecar.arguments.iter().find_map(|argument| argument.strip_prefix("--lock="))?;
        self.locks.iter().position(|(lock, _)| lock == name)
    }

    fn follow_sidecar(&self, sidecar: &Process, lock: usize) {
        let source = Source::Sidecar(sidecar.pod.clone());
        while !self.is_over() && inside::runs(sidecar.pid) {
            let sent = Stamp::now();
            if let Ok(body) = inside::get(PORT) {
                let received = Stamp::now();
                // The answer of another process in its place is that of another observer.
                if let Ok(answer) = serde_json::from_str::<Answer>(&body) {
                    self.history.said(&source, lock, answer.claim().map(Grant::Token), sent, received);
                }
            }
            std::thread::sleep(EVERY);
        }
        self.history.is_silent(&source);
    }

    fn follow_server(&self, pid: i32) {
        let source = Source::Server(pid);
        while !self.is_over() && inside::runs(pid) {
            // It ends with the connection, or when the password is another cluster's.
            let _ = self.ask_server(&source);
            std::thread::sleep(EVERY);
        }
        self.history.is_silent(&source);
    }

    fn ask_server(&self, source: &Source) -> redis::RedisResult<()> {
        let passwords = self.passwords.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for password in passwords.iter().rev() {
            // A derived password is base64url, which needs no quotes.
            let client = redis::Client::open(format!("redis://operator:{password}@127.0.0.1:{REDIS}/"))?;
            let Ok(mut connection) = client.get_connection_with_timeout(TIMEOUT) else { continue };
            connection.set_read_timeout(Some(TIMEOUT))?;
            let mut values = redis::cmd("MGET");
            for (_, key) in self.locks.iter() {
                values.arg(key);
            }
            while !self.is_over() {
                let sent = Stamp::now();
                let values: Vec<Option<String>> = values.query(&mut connection)?;
                let received = Stamp::now();
                for (lock, value) in values.into_iter().enumerate() {
                    self.history.said(source, lock, value.as_deref().map(Grant::of), sent, received);
                }
                std::thread::sleep(EVERY);
            }
        }
        Ok(())
    }
}
