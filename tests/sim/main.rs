//! The engine in simulation: its real code over simulated nodes, network and clocks, thousands of schedules of faults.
//!
//! Time is tokio's paused clock, randomness comes from one seed: a schedule is the same at each run. `SIM_SEEDS=N` runs so
//! many schedules, `SIM_SEED=S` that single one, with a trace of what happened.

#![allow(clippy::expect_used, clippy::panic)] // What a test needs and does not get fails it.

mod faults;
mod history;
mod schedule;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use schedule::{Report, Rules, run};

/// Schedules in `cargo test`; more by `SIM_SEEDS`.
const SEEDS: u64 = 500;
/// Schedules in which a rule that is missing must show.
const FEW: u64 = 200;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().unwrap_or_else(|_| panic!("{name}={v} is not a number")))
}

/// Runs the schedules of the seeds below `seeds`, some at once. The error is of the smallest seed that has one.
fn run_all(seeds: u64, rules: Rules) -> Result<Vec<Report>, (u64, String)> {
    let (next, end, outcomes) = (AtomicU64::new(0), AtomicU64::new(seeds), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end.load(Ordering::Relaxed) {
                return;
            }
            let outcome = run(seed, rules, false);
            if outcome.is_err() {
                end.fetch_min(seed, Ordering::Relaxed);
            }
            outcomes.lock().expect("no panic").push((seed, outcome));
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(work);
        }
    });
    let mut outcomes = outcomes.into_inner().expect("no panic");
    outcomes.sort_unstable_by_key(|(seed, _)| *seed);
    outcomes.into_iter().map(|(seed, outcome)| outcome.map_err(|violation| (seed, violation))).collect()
}

#[test]
fn no_two_hold_tokens_rise_and_locks_are_granted_again_when_faults_end() {
    if let Some(seed) = number("SIM_SEED") {
        let report = run(seed, Rules::default(), true).unwrap_or_else(|violation| panic!("{violation}"));
        return println!("{report:?}");
    }
    let reports = run_all(number("SIM_SEEDS").unwrap_or(SEEDS), Rules::default());
    let reports = reports.unwrap_or_else(|(seed, violation)| {
        panic!("{violation}\nreplay: SIM_SEED={seed} cargo test --test sim no_two -- --nocapture")
    });
    // Schedules in which nothing happens would prove nothing.
    let sum = |count: fn(&Report) -> u64| reports.iter().map(count).sum::<u64>();
    let (grants, adoptions) = (sum(|r| r.counts.grants), sum(|r| r.counts.adoptions));
    let (losses, schedules) = (sum(|r| r.counts.losses), reports.len() as u64);
    println!("{schedules} schedules: {grants} grants, {adoptions} adoptions, {losses} losses");
    assert!(grants > 15 * schedules && losses > schedules && adoptions > schedules / 2, "too little happens");
}

#[test]
fn a_seed_gives_the_same_schedule_each_time() {
    for seed in 0..5 {
        let first = run(seed, Rules::default(), false);
        assert!(first.is_ok(), "{first:?}");
        assert_eq!(first, run(seed, Rules::default(), false));
    }
}

/// The violation in the first schedule that has one.
fn violation(rules: Rules) -> String {
    run_all(FEW, rules).expect_err("a rule that is missing shows").1
}

#[test]
fn a_restarted_node_that_votes_at_once_makes_a_second_holder() {
    let found = violation(Rules { quarantine: false, ..Rules::default() });
    assert!(found.contains("two holders"), "{found}");
}

#[test]
fn a_holder_that_counts_on_more_than_the_nodes_keep_makes_a_second_holder() {
    // Nodes whose clocks run five times faster than the drift allows for.
    let found = violation(Rules { fast_clocks: true, ..Rules::default() });
    assert!(found.contains("two holders"), "{found}");
}

#[test]
fn tokens_fall_after_a_loss_of_data_if_wall_clocks_differ_by_more_than_the_restart_delay() {
    let found = violation(Rules { wrong_wall_clocks: true, ..Rules::default() });
    assert!(found.contains("after a token"), "{found}");
}
