//! Waiting for a lock that another holds.

use std::time::Duration;

use redlock_engine::{LeaseOptions, Reason, Wait};
use redlock_test_servers::server::{PATIENCE, Server, client, eventually, gone_everywhere, key, nobody_listens};
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_waiter_gets_the_lock_at_its_release_long_before_the_ttl_ends() {
    let servers = Server::start_armed(5).await;
    let (one, other, key) = (client(&servers), client(&servers), key("a"));
    let lease = one.try_acquire(&key, &LeaseOptions::new("one", TTL)).await.expect("granted");
    let waiting = tokio::spawn({
        let key = key.clone();
        async move { other.acquire(&key, &LeaseOptions::new("other", TTL), Wait::Forever).await }
    });
    for server in &servers {
        eventually("the waiter listens", async || (server.listeners(&key).await == 1).then_some(())).await;
    }
    let first = lease.owner().token();
    lease.release().await;
    let lease = timeout(PATIENCE, waiting).await.expect("woken").expect("no panic").expect("granted");
    assert!(lease.owner().token() > first);
    // A waiter that was granted the lock stops listening.
    nobody_listens(&servers).await;
}

#[tokio::test]
async fn a_waiter_gets_the_lock_of_a_dead_holder_after_the_ttl() {
    let servers = Server::start_armed(5).await;
    let (one, other, key) = (client(&servers), client(&servers), key("a"));
    let ttl = Duration::from_secs(1);
    let lease = one.try_acquire(&key, &LeaseOptions::new("one", ttl)).await.expect("granted");
    let token = lease.owner().token();
    lease.abandon();
    let lease = other.acquire(&key, &LeaseOptions::new("other", ttl), Wait::For(PATIENCE)).await.expect("granted");
    assert!(lease.owner().token() > token);
}

#[tokio::test]
async fn a_wait_ends_at_its_deadline_and_names_the_holder() {
    let servers = Server::start_armed(3).await;
    let (one, other, key) = (client(&servers), client(&servers), key("a"));
    let lease = one.try_acquire(&key, &LeaseOptions::new("one", TTL)).await.expect("granted");
    let wait = Wait::For(Duration::from_millis(300));
    let error = other.acquire(&key, &LeaseOptions::new("other", TTL), wait).await.expect_err("not in that time");
    assert_eq!(error.to_string(), format!("held by {}", lease.owner()));
    assert_eq!(error.reason(), Reason::Contended);
}

#[tokio::test]
async fn waiters_of_one_process_are_granted_in_order_of_arrival() {
    let servers = Server::start_armed(3).await;
    let (client, key) = (client(&servers), key("a"));
    let lease = client.try_acquire(&key, &LeaseOptions::new("first", TTL)).await.expect("granted");
    let (granted_to, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..5 {
        let (client, key, granted_to) = (client.clone(), key.clone(), granted_to.clone());
        let (asked, is_asked) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let options = LeaseOptions::new(format!("w{number}"), TTL);
            let acquire = client.acquire(&key, &options, Wait::Forever);
            tokio::pin!(acquire);
            // One poll adds it to the queue.
            let early = futures::poll!(&mut acquire);
            asked.send(()).expect("the test waits");
            assert!(early.is_pending(), "the lock is held");
            let lease = acquire.await.expect("granted");
            granted_to.send(number).expect("the test waits");
            lease.release().await;
        });
        is_asked.await.expect("asked");
    }
    lease.release().await;
    let mut got = Vec::new();
    for _ in 0..5 {
        got.push(timeout(PATIENCE, order.recv()).await.expect("granted in time").expect("a number"));
    }
    assert_eq!(got, [0, 1, 2, 3, 4]);
}

#[tokio::test]
async fn never_two_hold_a_lock_while_many_processes_contend() {
    let servers = Server::start_armed(5).await;
    let key = key("a");
    let holding = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let tasks: Vec<_> = (0..6)
        .map(|number| {
            // Each has a client of its own: only the masters connect them.
            let (client, key, holding) = (client(&servers), key.clone(), holding.clone());
            tokio::spawn(async move {
                let mut tokens = Vec::new();
                for _ in 0..10 {
                    let options = LeaseOptions::new(format!("c{number}"), TTL);
                    let lease =
                        client.acquire(&key, &options, Wait::For(PATIENCE * 3)).await.expect("granted in the end");
                    assert_eq!(holding.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "two holders");
                    tokens.push(lease.owner().token());
                    tokio::task::yield_now().await;
                    holding.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    lease.release().await;
                }
                tokens
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        let tokens = task.await.expect("no violation");
        assert!(tokens.is_sorted());
        all.extend(tokens);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 60, "each grant has a token of its own");
}

#[tokio::test]
async fn a_dropped_wait_leaves_no_key_and_no_subscription() {
    let servers = Server::start_armed(3).await;
    let (one, other, key) = (client(&servers), client(&servers), key("a"));
    let lease = one.try_acquire(&key, &LeaseOptions::new("one", TTL)).await.expect("granted");
    // Dropped after many different times, so at each await.
    for micros in (0..20_000).step_by(400) {
        let options = LeaseOptions::new("other", TTL);
        let _ = timeout(Duration::from_micros(micros), other.acquire(&key, &options, Wait::Forever)).await;
    }
    lease.release().await;
    for micros in (0..4_000).step_by(80) {
        let options = LeaseOptions::new("other", TTL);
        let _ = timeout(Duration::from_micros(micros), other.acquire(&key, &options, Wait::Forever)).await;
    }
    gone_everywhere(&servers, &key).await;
    nobody_listens(&servers).await;
}
