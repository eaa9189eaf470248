//! A soak test: processes contend for a few locks on five real servers, while processes, servers and links fail.
//!
//! All faults are drawn from a seed. A checker judges the reports of the processes: no two hold a lock at once, tokens
//! rise, and no lock is free for long while somebody waits for it. `cargo test` runs a short form, `make soak` the long
//! one.

#![allow(clippy::expect_used, clippy::panic)] // Without what it needs a test fails.

mod arena;
mod chaos;
mod cheats;
mod checks;
mod exclusion;
mod history;
mod idle;
mod protocol;
mod verdict;

use std::future::Future;
use std::time::Duration;

use rand::RngExt as _;
use tokio::signal::unix::{SignalKind, signal};

use self::chaos::Plan;
use self::verdict::Verdict;

/// The short form: faults of a minority only. How long a lock is free it only reports, since the machine may be busy with
/// other tests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_processes_hold_a_lock_in_a_short_chaos() {
    let plan = Plan {
        seed: 1,
        length: Duration::from_secs(15),
        contenders: 4,
        pauses: 300..=1500,
        loses_majority: false,
        idle_fails: false,
    };
    soak(plan).await;
}

/// The long form, for `make soak`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `make soak` runs it"]
async fn no_two_processes_hold_a_lock_and_no_free_lock_stays_idle_in_a_long_chaos() {
    let minutes = variable("SOAK_MINUTES").map_or(10.0, |text| text.parse().expect("a number of minutes"));
    let plan = Plan {
        seed: variable("SOAK_SEED").map_or_else(drawn_seed, |text| text.parse().expect("a number")),
        length: Duration::from_secs_f64(minutes * 60.0),
        contenders: 6,
        pauses: 100..=900,
        loses_majority: true,
        idle_fails: variable("SOAK_IDLE").is_none_or(|idle| idle != "report"),
    };
    soak(plan).await;
}

async fn soak(plan: Plan) {
    let seed = plan.seed;
    println!("seed {seed}, {:.1?} (make soak SEED={seed} draws the same faults)", plan.length);
    let (entries, over) = unless_interrupted(chaos::run(&plan)).await;
    let verdict = Verdict::of(entries, over);
    println!("seed {seed}: {verdict}");
    if !plan.idle_fails {
        println!("{}", verdict.violations());
    }
    assert!(verdict.grants > 0, "seed {seed}: no grant");
    assert!(!verdict.is_violated(plan.idle_fails), "seed {seed}: a promise is broken\n{}", verdict.violations());
}

/// An environment variable that is not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn drawn_seed() -> u64 {
    rand::rng().random_range(0..1 << 31)
}

/// Ends the test at Ctrl-C, and with it all processes: also those that are stopped, and would outlast it.
async fn unless_interrupted<T>(run: impl Future<Output = T>) -> T {
    let mut terminated = signal(SignalKind::terminate()).expect("a handler of a signal");
    tokio::select! {
        output = run => output,
        _ = tokio::signal::ctrl_c() => panic!("interrupted"),
        _ = terminated.recv() => panic!("terminated"),
    }
}
