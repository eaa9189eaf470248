//! The cost of renewing leases rather than acquiring them: many held by one process, or one by an idle process.

// Counts become rates and shares: the rounding of a double does not show.
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use redlock_engine::{Lease, LeaseOptions, LeaseState, LockKey, Released, Wait};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bench::{Config, cpu_seconds};
use crate::masters;

/// Acquisitions under way at a time.
const CONCURRENCY: usize = 64;
/// Time between two checks of all leases.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// How many leases the process holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LeaseCount {
    /// As many as `--clients` says.
    Many,
    One,
}

/// Acquires the leases, holds them for the window, and returns what that cost.
pub async fn run(count: LeaseCount, config: &Config, call_timeout: Duration) -> Value {
    let (workload, count) = match count {
        LeaseCount::Many => ("keep", config.clients),
        LeaseCount::One => ("idle-one", 1),
    };
    masters::arm(&config.masters, config.ttl).await;
    let before_client = resident_kib();
    let client = masters::client(&config.masters, call_timeout);
    let acquire = |name: String| {
        let key = LockKey::new("bench", &name).expect("a valid name");
        let options = LeaseOptions::new(format!("holder-{name}"), config.ttl);
        let client = &client;
        async move { client.acquire(&key, &options, Wait::Forever).await.expect("a free lock") }
    };
    // The first acquisition connects, and allocates the memory that all share.
    let first = acquire("first".to_owned()).await.release().await;
    assert_eq!(first, Released::Freed, "the masters do not work");
    let before_leases = resident_kib();

    let began = Instant::now();
    let leases: Vec<_> =
        stream::iter((0..count).map(|i| acquire(format!("held-{i}")))).buffer_unordered(CONCURRENCY).collect().await;
    let taken_in = began.elapsed();

    tokio::time::sleep(Duration::from_secs_f64(config.warmup)).await;
    let (cpu, from) = (cpu_seconds(), Instant::now());
    let renewed_before = renewals(&leases);
    let mut least = config.ttl;
    while from.elapsed().as_secs_f64() < config.seconds {
        tokio::time::sleep(CHECK_EVERY).await;
        least = leases.iter().map(Lease::validity).min().unwrap_or_default().min(least);
    }
    let (cpu, window) = (cpu_seconds() - cpu, from.elapsed().as_secs_f64());
    let renewed = renewals(&leases) - renewed_before;
    let resident = resident_kib();
    let lost = leases.iter().filter(|l| !l.is_held()).count();
    // Renewals are due every third of the TTL; in the window, one more or less.
    let due = (window / (config.ttl.as_secs_f64() / 3.0)).floor() as usize * count;
    stream::iter(leases.into_iter().map(Lease::release)).buffer_unordered(CONCURRENCY).collect::<Vec<_>>().await;

    json!({
        "peer": "redlock-operator",
        "workload": workload,
        "masters": config.masters.len(),
        "clients": count,
        "seconds": window,
        "ttl_ms": i64::try_from(config.ttl.as_millis()).unwrap_or(i64::MAX),
        "ops_per_s": renewed as f64 / window,
        "ops": renewed,
        "ops_total": renewed,
        "p50_us": null,
        "p99_us": null,
        "p999_us": null,
        "errors": lost,
        "violations": 0,
        "renewals": renewed,
        "renewals_due_at_least": due,
        "lost": lost,
        "least_validity_ms": least.as_secs_f64() * 1e3,
        "acquired_per_s": count as f64 / taken_in.as_secs_f64(),
        "window_cpu_s": cpu,
        "cpu_share_of_core": cpu / window,
        "rss_kb": resident,
        "client_rss_kb": resident - before_client,
        "rss_bytes_per_lease": (resident - before_leases) as f64 * 1024.0 / count as f64,
    })
}

/// Successful renewals of all leases so far.
fn renewals(leases: &[Lease]) -> u64 {
    leases
        .iter()
        .filter_map(|lease| match &*lease.state().borrow() {
            LeaseState::Held(grant) => Some(grant.renewals),
            LeaseState::Lost(_) | LeaseState::Released => None,
        })
        .sum()
}

/// Resident memory of this process.
fn resident_kib() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS in /proc/self/status");
    line.trim().trim_end_matches(" kB").parse().expect("kibibytes")
}
