//! Releases that did not arrive: each is sent as soon as its master is reachable again.

use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use redlock_engine::{Client, Health, LeaseOptions, LockKey, Marker, RedisMaster, Released, Renewal, Wait};
use redlock_test_servers::proxy::{Flow, Proxy};
use redlock_test_servers::server::{PATIENCE, Server, eventually, key, until_connected};
use tokio::time::timeout;

/// Longer than a test's patience: no key goes by itself.
const TTL: Duration = Duration::from_secs(60);

fn unrenewed() -> LeaseOptions {
    LeaseOptions::new("x", TTL).renewal(Renewal::None)
}

async fn gone_everywhere(servers: &[Server], key: &LockKey) {
    for server in servers {
        eventually("no key left", async || server.get(key).await.is_none().then_some(())).await;
    }
}

async fn all_have(servers: &[Server], key: &LockKey) {
    for server in servers {
        eventually("the key", async || server.get(key).await).await;
    }
}

async fn all_down(client: &Client) {
    eventually("all are down", async || {
        client.masters().iter().all(|master| matches!(master.health(), Health::Down(_))).then_some(())
    })
    .await;
}

#[tokio::test]
async fn leases_dropped_while_all_masters_hang_are_free_once_these_go_on() {
    let servers = Server::start_armed(3).await;
    let masters = servers.iter().map(|server| RedisMaster::connect(server.endpoint(Marker::Required)));
    let client = Client::new(masters, Duration::from_millis(50)).expect("valid settings");
    until_connected(&client).await;
    let names: Vec<_> = (0..50).map(|n| key(&format!("n{n}"))).collect();
    let leases: Vec<_> = stream::iter(&names)
        .then(async |key| client.acquire(key, &unrenewed(), Wait::For(PATIENCE)).await.expect("granted"))
        .collect()
        .await;
    servers.iter().for_each(Server::freeze);
    drop(leases);
    tokio::time::sleep(Duration::from_millis(300)).await;
    servers.iter().for_each(Server::thaw);
    for key in &names {
        gone_everywhere(&servers, key).await;
    }
}

#[tokio::test]
async fn a_release_without_any_connection_is_sent_on_the_next() {
    let servers = Server::start_armed(3).await;
    let (links, client) = Proxy::to_all(&servers).await;
    let (released, dropped, foreign) = (key("released"), key("dropped"), key("foreign"));
    let mut leases = Vec::new();
    for key in [&released, &dropped, &foreign] {
        leases.push(client.acquire(key, &unrenewed(), Wait::For(PATIENCE)).await.expect("granted"));
        all_have(&servers, key).await;
    }
    links.iter().for_each(Proxy::cut);
    all_down(&client).await;
    // As another process releases: it does not know the TTL.
    let third = leases.pop().expect("three");
    assert_eq!(client.release(&foreign, third.owner()).await, Released::Unknown);
    third.abandon();
    drop(leases.pop());
    assert_eq!(leases.pop().expect("one").release().await, Released::Unknown);
    links.iter().for_each(Proxy::heal);
    for key in [&released, &dropped, &foreign] {
        gone_everywhere(&servers, key).await;
    }
}

#[tokio::test]
async fn an_attempt_whose_connections_are_reset_leaves_nothing_behind() {
    let servers = Server::start_armed(3).await;
    let (links, client) = Proxy::to_all_within(&servers, PATIENCE).await;
    let key = key("a");
    for link in &links {
        link.answers(Flow::Hold);
    }
    let attempt = tokio::spawn({
        let (client, key) = (client.clone(), key.clone());
        async move { client.try_acquire(&key, &unrenewed()).await.map(drop) }
    });
    all_have(&servers, &key).await;
    links.iter().for_each(Proxy::cut);
    attempt.await.expect("no panic").expect_err("no answer");
    all_down(&client).await;
    links.iter().for_each(Proxy::heal);
    gone_everywhere(&servers, &key).await;
}

#[tokio::test]
async fn a_release_that_its_caller_drops_goes_on() {
    let servers = Server::start_armed(3).await;
    let (links, client) = Proxy::to_all_within(&servers, PATIENCE).await;
    let key = key("a");
    let lease = client.acquire(&key, &unrenewed(), Wait::For(PATIENCE)).await.expect("granted");
    all_have(&servers, &key).await;
    for link in &links {
        link.requests(Flow::Hold);
    }
    let owner = lease.owner().clone();
    lease.abandon();
    assert!(timeout(Duration::from_millis(50), client.release(&key, &owner)).await.is_err());
    links.iter().for_each(Proxy::cut);
    all_down(&client).await;
    links.iter().for_each(Proxy::heal);
    gone_everywhere(&servers, &key).await;
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_masters_that_stay_away_and_leaves_no_task() {
    let servers = Server::start_armed(3).await;
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (links, client) = Proxy::to_all(&servers).await;
    let lease = client.acquire(&key("a"), &unrenewed(), Wait::For(PATIENCE)).await.expect("granted");
    links.iter().for_each(Proxy::cut);
    all_down(&client).await;
    assert_eq!(lease.release().await, Released::Unknown);
    timeout(PATIENCE, client.shutdown()).await.expect("it ends");
    drop((client, links));
    eventually("no task left", async || {
        (tokio::runtime::Handle::current().metrics().num_alive_tasks() <= before).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_release_needs_one_round_trip_to_a_server_that_never_ran_its_script() {
    let servers = Server::start_armed(5).await;
    let (links, client) = Proxy::to_all_within(&servers, PATIENCE).await;
    let key = key("a");
    let lease = client.acquire(&key, &unrenewed(), Wait::For(PATIENCE)).await.expect("granted");
    all_have(&servers, &key).await;
    links[..3].iter().for_each(|link| link.answers(Flow::Hold));
    drop(lease);
    gone_everywhere(&servers, &key).await;
}

#[tokio::test]
async fn a_release_is_healed_where_the_server_forgot_the_script_and_its_answers_are_lost() {
    let servers = Server::start_armed(5).await;
    let (links, client) = Proxy::to_all_within(&servers, Duration::from_millis(200)).await;
    let key = key("a");
    let lease = client.acquire(&key, &unrenewed(), Wait::For(PATIENCE)).await.expect("granted");
    all_have(&servers, &key).await;
    for server in &servers {
        let _: String = server.run("SCRIPT FLUSH").await;
    }
    links[..3].iter().for_each(|link| link.answers(Flow::Hold));
    // By two of five nothing is decided.
    assert_eq!(lease.release().await, Released::Unknown);
    links[..3].iter().for_each(Proxy::cut);
    links.iter().for_each(Proxy::heal);
    gone_everywhere(&servers, &key).await;
}
