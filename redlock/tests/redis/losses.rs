//! What a loss says of its cause.

use std::time::Duration;

use redlock_engine::{Error, LeaseOptions, LeaseState, Loss, MasterError, Renewal, Wait};
use redlock_test_servers::server::{PATIENCE, Server, client, key};
use tokio::time::timeout;

#[tokio::test]
async fn a_lease_that_expires_says_why_it_was_not_renewed_the_last_time() {
    let mut servers = Server::start_armed(3).await;
    let (client, key) = (client(&servers), key("a"));
    let renewal = Renewal::Every(Duration::from_millis(50));
    let options = LeaseOptions::new("x", Duration::from_secs(2)).renewal(renewal);
    let lease = client.acquire(&key, &options, Wait::For(PATIENCE)).await.expect("granted");
    let mut state = lease.state();
    // One is down, one has lost its marker: the majority is gone in two ways.
    servers[0].crash().await;
    let _: i64 = servers[1].run("DEL redlock:armed").await;
    let end = timeout(PATIENCE, lease.ended()).await.expect("told");
    let LeaseState::Lost(loss @ Loss::Expired { last_failure: Some(error) }) = &end else { panic!("{end:?}") };
    let Error::NoQuorum { failures, .. } = &**error else { panic!("{error}") };
    let said = |server: &Server| {
        let name = format!("r{}", server.port);
        failures.iter().find(|failure| failure.master == name).map(|failure| failure.error.clone())
    };
    assert!(matches!(said(&servers[0]), Some(MasterError::Unreachable(_) | MasterError::Timeout)), "{failures:?}");
    assert_eq!(said(&servers[1]), Some(MasterError::Quarantined));
    assert_eq!(said(&servers[2]), None);
    assert_eq!(loss.to_string(), format!("the lease could not be renewed before it ended: {error}"));
    assert_eq!(loss.as_str(), "Expired");
    // Whoever watches the state hears the same.
    let told = state.wait_for(|state| !matches!(state, LeaseState::Held(_)));
    let told = timeout(PATIENCE, told).await.expect("told").expect("a final state");
    assert!(matches!(&*told, LeaseState::Lost(Loss::Expired { last_failure: Some(_) })), "{told:?}");
}

#[tokio::test]
async fn a_lease_that_nobody_renews_expires_without_a_cause_in_the_masters() {
    let servers = Server::start_armed(3).await;
    let options = LeaseOptions::new("x", Duration::from_millis(300)).renewal(Renewal::None);
    let lease = client(&servers).acquire(&key("a"), &options, Wait::For(PATIENCE)).await.expect("granted");
    let end = timeout(PATIENCE, lease.ended()).await.expect("told");
    assert_eq!(end, LeaseState::Lost(Loss::Expired { last_failure: None }));
}
