//! Futures that are dropped, holders that panic, runtimes that end: nothing stays behind on the masters.

use std::future::Future;
use std::time::Duration;

use redlock_engine::{Client, LeaseOptions, LeaseState, Marker, RedisMaster, Released, Renewal, Wait};
use redlock_test_servers::server::{
    CALL_TIMEOUT, PATIENCE, Server, connected, eventually, gone_everywhere, held_everywhere, key, nobody_listens,
};
use tokio::time::timeout;

/// Longer than a test waits: no key expires in a test.
const TTL: Duration = Duration::from_secs(60);

/// Polls a future at most `times` times, each time after it was woken, then drops it. Returns its output if it ended
/// before.
async fn polled<F: Future>(future: F, times: usize) -> Option<F::Output> {
    tokio::pin!(future);
    let mut left = times;
    std::future::poll_fn(|context| {
        if left == 0 {
            return std::task::Poll::Ready(None);
        }
        left -= 1;
        let polled = future.as_mut().poll(context).map(Some);
        if polled.is_pending() && left == 0 {
            // Dropped after this poll, not when it is woken next.
            return std::task::Poll::Ready(None);
        }
        polled
    })
    .await
}

#[tokio::test]
async fn an_attempt_dropped_at_any_await_leaves_nothing_on_the_masters() {
    let servers = Server::start_armed(3).await;
    let (client, key) = (connected(&servers).await, key("a"));
    let options = LeaseOptions::new("x", TTL).renewal(Renewal::None);
    let mut completed = 0;
    for times in 1.. {
        // If it was granted, the lease is dropped.
        if let Some(lease) = polled(client.try_acquire(&key, &options), times).await {
            drop(lease.expect("the dropped attempts before are gone, or come before this on the same connections"));
            completed += 1;
        }
        gone_everywhere(&servers, &key).await;
        if completed == 3 {
            assert!(times > 3, "it was dropped at several awaits");
            break;
        }
    }
    for server in &servers {
        let left = "marker, fences, and until when these are kept";
        eventually(left, async || (server.run::<i64>("DBSIZE").await == 3).then_some(())).await;
    }
}

#[tokio::test]
async fn a_wait_dropped_at_any_await_leaves_nothing_on_the_masters() {
    let servers = Server::start_armed(3).await;
    let (one, other, key) = (connected(&servers).await, connected(&servers).await, key("a"));
    let lease = one.try_acquire(&key, &LeaseOptions::new("one", TTL)).await.expect("granted");
    let options = LeaseOptions::new("other", TTL);
    for times in 1..=25 {
        // The later ones are not woken any more: a deadline ends them.
        let wait = polled(other.acquire(&key, &options, Wait::Forever), times);
        let waited = timeout(Duration::from_millis(50), wait).await;
        assert!(!matches!(waited, Ok(Some(_))), "the lock is held");
    }
    held_everywhere(&servers, &key, lease.owner()).await;
    nobody_listens(&servers).await;
    assert_eq!(lease.release().await, Released::Freed);
    gone_everywhere(&servers, &key).await;
}

#[tokio::test]
async fn a_release_that_is_dropped_goes_on() {
    let servers = Server::start_armed(3).await;
    let (client, key) = (connected(&servers).await, key("a"));
    for times in 0..3 {
        let lease = client.acquire(&key, &LeaseOptions::new("x", TTL), Wait::For(PATIENCE)).await.expect("granted");
        let _ = polled(lease.release(), times).await;
        gone_everywhere(&servers, &key).await;
    }
}

#[tokio::test]
async fn a_holder_that_panics_releases_its_lock() {
    let servers = Server::start_armed(3).await;
    let (client, key) = (connected(&servers).await, key("a"));
    let lease = client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect("granted");
    let holder = tokio::spawn(async move {
        assert!(!lease.is_held(), "the panic of this test");
    });
    assert!(holder.await.expect_err("a panic").is_panic());
    gone_everywhere(&servers, &key).await;
    drop(client.try_acquire(&key, &LeaseOptions::new("y", TTL)).await.expect("free again"));
}

/// A runtime of its own, in which a task holds the lock for ever; ended by `end`.
fn hold_in(runtime: tokio::runtime::Runtime, servers: &[Server], ttl: Duration, end: fn(tokio::runtime::Runtime)) {
    let endpoints: Vec<_> = servers.iter().map(|s| s.endpoint(Marker::Required)).collect();
    let thread = std::thread::spawn(move || {
        let (granted, is_granted) = tokio::sync::oneshot::channel();
        runtime.spawn(async move {
            let client =
                Client::new(endpoints.into_iter().map(RedisMaster::connect), CALL_TIMEOUT).expect("valid settings");
            let lease = client.try_acquire(&key("a"), &LeaseOptions::new("x", ttl)).await.expect("granted");
            granted.send(lease.state()).expect("the test waits");
            // The lease is dropped with this task, in the shutdown of its runtime.
            lease.ended().await
        });
        let state = runtime.block_on(is_granted).expect("granted");
        assert!(matches!(*state.borrow(), LeaseState::Held(_)));
        end(runtime);
    });
    thread.join().expect("neither a panic nor a deadlock");
}

#[tokio::test]
async fn a_lease_that_is_dropped_while_its_runtime_ends_is_over_after_its_ttl() {
    let servers = Server::start_armed(3).await;
    let ttl = Duration::from_secs(1);
    let one_thread = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let threads = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    hold_in(one_thread(), &servers, ttl, drop);
    gone_everywhere(&servers, &key("a")).await;
    hold_in(threads().expect("a runtime"), &servers, ttl, |runtime| runtime.shutdown_timeout(PATIENCE));
    gone_everywhere(&servers, &key("a")).await;
    hold_in(threads().expect("a runtime"), &servers, ttl, tokio::runtime::Runtime::shutdown_background);
    gone_everywhere(&servers, &key("a")).await;
}
