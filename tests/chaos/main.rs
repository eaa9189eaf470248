//! A storm of faults over all parts at once, on a real Kubernetes: `make chaos MINUTES=30 SEED=1`.
//!
//! Sidecars, `DistributedLock`s and a public library contend for five locks on five masters, while machines, pods, servers, operators and
//! the API server fail. A checker judges what it has seen at the masters' servers, and what contenders told their applications: no two
//! hold a lock at once, and tokens rise. What a status says is no evidence.
//!
//! # Layout
//! - [`plan`]: which fault comes when, from a seed; [`faults`]: how it is done and undone; [`world`]: what they are done to
//! - [`observers`]: ask each sidecar and server, from [`inside`] its network; [`library`]: contenders of redsync
//! - `proof`: that the checker finds an overlap where there is one
//! - [`history`]: what was seen; [`verdict`]: what that proves; [`report`]: what is printed and kept

// A run fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::large_futures)]

mod faults;
#[allow(dead_code)] // Not all of what the end-to-end tests need.
#[path = "../e2e/harness/mod.rs"]
mod harness;
mod history;
mod inside;
mod library;
mod observers;
mod plan;
#[cfg(feature = "unsafe-for-chaos")]
mod proof;
#[allow(dead_code)] // Not all orders are given here.
#[path = "../../redlock/tests/interop/protocol.rs"]
mod protocol;
mod report;
mod verdict;
mod world;

use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, sleep};

use faults::{Counts, befall, heal_all};
use harness::install::{self, given};
use harness::scenario_that_disturbs_the_operator;
use plan::{Kind, Plan};
use verdict::Verdict;
use world::{FREE_WITHIN, MAX_TTL, QUORUM, World};

/// How often the history is judged while the storm goes on.
const JUDGED: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `make chaos` runs it"]
async fn no_two_hold_a_lock_in_a_long_storm() {
    let minutes = given("CHAOS_MINUTES").map_or(30.0, |text| text.parse().expect("CHAOS_MINUTES: a number"));
    let seed = given("CHAOS_SEED").map_or_else(rand::random, |text| text.parse().expect("CHAOS_SEED: a number"));
    storm(Plan { seed, length: Duration::from_secs_f64(minutes * 60.0), kinds: Kind::STORM.to_vec() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_hold_a_lock_in_a_short_storm() {
    storm(Plan { seed: 1, length: Duration::from_secs(60), kinds: Kind::SHORT.to_vec() }).await;
}

async fn storm(plan: Plan) {
    if harness::existing_cluster() {
        return;
    }
    println!("seed {}: CHAOS_SEED={} brings these faults back", plan.seed, plan.seed);
    scenario_that_disturbs_the_operator("chaos", async |env| {
        install::scale_operator(2).await;
        install::wait_until_one_leads().await;
        let (world, counts) = (World::make(env).await, Counts::default());
        let end = Instant::now() + plan.length;
        let masters = async {
            for step in 0.. {
                if Instant::now() >= end {
                    return;
                }
                let faults = plan.faults(step);
                println!("{:>6.1} s before the end: {faults:?}", (end - Instant::now()).as_secs_f64());
                join_all(faults.into_iter().map(|fault| befall(&world, fault, &counts))).await;
                let (pause, is_calm) = plan.pause(step);
                sleep(pause).await;
                if is_calm {
                    world.calm(end).await;
                }
            }
        };
        let contenders = async {
            for step in 0.. {
                if Instant::now() >= end {
                    return;
                }
                befall(&world, plan.contender_fault(step), &counts).await;
                sleep(Duration::from_millis(1500)).await;
            }
        };
        let judging = async {
            loop {
                sleep(JUDGED).await;
                if Verdict::of(&world.history.spans(), QUORUM, MAX_TTL).is_violated() {
                    return;
                }
            }
        };
        tokio::select! {
            _ = async { tokio::join!(masters, contenders) } => {}
            () = judging => println!("a violation ends the storm"),
        }
        heal_all().await;
        let held_after = world.held_again().await;
        let freed_after = world.freed().await;
        let verdict = Verdict::of(&world.history.spans(), QUORUM, MAX_TTL);
        let text = report::text(&plan, &counts, &verdict, held_after, freed_after);
        report::keep(&format!("report-{}", plan.seed), &text);
        print!("{text}");
        assert!(!verdict.is_violated(), "two held a lock at once, or a token fell");
        assert!(verdict.hand_overs > 0, "nobody contended");
        assert!(verdict.seen.iter().all(|count| *count > 0) && verdict.majorities > 0, "an observer has seen nothing");
        assert!(held_after < FREE_WITHIN, "a lock was held by no contender for {held_after:?} after the storm");
        assert!(freed_after < FREE_WITHIN, "locks were free only after {freed_after:?}");
    })
    .await;
}
