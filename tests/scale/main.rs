//! How the operator does with thousands of held locks, on a real Kubernetes: `make scale LOCKS=1000,10000`.
//!
//! # Layout
//! - [`fleet`]: many locks, created, counted and deleted
//! - [`usage`]: what the operator and the masters use: CPU, memory, commands, requests
//! - [`table`]: the rows, as they are printed and kept
//!
//! It measures, and fails where a promise is broken: a lock that is lost, or has another token at the end.

// What is measured are counts and times that a person reads.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
// A run fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::large_futures)]

#[allow(dead_code)] // Not all of what the end-to-end tests need.
#[path = "../e2e/harness/mod.rs"]
mod harness;

mod fleet;
mod table;
mod usage;

use std::time::Duration;

use tokio::time::Instant;

use fleet::Fleet;
use harness::install::{self, given};
use harness::{Env, objects, scenario_that_disturbs_the_operator};
use table::Row;
use usage::{Operator, Usage};

/// TTL of the locks.
const TTL: &str = "30s";
/// Masters of the cluster.
const MASTERS: usize = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_locks_stay_held_at_a_flat_cost_each() {
    let sizes = given_or("SCALE_LOCKS", "1000,10000");
    let sizes: Vec<usize> = sizes.split(',').map(|size| size.trim().parse().expect("SCALE_LOCKS: numbers")).collect();
    let minutes: f64 = given_or("SCALE_MINUTES", "10").parse().expect("SCALE_MINUTES: a number");
    let replicas: i32 = given_or("SCALE_REPLICAS", "1").parse().expect("SCALE_REPLICAS: a number");
    let mut rows = Vec::new();
    for size in sizes {
        scenario_that_disturbs_the_operator("scale", async |env| {
            install::scale_operator(replicas).await;
            install::wait_until_one_leads().await;
            rows.push(measure(env, size, Duration::from_secs_f64(minutes * 60.0)).await);
            println!("{}", table::markdown(&rows));
        })
        .await;
    }
    table::keep(&rows);
}

async fn measure(env: &Env, size: usize, window: Duration) -> Row {
    let spec = serde_json::json!({"masters": MASTERS, "maxTTL": "60s", "callTimeout": "250ms"});
    let masters = objects::ready_scaled_cluster(env, spec, MASTERS).await;
    let fleet = Fleet::new(env, size);

    let mut operator = Operator::of_leader(env).await;
    fleet.create(TTL).await;
    let created = Instant::now();
    let tokens = fleet.all_held().await;
    let held_after = created.elapsed();
    println!("{size} locks are held {held_after:?} after the last was created");

    // The status refreshes of the first grants are over when each has been renewed twice.
    tokio::time::sleep(Duration::from_secs(25)).await;
    let before = Usage::now(&operator, &masters).await;
    tokio::time::sleep(window).await;
    let spent = Usage::now(&operator, &masters).await.since(&before);
    assert_eq!(spent.losses, 0, "locks were lost in the window");
    assert_eq!(fleet.tokens().await, tokens, "each lock is held by the same grant");
    println!("{size} locks for {window:?}: {spent:?}");

    let killed = Instant::now();
    operator.kill();
    operator = Operator::successor(env, &operator).await;
    operator.until_held(size).await;
    let adopted_after = killed.elapsed();
    assert_eq!(operator.losses().await, 0, "locks were lost while no operator ran");
    assert_eq!(fleet.tokens().await, tokens, "each lock was adopted with its token");
    println!("{size} locks are adopted {adopted_after:?} after the kill");

    let deleting = Instant::now();
    fleet.delete().await;
    let deleted_after = deleting.elapsed();
    println!("{size} locks are gone {deleted_after:?} after their deletion was asked for");
    Row { size, replicas: given_or("SCALE_REPLICAS", "1"), held_after, spent, adopted_after, deleted_after }
}

/// The value of a variable of the environment, or what is taken without one.
fn given_or(variable: &str, default: &str) -> String {
    given(variable).unwrap_or_else(|| default.to_owned())
}
