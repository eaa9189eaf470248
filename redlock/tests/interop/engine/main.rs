//! Our contender as a program, like those of the other libraries: the interop tests start and kill it.

#![allow(clippy::expect_used)] // Without what it needs a test's program ends.

mod contend;
#[path = "../protocol.rs"]
mod protocol;

use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use redlock_engine::{Address, Client, Credentials, Endpoint, LeaseOptions, LockKey, Marker, RedisMaster};
use tokio::sync::mpsc;

use contend::Contender;

#[derive(Parser)]
struct Args {
    /// Addresses of the masters.
    #[arg(long, value_delimiter = ',')]
    masters: Vec<String>,
    /// Folder with the files `username` and `password`.
    #[arg(long)]
    secret: PathBuf,
    /// The lock's key on a master.
    #[arg(long)]
    key: String,
    /// Time to live of the lock.
    #[arg(long, value_parser = parse_millis)]
    ttl: Duration,
    /// Call timeout.
    #[arg(long, value_parser = parse_millis)]
    call_timeout: Duration,
    /// Identity of the contender.
    #[arg(long)]
    identity: String,
    /// Seed of the lengths of sections.
    #[arg(long)]
    seed: u64,
    /// Claim sections without taking the lock.
    #[arg(long)]
    unlocked: bool,
}

/// Milliseconds, such as `500ms`.
fn parse_millis(text: &str) -> Result<Duration, String> {
    let millis = text.strip_suffix("ms").and_then(|number| number.parse().ok());
    millis.map(Duration::from_millis).ok_or_else(|| format!("{text:?} is not milliseconds, such as 500ms"))
}

#[tokio::main]
async fn main() {
    let Args { masters, secret, key, ttl, call_timeout, identity, seed, unlocked } = Args::parse();
    let masters = masters.into_iter().map(|address| {
        let (host, port) = address.rsplit_once(':').expect("host:port");
        RedisMaster::connect(Endpoint {
            name: address.clone(),
            address: Address::Tcp(host.to_owned(), port.parse().expect("a port")),
            credentials: Credentials::Files { username: secret.join("username"), password: secret.join("password") },
            marker: Marker::Required,
        })
    });
    let client = Client::new(masters, call_timeout).expect("valid settings");
    let (namespace, name) =
        key.strip_prefix("redlock:").and_then(|key| key.split_once('/')).expect("redlock:<namespace>/<name>");
    let (order, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            // The receiver ends with the program.
            let _ = order.send(line.parse().expect("an order"));
        }
    });
    let contender = Contender {
        client,
        key: LockKey::new(namespace, name).expect("a valid key"),
        options: LeaseOptions::new(identity, ttl),
        unlocked,
        random: StdRng::seed_from_u64(seed),
        orders,
        // Each line is written at once, so that it arrives even if the process is killed right after it.
        report: |report| writeln!(std::io::stdout().lock(), "{report}").expect("somebody to report to"),
    };
    contender.run().await;
}
