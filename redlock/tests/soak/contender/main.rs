//! A contender of the soak test, as a process that the test stops, kills and gives a wrong clock.
//!
//! It contends for all locks at once, each by a task of its own, until its input ends.

#![allow(clippy::expect_used)] // Without what it needs a test's program ends.

mod contend;
#[path = "../protocol.rs"]
mod protocol;

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use redlock_engine::{Address, Client, Credentials, Endpoint, LockKey, Marker, RedisMaster};

use contend::Contender;
use protocol::Report;

#[derive(Parser)]
struct Args {
    /// Ports of the masters on loopback.
    #[arg(long, value_delimiter = ',')]
    masters: Vec<u16>,
    /// Folder with the files `username` and `password`.
    #[arg(long)]
    secret: PathBuf,
    /// Namespace of the locks.
    #[arg(long)]
    namespace: String,
    /// Names of the locks.
    #[arg(long, value_delimiter = ',')]
    locks: Vec<String>,
    /// Call timeout in milliseconds.
    #[arg(long)]
    call_timeout: u64,
    #[arg(long)]
    identity: String,
    /// Seed of all that it draws.
    #[arg(long)]
    seed: u64,
    /// Breaks a rule on the first lock, so that the checker must find it.
    #[arg(long)]
    cheat: Option<Cheat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Cheat {
    /// Claims the lock without taking it.
    Unlocked,
    /// Reports a release that it does not send, and is killed.
    Unsent,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let Args { masters, secret, namespace, locks, call_timeout, identity, seed, cheat } = Args::parse();
    let masters = masters.into_iter().map(|port| {
        RedisMaster::connect(Endpoint {
            name: port.to_string(),
            address: Address::Tcp("127.0.0.1".to_owned(), port),
            credentials: Credentials::Files { username: secret.join("username"), password: secret.join("password") },
            marker: Marker::Required,
        })
    });
    let client = Client::new(masters, Duration::from_millis(call_timeout)).expect("valid settings");
    for (lock, name) in locks.iter().enumerate() {
        let contender = Contender {
            client: client.clone(),
            key: LockKey::new(&namespace, name).expect("a valid key"),
            lock,
            identity: identity.clone(),
            random: StdRng::seed_from_u64(seed * 16 + lock as u64),
            cheat: cheat.filter(|_| lock == 0),
        };
        tokio::spawn(contender.run());
    }
    let input = tokio::task::spawn_blocking(|| std::io::stdin().lock().read_to_end(&mut Vec::new()));
    input.await.expect("no panic").expect("an input");
    client.shutdown().await;
}

/// Writes a line at once, so that it arrives even if the process is killed right after it.
fn report(report: &Report) {
    // Nobody to report to: the test has ended, and so does this program.
    if writeln!(std::io::stdout().lock(), "{report}").is_err() {
        std::process::exit(1);
    }
}
