//! Passwords on a real server: how one replaces another, and how one is revoked.

use redis::aio::MultiplexedConnection;
use redlock_test_servers::server::CAP;

use super::harness::MasterServer;
use crate::cluster::server::acl::Clients;
use crate::contract::credentials::{Password, RootKey};
use crate::contract::names::client_user;

/// A connection that is logged in as the clients of `tests`.
async fn logged_in(server: &MasterServer, password: &Password) -> redis::RedisResult<MultiplexedConnection> {
    server.log_in(&client_user("tests"), password.expose()).await
}

async fn works(connection: &mut MultiplexedConnection) -> bool {
    redis::cmd("GET").arg("redlock:tests/a").exec_async(connection).await.is_ok()
}

#[tokio::test]
async fn two_passwords_are_valid_while_one_replaces_the_other_and_then_nobody_stays_with_the_former() {
    let server = MasterServer::start(&RootKey::generate()).await;
    server.arm(&["tests"]).await;
    let (old, new) = (server.password("tests"), server.key.client_password("uid of tests", 2, 1));
    let clients = |passwords: &[&Password]| {
        let mut clients = Clients::of(&server.key, server.scripts);
        clients.admit("tests", passwords.iter().map(|&password| password.clone()));
        clients
    };
    let mut early = logged_in(&server, &old).await.unwrap();
    let mut admin = server.admin().await;
    let both = clients(&[&old, &new]);
    let before = admin.facts().await.unwrap();
    admin.maintain(&before, &both, CAP).await.unwrap();
    let facts = admin.facts().await.unwrap();
    assert!(both.are_known_to(&facts));
    assert!(
        works(&mut early).await && logged_in(&server, &old).await.is_ok() && logged_in(&server, &new).await.is_ok()
    );

    let only = clients(&[&new]);
    assert!(only.replace_passwords_of(&facts) && !only.revoke_passwords_of(&facts));
    admin.maintain(&facts, &only, CAP).await.unwrap();
    assert!(only.are_known_to(&admin.facts().await.unwrap()));
    assert!(!works(&mut early).await, "it was logged in with the former password");
    assert!(logged_in(&server, &old).await.is_err());
    assert!(works(&mut logged_in(&server, &new).await.unwrap()).await);
}

#[tokio::test]
async fn a_revoked_password_stops_working_at_once_also_where_it_is_logged_in() {
    let server = MasterServer::start(&RootKey::generate()).await;
    server.arm(&["tests", "billing"]).await;
    let (old, new) = (server.password("tests"), server.key.client_password("uid of tests", 1, 2));
    let mut revoked = Clients::of(&server.key, server.scripts);
    revoked.admit("tests", [new.clone()]);
    revoked.admit("billing", [server.password("billing")]);
    let mut connection = logged_in(&server, &old).await.unwrap();
    let mut admin = server.admin().await;
    let facts = admin.facts().await.unwrap();
    assert!(revoked.revoke_passwords_of(&facts));
    admin.maintain(&facts, &revoked, CAP).await.unwrap();
    assert!(!works(&mut connection).await && logged_in(&server, &old).await.is_err());
    assert!(logged_in(&server, &new).await.is_ok() && server.as_client::<String>("billing", "PING").await.is_ok());
}
