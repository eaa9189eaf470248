//! Two addresses of a client that lead to one server: it has one vote.

use std::time::Duration;

use redlock_engine::{Client, Health, LeaseOptions, LeaseState, Loss, Marker, MasterError, RedisMaster, Renewal, Wait};
use redlock_test_servers::server::{CALL_TIMEOUT, PATIENCE, Server, client, eventually, key};
use tokio::time::timeout;

/// A client whose first and last address lead to the second server.
fn misled(servers: &[Server]) -> Client {
    let named = |name: &str, server: &Server| {
        let mut endpoint = server.endpoint(Marker::Required);
        name.clone_into(&mut endpoint.name);
        RedisMaster::connect(endpoint)
    };
    Client::new([named("m0", &servers[1]), named("m1", &servers[0]), named("m2", &servers[1])], CALL_TIMEOUT)
        .expect("valid settings")
}

#[tokio::test]
async fn the_second_address_of_a_server_gives_no_vote_and_the_error_names_both() {
    let servers = Server::start_armed(2).await;
    let client = misled(&servers);
    let why = eventually("one is refused", async || {
        let refused = |master: &RedisMaster| match master.health() {
            Health::Down(MasterError::Misconfigured(why)) => Some(why),
            _ => None,
        };
        client.masters().iter().find_map(refused)
    })
    .await;
    assert!(why.contains("m0 (127.0.0.1:") && why.contains("m2 (127.0.0.1:"), "{why}");
    let lease = client.acquire(&key("a"), &LeaseOptions::new("x", PATIENCE), Wait::For(PATIENCE)).await;
    drop(lease.expect("by two servers"));
}

#[tokio::test]
async fn one_server_behind_two_addresses_renews_no_lease_alone() {
    let mut servers = Server::start_armed(2).await;
    let client = misled(&servers);
    let renewal = Renewal::Every(Duration::from_millis(100));
    let options = LeaseOptions::new("x", Duration::from_secs(3)).renewal(renewal);
    let lease = client.acquire(&key("a"), &options, Wait::For(PATIENCE)).await.expect("granted by two servers");
    servers[0].crash().await;
    let end = timeout(PATIENCE, lease.ended()).await.expect("one vote of three is no majority");
    assert!(matches!(end, LeaseState::Lost(Loss::Expired { .. })), "{end:?}");
}

#[tokio::test]
async fn two_clients_of_a_process_may_use_the_same_servers() {
    let servers = Server::start_armed(3).await;
    for client in [client(&servers), client(&servers)] {
        let lease = client.acquire(&key("a"), &LeaseOptions::new("x", PATIENCE), Wait::For(PATIENCE)).await;
        lease.expect("granted").release().await;
    }
}
