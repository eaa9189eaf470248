//! Contenders that break a rule on purpose: the checker finds them in a real run.

use std::time::Duration;

use redlock_test_servers::stamp::Stamp;
use tokio::time::{Instant, sleep, timeout};

use crate::arena::{Arena, Process, any_ends, end_all};
use crate::history::Contender;
use crate::idle::{Cause, Idle, LONGEST};
use crate::verdict::Verdict;

/// Patience with a busy machine. On an idle one it takes a few seconds.
const FOUND: Duration = Duration::from_secs(60);

/// Two contenders that obey, and one that cheats.
async fn with_cheat(cheat: &str) -> (Arena, Vec<Process>) {
    let arena = Arena::start(1).await;
    let mut processes = vec![arena.spawn(Contender(0), 0, None), arena.spawn(Contender(1), 0, None)];
    processes.push(arena.spawn(Contender(2), 0, Some(cheat)));
    (arena, processes)
}

/// Waits until the checker accepts the evidence in the history so far.
async fn found(arena: &Arena, evidence: impl Fn(&Verdict) -> bool) {
    let deadline = Instant::now() + FOUND;
    while !evidence(&Verdict::of(arena.history.entries(), Stamp::now())) {
        assert!(
            Instant::now() < deadline,
            "the cheat is not found: {}",
            Verdict::of(arena.history.entries(), Stamp::now())
        );
        sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contender_that_takes_no_lock_is_found() {
    let (arena, processes) = with_cheat("unlocked").await;
    found(&arena, |verdict| !verdict.overlaps.is_empty()).await;
    end_all(processes, &arena.history).await;
    let verdict = Verdict::of(arena.history.entries(), Stamp::now());
    for (one, other) in &verdict.overlaps {
        assert!([one.by, other.by].contains(&Contender(2)), "{one:?} and {other:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_reported_but_not_sent_is_found() {
    let (arena, mut processes) = with_cheat("unsent").await;
    // A lease may be over soon after the false report: then there is a next one. The last one is the evidence.
    let mut next = 3;
    // Whatever the timers were late: nothing else keeps this lock free.
    let is_found = |verdict: &Verdict| {
        let long = |idle: &&Idle| idle.lock == 0 && idle.length() > LONGEST;
        verdict.idles.iter().filter(long).any(|idle| idle.cause == Cause::KeysReleased)
    };
    loop {
        timeout(FOUND, any_ends(&processes)).await.expect("killed by itself");
        processes.retain(|process| !process.has_ended());
        if timeout(Duration::from_secs(5), found(&arena, is_found)).await.is_ok() {
            break;
        }
        assert!(next < 8, "not found: {}", Verdict::of(arena.history.entries(), Stamp::now()));
        processes.push(arena.spawn(Contender(next), 0, Some("unsent")));
        next += 1;
    }
    end_all(processes, &arena.history).await;
    assert_eq!(Verdict::of(arena.history.entries(), Stamp::now()).overlaps, []);
}
