//! A client shuts down: none of its keys stays on the masters.

use std::time::Duration;

use redlock_engine::{Client, Error, LeaseOptions, LeaseState, Marker, RedisMaster, Released, Renewal, Wait};
use redlock_test_servers::server::{PATIENCE, Server, client, eventually, held_everywhere, key};
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_release_also_reaches_the_master_whose_answer_it_did_not_wait_for() {
    let servers = Server::start_armed(3).await;
    let client = Client::new(servers.iter().map(|s| RedisMaster::connect(s.endpoint(Marker::Required))), PATIENCE)
        .expect("valid settings");
    let key = key("a");
    let lease = client.acquire(&key, &LeaseOptions::new("one", TTL), Wait::Forever).await.expect("granted");
    held_everywhere(&servers, &key, lease.owner()).await;
    servers[2].freeze();
    assert_eq!(lease.release().await, Released::Freed);
    let mut closing = std::pin::pin!(client.shutdown());
    // The frozen master has not answered yet: the shutdown waits for it.
    assert!(timeout(Duration::from_millis(200), &mut closing).await.is_err());
    servers[2].thaw();
    timeout(PATIENCE, closing).await.expect("ends with the last answer");
    for server in &servers {
        assert_eq!(server.get(&key).await, None, "deleted before the shutdown ended");
    }
}

#[tokio::test]
async fn a_shutdown_releases_held_locks_and_ends_waits() {
    let servers = Server::start_armed(3).await;
    let (client, other) = (client(&servers), client(&servers));
    let (held, awaited) = (key("held"), key("awaited"));
    let lease = client.try_acquire(&held, &LeaseOptions::new("one", TTL)).await.expect("granted");
    let owner = lease.owner().clone();
    let fixed = LeaseOptions::new("one", TTL).renewal(Renewal::None);
    let fixed = client.try_acquire(&key("fixed"), &fixed).await.expect("granted");
    let blocking = other.try_acquire(&awaited, &LeaseOptions::new("other", TTL)).await.expect("granted");
    let waiting = tokio::spawn({
        let (client, key) = (client.clone(), awaited.clone());
        async move { client.acquire(&key, &LeaseOptions::new("one", TTL), Wait::Forever).await.map(drop) }
    });
    for server in &servers {
        eventually("it waits", async || (server.listeners(&awaited).await == 1).then_some(())).await;
    }

    held_everywhere(&servers, &awaited, blocking.owner()).await;
    client.shutdown().await;
    assert_eq!(waiting.await.expect("no panic"), Err(Error::ShutDown));
    for server in &servers {
        eventually("the other client's key alone", async || {
            let keys: Vec<String> = server.run("KEYS redlock:tests/*").await;
            (keys == [awaited.redis_key()]).then_some(())
        })
        .await;
    }
    for lease in [lease, fixed] {
        assert!(!lease.is_held());
        assert_eq!(*lease.state().borrow(), LeaseState::Released);
        assert_eq!(lease.release().await, Released::Unknown);
    }
    let again = client.try_acquire(&held, &LeaseOptions::new("one", TTL)).await;
    assert_eq!(again.map(drop), Err(Error::ShutDown));
    let adopted = client.adopt(&held, &owner, &LeaseOptions::new("one", TTL)).await;
    assert_eq!(adopted.map(drop), Err(Error::ShutDown));
}
