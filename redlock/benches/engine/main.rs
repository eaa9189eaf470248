//! The engine as a program that a benchmark's driver runs beside other libraries: the same flags, the same workloads, one
//! JSON line. `hack/bench.sh` builds and runs it; `benches/peers/README.md` explains the flags and fields.

#![allow(missing_docs)] // A program, not a library.
#![allow(clippy::expect_used)] // Without what it measures the program ends.

#[path = "../peers/rust/src/bench.rs"]
mod bench;
mod keep;
mod masters;

use std::process::ExitCode;
use std::time::Duration;

use redlock_engine::{Lease, LeaseOptions, LockKey, Released, Wait};

use self::bench::{Bench, Client, Config};
use self::keep::LeaseCount;

/// The flags of this program alone.
struct OwnFlags {
    threads: usize,
    call_timeout: Duration,
    /// For the workloads of this program alone, how many leases it holds.
    lease_count: Option<LeaseCount>,
}

impl OwnFlags {
    /// Takes its flags out of `args`.
    fn take(args: &mut Vec<String>) -> Result<Self, String> {
        let lease_count = match value_of(args, "--workload").as_deref() {
            Some("keep") => Some(LeaseCount::Many),
            Some("idle-one") => Some(LeaseCount::One),
            _ => None,
        };
        if lease_count.is_some() {
            take(args, "--workload");
        }
        let number = |text: Option<String>, default: u64| match text {
            Some(text) => text.parse().map_err(|_| format!("{text} is no number")),
            None => Ok(default),
        };
        let threads = number(take(args, "--threads"), 1)?;
        let call_timeout = number(take(args, "--call-timeout-ms"), 50)?;
        Ok(Self {
            threads: usize::try_from(threads).map_err(|e| e.to_string())?,
            call_timeout: Duration::from_millis(call_timeout),
            lease_count,
        })
    }
}

fn value_of(args: &[String], flag: &str) -> Option<String> {
    let at = args.iter().position(|a| a == flag)?;
    args.get(at + 1).cloned()
}

fn take(args: &mut Vec<String>, flag: &str) -> Option<String> {
    let value = value_of(args, flag)?;
    let at = args.iter().position(|a| a == flag)?;
    args.drain(at..=at + 1);
    Some(value)
}

/// A client of the engine, as an application uses it: it waits without a deadline, and a watchdog renews its lease.
struct Contender {
    client: redlock_engine::Client,
    key: LockKey,
    options: LeaseOptions,
}

impl Client for Contender {
    type Held = Lease;

    async fn lock(&self) -> Result<Lease, String> {
        self.client.acquire(&self.key, &self.options, Wait::Forever).await.map_err(|e| e.to_string())
    }

    async fn unlock(&self, lease: Lease) -> Result<(), String> {
        match lease.release().await {
            Released::Freed => Ok(()),
            found => Err(format!("released: {found:?}")),
        }
    }
}

async fn run(config: Config, own: &OwnFlags) -> serde_json::Value {
    masters::arm(&config.masters, config.ttl).await;
    // Each instance stands for a process, with connections, a local queue and a clock of its own.
    let instances: Vec<_> = (0..config.instances).map(|_| masters::client(&config.masters, own.call_timeout)).collect();
    let clients = (0..config.clients)
        .map(|i| Contender {
            client: instances[i % instances.len()].clone(),
            key: LockKey::new("bench", &config.key(i)).expect("a valid name"),
            options: LeaseOptions::new(format!("client-{i}"), config.ttl),
        })
        .collect();
    let note = format!(
        "fencing on, armed marker required, watchdog at TTL/3, call timeout {:?}, {} thread(s)",
        own.call_timeout, own.threads
    );
    let masters = config.masters.len();
    Bench::new(config).run("redlock-operator", masters, &note, clients).await
}

fn main() -> ExitCode {
    let mut args: Vec<_> = std::env::args().skip(1).collect();
    if args == ["--bench"] {
        println!("needs Redis servers: hack/bench.sh runs it");
        return ExitCode::SUCCESS;
    }
    let parsed = OwnFlags::take(&mut args).and_then(|own| Ok((own, Config::parse(args.into_iter())?)));
    let (own, config) = match parsed {
        Ok(parsed) => parsed,
        Err(message) => {
            eprintln!("engine: {message}");
            return ExitCode::from(2);
        }
    };
    let runtime = match own.threads {
        1 => tokio::runtime::Builder::new_current_thread().enable_all().build(),
        threads => tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
    }
    .expect("a runtime");
    let line = runtime.block_on(async {
        match own.lease_count {
            Some(count) => keep::run(count, &config, own.call_timeout).await,
            None => run(config, &own).await,
        }
    });
    println!("{line}");
    // The process ends although clients still wait for the lock.
    runtime.shutdown_background();
    ExitCode::SUCCESS
}
