//! The engine in simulation: its real code over simulated masters, network and clocks, in thousands of schedules of faults.
//!
//! Time is tokio's paused clock, randomness comes from one seed: a schedule is the same at each run. `SIM_SEEDS=N` runs
//! N schedules from `SIM_FROM` on (`make sim`), `SIM_SEED=S` that single one, with a trace.
//!
//! # Layout
//! - `world`: events in the order of time, and stopped processes; `link`: the network; `server`, `queue`: a master's memory
//! - `master`, `process`: the world as the engine sees it; `pause`: futures that are not polled
//! - `plan`, `rules`: the parameters of a schedule, and the rules of the world; `faults`: its faults
//! - `contender`: contenders for locks; `history`, `resource`: the promises
//! - `schedule`: one run; `campaign`: many

#![allow(clippy::expect_used, clippy::panic)] // Without what it needs a test fails.

mod campaign;
mod contender;
mod faults;
mod history;
mod link;
mod master;
mod pause;
mod plan;
mod process;
mod queue;
mod random;
mod resource;
mod rules;
mod schedule;
mod server;
mod world;

use campaign::{Failure, cores, run_all};
use rules::{Rule, Rules};
use schedule::run;

/// Schedules in `cargo test`; more by `SIM_SEEDS`.
const SEEDS: u64 = 2000;
/// Schedules within which a broken rule must break a promise.
const FEW: u64 = 2000;
/// Schedules in which masters restart one after the other.
const ROLLING: u64 = 300;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().unwrap_or_else(|_| panic!("{name}={v} is not a number")))
}

#[test]
fn no_two_hold_a_lock_tokens_rise_and_locks_are_granted_when_faults_end() {
    if let Some(seed) = number("SIM_SEED") {
        let report = run(seed, Rules::default(), true).unwrap_or_else(|violation| panic!("{violation}"));
        return println!("{report:#?}");
    }
    let (first, count) = (number("SIM_FROM").unwrap_or(0), number("SIM_SEEDS").unwrap_or(SEEDS));
    let sum = run_all(first, count, Rules::default(), cores(), true).unwrap_or_else(|Failure { violation, seed }| {
        panic!("{violation}\nreplay: SIM_SEED={seed} cargo test --test sim no_two -- --nocapture")
    });
    println!("{:#?}", sum.total);
    // Schedules in which nothing happens would prove nothing.
    let (counts, tally, schedules) = (sum.total.counts, sum.total.tally, sum.schedules);
    assert!(counts.grants > 10 * schedules && counts.writes > 20 * schedules, "too little is granted");
    for happened in [counts.losses, counts.dropped, tally.reconnects, tally.pauses] {
        assert!(happened > schedules, "too little goes wrong");
    }
    for happened in [counts.adoptions, tally.crashes, tally.flushes, tally.jumps] {
        assert!(happened > schedules / 4, "too little goes wrong");
    }
    assert!(counts.refused > schedules / 50, "too few writes come too late");
}

#[test]
fn a_seed_gives_the_same_schedule_each_time_on_any_thread() {
    let sums = [1, 1, 4].map(|threads| run_all(0, 10, Rules::default(), threads, false).expect("no violation"));
    assert_eq!(sums[0].total, sums[1].total);
    assert_eq!(sums[0].total, sums[2].total);
}

/// The violation of the first schedule that has one.
fn violation(rule: Rule) -> String {
    let failure = run_all(0, FEW, Rules::without(rule), cores(), false).expect_err("a broken rule breaks a promise");
    println!("{failure:?}");
    failure.violation
}

#[test]
fn a_restarted_master_that_votes_at_once_makes_a_second_holder() {
    let found = violation(Rule::RestartDelay);
    assert!(found.contains("two holders"), "{found}");
}

#[test]
fn a_lease_longer_than_the_restart_delay_makes_a_second_holder() {
    let found = violation(Rule::LongestTtl);
    assert!(found.contains("two holders"), "{found}");
}

#[test]
fn clocks_of_masters_that_run_too_fast_make_a_second_holder() {
    let found = violation(Rule::ClockRates);
    assert!(found.contains("two holders"), "{found}");
}

#[test]
fn clocks_of_a_majority_that_jump_make_a_second_holder() {
    let found = violation(Rule::ClockJumps);
    assert!(found.contains("two holders"), "{found}");
}

#[test]
fn a_resource_that_checks_tokens_is_safe_from_a_second_holder() {
    let rules = Rules { broken: Some(Rule::ClockJumps), guarded: true, ..Rules::default() };
    let sum = run_all(0, 60, rules, cores(), false).unwrap_or_else(|failure| panic!("{failure:?}"));
    let counts = sum.total.counts;
    assert!(counts.overlaps > 0 && counts.refused > 0, "{counts:?}");
}

#[test]
fn tokens_fall_after_a_loss_of_data_if_wall_clocks_differ_too_much() {
    let found = violation(Rule::WallClocks);
    assert!(found.contains("token"), "{found}");
}

#[test]
fn masters_that_restart_one_after_the_other_under_a_holder_let_no_token_fall_whatever_wall_clocks_show() {
    let rules = Rules { rolling: true, ..Rules::default() };
    let sum = run_all(0, ROLLING, rules, cores(), false).unwrap_or_else(|failure| panic!("{failure:?}"));
    assert!(sum.total.tally.crashes > ROLLING / 4, "too few masters restart");
}

#[test]
fn tokens_fall_then_if_renewals_do_not_carry_them() {
    let rules = Rules { broken: Some(Rule::RenewalsCarryTokens), rolling: true, guarded: false };
    let found = run_all(0, ROLLING, rules, cores(), false).expect_err("a rule that is broken shows").violation;
    assert!(found.contains("token"), "{found}");
}

#[test]
fn tokens_fall_if_masters_do_not_vote_on_them() {
    let found = violation(Rule::VotesOnTokens);
    assert!(found.contains("token"), "{found}");
}

#[test]
fn two_copies_of_a_master_make_a_second_holder() {
    let found = violation(Rule::OneCopy);
    assert!(found.contains("two holders"), "{found}");
}

#[test]
fn clients_that_know_different_masters_make_a_second_holder() {
    let found = violation(Rule::SameMasters);
    assert!(found.contains("two holders"), "{found}");
}

#[test]
fn a_release_that_does_not_compare_the_owner_makes_a_second_holder() {
    let found = violation(Rule::ComparesOwner);
    assert!(found.contains("two holders"), "{found}");
}

#[test]
fn one_server_behind_two_addresses_that_votes_twice_makes_a_second_holder() {
    let found = violation(Rule::OneServerOneVote);
    assert!(found.contains("two holders"), "{found}");
}

#[test]
fn a_lock_stays_free_if_releases_that_did_not_arrive_are_not_sent_again() {
    let found = violation(Rule::ReleasesAreKept);
    assert!(found.contains("was free for"), "{found}");
}
