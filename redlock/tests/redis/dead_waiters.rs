//! Waiters that were killed: what they leave in the masters' queues lapses, and holds nobody up meanwhile.

use std::time::Duration;

use redlock_engine::master::{Master as _, Place};
use redlock_engine::{Client, LeaseOptions, LockKey, Marker, Owner, RedisMaster, Token, Wait};
use redlock_test_servers::server::{CALL_TIMEOUT, PATIENCE, Server, client, eventually, key};
use tokio::time::{Instant, timeout};

const TTL: Duration = Duration::from_secs(30);

/// Enters the queue as a process does that is killed afterwards.
async fn enter_and_die(server: &Server, key: &LockKey, count: u64) {
    let master = RedisMaster::connect(server.endpoint(Marker::Required));
    for number in 1..=count {
        let token = Token::new(number).expect("a token");
        // Of the highest priority: before all that live.
        let place = Place::new(&Owner::new("dead", token, number), token, 1000, Instant::now());
        master.enqueue(key, &place, Instant::now() + CALL_TIMEOUT).await.expect("entered");
    }
}

async fn waiting(server: &Server, key: &LockKey) -> Vec<String> {
    server.run(&format!("ZRANGE {} 0 -1", key.queue_key())).await
}

/// Waits for the lock in a task, and returns once it is in the queue.
async fn wait_in_queue(server: &Server, client: &Client, key: &LockKey) -> tokio::task::JoinHandle<()> {
    let before = waiting(server, key).await.len();
    let waiter = tokio::spawn({
        let (client, key) = (client.clone(), key.clone());
        async move {
            drop(client.acquire(&key, &LeaseOptions::new("alive", TTL), Wait::Forever).await.expect("granted"));
        }
    });
    eventually("it waits", async || (waiting(server, key).await.len() > before).then_some(())).await;
    waiter
}

#[tokio::test]
async fn the_place_of_a_killed_waiter_lapses_while_others_wait() {
    let servers = Server::start_armed(1).await;
    let (client, key) = (client(&servers), key("a"));
    let lease = client.try_acquire(&key, &LeaseOptions::new("holder", TTL)).await.expect("granted");
    enter_and_die(&servers[0], &key, 300).await;
    let waiter = wait_in_queue(&servers[0], &client, &key).await;
    let alive = eventually("only the living is left", async || {
        let places = waiting(&servers[0], &key).await;
        (places.len() == 1).then_some(places)
    })
    .await;
    assert!(alive[0].starts_with("alive@"), "{alive:?}");
    lease.release().await;
    timeout(PATIENCE, waiter).await.expect("in time").expect("granted");
}

#[tokio::test]
async fn a_release_passes_over_a_few_killed_waiters_and_leaves_the_rest_to_lapse() {
    let servers = Server::start_armed(1).await;
    let (client, key) = (client(&servers), key("a"));
    let lease = client.try_acquire(&key, &LeaseOptions::new("holder", TTL)).await.expect("granted");
    enter_and_die(&servers[0], &key, 40).await;
    lease.release().await;
    assert_eq!(waiting(&servers[0], &key).await.len(), 40 - 16);
    // And the contender behind them hears of no release, but finds the lock free at the next check.
    let lease = client.try_acquire(&key, &LeaseOptions::new("holder", TTL)).await.expect("granted");
    let waiter = wait_in_queue(&servers[0], &client, &key).await;
    lease.release().await;
    timeout(PATIENCE, waiter).await.expect("in time").expect("granted");
}
