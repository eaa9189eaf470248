//! Who gets a released lock: the waiter with the highest priority, then the longest waiter, in whichever process.

use std::time::Duration;

use futures::StreamExt as _;
use futures::future::join_all;
use redlock_engine::{Client, Lease, LeaseOptions, LockKey, Token, Wait};
use redlock_test_servers::server::{PATIENCE, Server, client, eventually, key, nobody_listens};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(30);

/// Lets a contender wait for the lock in a task, and returns once it is in the queue of every master.
async fn queue_up(
    servers: &[Server],
    client: Client,
    key: &LockKey,
    options: LeaseOptions,
    granted: mpsc::UnboundedSender<Lease>,
) -> JoinHandle<()> {
    let before = join_all(servers.iter().map(|server| places(server, key))).await;
    let waiting = tokio::spawn({
        let key = key.clone();
        async move {
            let lease = client.acquire(&key, &options, Wait::Forever).await.expect("granted");
            let _ = granted.send(lease);
        }
    });
    for (server, before) in servers.iter().zip(&before) {
        eventually("it is in the queue", async || {
            places(server, key).await.iter().any(|place| !before.contains(place)).then_some(())
        })
        .await;
    }
    waiting
}

async fn places(server: &Server, key: &LockKey) -> Vec<String> {
    server.run(&format!("ZRANGE {} 0 -1", key.queue_key())).await
}

/// Identities in the order in which they are granted the lock. Each releases it at once.
async fn order(first: Lease, mut granted: mpsc::UnboundedReceiver<Lease>) -> Vec<String> {
    let mut order = vec![first.owner().identity().to_owned()];
    first.release().await;
    while let Some(lease) = timeout(PATIENCE, granted.recv()).await.expect("the next is granted") {
        order.push(lease.owner().identity().to_owned());
        lease.release().await;
    }
    order
}

async fn nothing_is_left(servers: &[Server]) {
    for server in servers {
        eventually("no lock, no queue", async || {
            let mut keys: Vec<String> = server.run("KEYS redlock:tests*").await;
            keys.sort();
            (keys == ["redlock:tests#fences", "redlock:tests#queue/ kept"]).then_some(())
        })
        .await;
    }
    nobody_listens(servers).await;
}

#[tokio::test]
async fn the_longest_waiter_is_first_across_processes() {
    let servers = Server::start_armed(5).await;
    let (key, (sender, granted)) = (key("a"), mpsc::unbounded_channel());
    let first = client(&servers).try_acquire(&key, &LeaseOptions::new("first", TTL)).await.expect("granted");
    for name in ["b", "a", "d", "c", "e"] {
        queue_up(&servers, client(&servers), &key, LeaseOptions::new(name, TTL), sender.clone()).await;
    }
    drop(sender);
    assert_eq!(order(first, granted).await, ["first", "b", "a", "d", "c", "e"]);
    nothing_is_left(&servers).await;
}

#[tokio::test]
async fn the_highest_priority_is_first_then_the_longest_waiter() {
    let servers = Server::start_armed(3).await;
    let (key, (sender, granted)) = (key("a"), mpsc::unbounded_channel());
    let first = client(&servers).try_acquire(&key, &LeaseOptions::new("first", TTL)).await.expect("granted");
    for (name, priority) in [("low", -1000), ("none", 0), ("high", 1000), ("also-none", 0), ("also-high", 1000)] {
        let options = LeaseOptions::new(name, TTL).priority(priority);
        queue_up(&servers, client(&servers), &key, options, sender.clone()).await;
    }
    drop(sender);
    assert_eq!(order(first, granted).await, ["first", "high", "also-high", "none", "also-none", "low"]);
}

#[tokio::test]
async fn a_waiter_that_is_gone_delays_nobody_and_leaves_nothing_behind() {
    let servers = Server::start_armed(3).await;
    let (key, (sender, mut granted)) = (key("a"), mpsc::unbounded_channel());
    let first = client(&servers).try_acquire(&key, &LeaseOptions::new("first", TTL)).await.expect("granted");
    let cancelled = queue_up(&servers, client(&servers), &key, LeaseOptions::new("b", TTL), sender.clone()).await;
    queue_up(&servers, client(&servers), &key, LeaseOptions::new("c", TTL), sender.clone()).await;
    cancelled.abort();
    for server in &servers {
        eventually("it has left the queue", async || (places(server, &key).await.len() == 1).then_some(())).await;
    }
    // A waiter that died has not left the queue. Nor has a waiter that hangs: it listens and does nothing.
    let mut hanging = Vec::new();
    for server in &servers {
        server.enter_queue(&key, -9_000_000_000_000_000, "dead@1 1").await;
        server.enter_queue(&key, -8_000_000_000_000_000, "hangs@2 2").await;
        hanging.push(server.subscriber(&key.channel(Token::new(2).expect("a token"))).await);
    }
    first.release().await;
    let lease = timeout(PATIENCE, granted.recv()).await.expect("granted in spite of the others").expect("a lease");
    assert_eq!(lease.owner().identity(), "c");
    for subscriber in &mut hanging {
        let message = timeout(PATIENCE, subscriber.on_message().next()).await.expect("it was told").expect("a message");
        assert!(message.get_payload::<String>().expect("text").ends_with(" hangs@2 2"), "{message:?}");
    }
    drop(hanging);
    lease.release().await;
    nothing_is_left(&servers).await;
}

#[tokio::test]
async fn a_holder_that_releases_and_contends_again_does_not_overtake_the_waiter() {
    let servers = Server::start_armed(3).await;
    let (key, (sender, mut granted)) = (key("a"), mpsc::unbounded_channel());
    let greedy = client(&servers);
    let mut lease = greedy.try_acquire(&key, &LeaseOptions::new("greedy", TTL)).await.expect("granted");
    for round in 0..20 {
        queue_up(&servers, client(&servers), &key, LeaseOptions::new("patient", TTL), sender.clone()).await;
        lease.release().await;
        let again = tokio::spawn({
            let (greedy, key) = (greedy.clone(), key.clone());
            async move { greedy.acquire(&key, &LeaseOptions::new("greedy", TTL), Wait::Forever).await }
        });
        let other = timeout(PATIENCE, granted.recv()).await.unwrap_or_else(|_| panic!("overtaken in round {round}"));
        let token = other.expect("a lease").owner().token();
        // Its lease was dropped at once: the lock goes to the contender that came back.
        lease = timeout(PATIENCE, again).await.expect("handed over").expect("no panic").expect("granted again");
        assert!(token < lease.owner().token());
    }
}
