//! Waits that nobody polls, and contenders whose options cannot be met: neither keeps the lock from others of its client.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use redlock_engine::{LeaseOptions, LockKey, Wait};
use redlock_test_servers::proxy::{Flow, Proxy};
use redlock_test_servers::server::{PATIENCE, Server, client, connected, eventually, key};
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(30);

fn options(identity: &str) -> LeaseOptions {
    LeaseOptions::new(identity, TTL)
}

/// The waiters for a lock on this master, in their order.
async fn waiting(server: &Server, key: &LockKey) -> Vec<String> {
    let places: Vec<String> = server.run(&format!("ZRANGE {} 0 -1", key.queue_key())).await;
    places.iter().map(|place| place.split('@').next().expect("an identity").to_owned()).collect()
}

/// Polls a wait until it is in the queue of every master. Nobody polls it afterwards.
async fn until_in_queue(servers: &[Server], key: &LockKey, wait: impl Future) {
    let in_queue = async {
        for server in servers {
            eventually("it waits", async || (waiting(server, key).await.len() == 1).then_some(())).await;
        }
    };
    tokio::select! {
        _ = wait => panic!("the lock is held"),
        () = in_queue => {}
    }
}

#[tokio::test]
async fn a_wait_that_nobody_polls_keeps_the_lock_from_nobody_beyond_its_deadline() {
    let servers = Server::start_armed(3).await;
    let (holder, client, key) = (client(&servers), client(&servers), key("a"));
    let lease = holder.try_acquire(&key, &options("holder")).await.expect("granted");
    let (a, b) = (options("a"), options("b"));
    let mut unpolled = pin!(client.acquire(&key, &a, Wait::For(PATIENCE / 4)));
    until_in_queue(&servers, &key, &mut unpolled).await;
    lease.release().await;
    let lease = timeout(PATIENCE, client.acquire(&key, &b, Wait::Forever)).await.expect("in time").expect("granted");
    assert_eq!(lease.owner().identity(), "b");
}

#[tokio::test]
async fn a_wait_that_nobody_polls_goes_back_to_its_rank_when_it_is_polled_again() {
    let servers = Server::start_armed(3).await;
    let (holder, client, key) = (client(&servers), client(&servers), key("a"));
    let lease = holder.try_acquire(&key, &options("holder")).await.expect("granted");
    let (a, b) = (options("a"), options("b"));
    let mut unpolled = pin!(client.acquire(&key, &a, Wait::Forever));
    until_in_queue(&servers, &key, &mut unpolled).await;
    let mut other = pin!(client.acquire(&key, &b, Wait::Forever));
    // Its place on the masters goes with its turn.
    let replaced = async {
        for server in &servers {
            eventually("the next waits", async || (waiting(server, &key).await == ["b"]).then_some(())).await;
        }
    };
    tokio::select! {
        granted = &mut other => panic!("the lock is held, not granted: {granted:?}"),
        () = replaced => {}
    }
    lease.release().await;
    let lease = timeout(PATIENCE, other).await.expect("in time").expect("granted");
    // Nothing of it is left that could be granted, until it is polled again.
    let third = tokio::spawn({
        let (client, key) = (client.clone(), key.clone());
        async move { client.acquire(&key, &options("c"), Wait::Forever).await.expect("granted") }
    });
    lease.release().await;
    let lease = timeout(PATIENCE, third).await.expect("in time").expect("no panic");
    assert_eq!(lease.owner().identity(), "c");
    lease.release().await;
    let lease = timeout(PATIENCE, unpolled).await.expect("in time").expect("granted");
    assert_eq!(lease.owner().identity(), "a");
}

#[tokio::test]
async fn a_wait_that_nobody_polls_keeps_no_other_lock_from_hearing_of_releases() {
    let servers = Server::start_armed(3).await;
    let (holder, client) = (client(&servers), connected(&servers).await);
    let (a, b) = (options("a"), options("b"));
    let [one, other] = [key("one"), key("other")];
    let _held = holder.try_acquire(&one, &options("holder")).await.expect("granted");
    let _also_held = holder.try_acquire(&other, &options("holder")).await.expect("granted");
    for polls in 1..16 {
        let mut unpolled = pin!(client.acquire(&one, &a, Wait::Forever));
        for _ in 0..polls {
            let polled = std::future::poll_fn(|context| std::task::Poll::Ready(unpolled.as_mut().poll(context)));
            assert!(polled.await.is_pending(), "the lock is held");
            tokio::task::yield_now().await;
        }
        let mut wait = pin!(client.acquire(&other, &b, Wait::Forever));
        let listens = async {
            for server in &servers {
                eventually("it listens", async || (server.listeners(&other).await == 1).then_some(())).await;
            }
        };
        tokio::select! {
            granted = &mut wait => panic!("the lock is held, not granted: {granted:?}"),
            () = listens => {}
        }
    }
}

#[tokio::test]
async fn options_that_cannot_be_met_keep_the_lock_from_no_other_contender_of_the_client() {
    let servers = Server::start_armed(3).await;
    let (links, client) = Proxy::to_all(&servers).await;
    let key = key("a");
    for link in &links {
        link.answers(Flow::Late(Duration::from_millis(30)));
    }
    let picky = LeaseOptions::new("picky", TTL / 30).min_validity(Duration::from_millis(980));
    let mut hopeless = pin!(client.acquire(&key, &picky, Wait::Forever));
    let (b, c) = (options("b"), options("c"));
    let others = async {
        client.acquire(&key, &b, Wait::For(PATIENCE)).await.expect("granted").release().await;
        client.acquire(&key, &c, Wait::For(PATIENCE)).await.expect("granted").release().await;
    };
    tokio::select! {
        biased;
        granted = &mut hopeless => panic!("there is never that much left: {granted:?}"),
        () = others => {}
    }
}

#[tokio::test]
async fn a_higher_priority_that_comes_later_in_the_same_client_goes_first() {
    let servers = Server::start_armed(3).await;
    let (holder, client, key) = (client(&servers), client(&servers), key("a"));
    let lease = holder.try_acquire(&key, &options("holder")).await.expect("granted");
    let (granted, mut order) = tokio::sync::mpsc::unbounded_channel();
    for (name, priority) in [("low", 0), ("high", 7)] {
        let (client, key, granted) = (client.clone(), key.clone(), granted.clone());
        let own = options(name).priority(priority);
        tokio::spawn({
            let key = key.clone();
            async move {
                let lease = client.acquire(&key, &own, Wait::Forever).await.expect("granted");
                let _ = granted.send(name);
                lease.release().await;
            }
        });
        for server in &servers {
            eventually("it waits on the masters", async || (waiting(server, &key).await == [name]).then_some(())).await;
        }
    }
    // Before the contenders of other clients with less priority, too.
    let middle = redlock_test_servers::server::client(&servers);
    let own = options("middle").priority(3);
    tokio::spawn({
        let (key, granted) = (key.clone(), granted.clone());
        async move {
            let lease = middle.acquire(&key, &own, Wait::Forever).await.expect("granted");
            let _ = granted.send("middle");
            lease.release().await;
        }
    });
    for server in &servers {
        let both = ["high", "middle"];
        eventually("both wait", async || (waiting(server, &key).await == both).then_some(())).await;
    }
    lease.release().await;
    assert_eq!(timeout(PATIENCE, order.recv()).await.expect("in time"), Some("high"));
    for _ in 0..2 {
        timeout(PATIENCE, order.recv()).await.expect("in time").expect("the others");
    }
}
