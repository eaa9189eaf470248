//! Endpoints that are given as URLs.

use std::time::Duration;

use redlock_engine::permissions::acl_rules;
use redlock_engine::{Client, Endpoint, LeaseOptions, RedisMaster, Released, Wait};
use redlock_test_servers::server::{CALL_TIMEOUT, PATIENCE, Server, key};

#[tokio::test]
async fn a_url_with_user_and_password_connects() {
    let server = Server::start(&[]).await;
    let rules = acl_rules("tests", false).join(" ");
    let () = server.run(&format!("ACL SETUSER app reset on >p@s/s%1 {rules}")).await;
    let url = format!("redis://app:p%40s%2Fs%251@127.0.0.1:{}/0", server.port);
    let endpoint: Endpoint = url.parse().expect("a URL");
    let client = Client::new([RedisMaster::connect(endpoint)], CALL_TIMEOUT).expect("valid settings");
    let options = LeaseOptions::new("x", Duration::from_secs(30));
    let lease = client.acquire(&key("a"), &options, Wait::For(PATIENCE)).await.expect("granted");
    assert_eq!(lease.release().await, Released::Freed);
}
