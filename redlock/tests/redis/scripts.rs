//! What the scripts by which a lease is extended or ends do on a server, one call at a time.

use std::time::Duration;

use redlock_engine::claim::Claim;
use redlock_engine::master::{Extension, Master as _, ReleaseAnswer};
use redlock_engine::{LockKey, MasterError, Owner, RedisMaster, Token};
use redlock_test_servers::server::{PATIENCE, Server, connected, key};
use tokio::time::Instant;

/// So long that a machine that stops for some seconds does not change what is left of it by a part in a hundred.
const TTL: Duration = Duration::from_mins(60);

/// A claim of the lock by this token.
fn claim(key: &LockKey, token: u64) -> Claim {
    Claim::new(key.clone(), Owner::new("x", Token::new(token).expect("a token"), 1), TTL)
}

/// An armed server that grants such a TTL.
async fn start() -> Vec<Server> {
    let servers = Server::start_armed(1).await;
    let marker: String = servers[0].run("GET redlock:armed").await;
    let (run_id, _) = marker.split_once(' ').expect("a marker");
    servers[0].set("redlock:armed", format!("{run_id} 3600000").as_bytes(), &[]).await.expect("set");
    servers
}

async fn renew(master: &RedisMaster, claim: &Claim) -> Result<Extension, MasterError> {
    master.renew(claim, Instant::now() + PATIENCE).await
}

async fn seed(master: &RedisMaster, claim: &Claim) -> Result<Extension, MasterError> {
    master.seed(claim, Instant::now() + PATIENCE).await
}

#[tokio::test]
async fn a_renewal_and_a_seed_give_the_whole_ttl() {
    let servers = start().await;
    let (client, key, server) = (connected(&servers).await, key("a"), &servers[0]);
    let (master, claim) = (&client.masters()[0], claim(&key, 7));
    let ttl = i64::try_from(TTL.as_millis()).expect("an hour");
    assert_eq!(seed(master, &claim).await, Ok(Extension::Extended));
    assert!(server.pttl(&key).await > ttl * 99 / 100, "by a seed");
    let _: i64 = server.run(&format!("PEXPIRE {} {}", key.redis_key(), ttl / 2)).await;
    assert_eq!(renew(master, &claim).await, Ok(Extension::Extended));
    assert!(server.pttl(&key).await > ttl * 99 / 100, "by a renewal");
}

#[tokio::test]
async fn neither_touches_the_key_of_another() {
    let servers = start().await;
    let (client, key, server) = (connected(&servers).await, key("a"), &servers[0]);
    let (master, holder, other) = (&client.masters()[0], claim(&key, 7), claim(&key, 8));
    assert_eq!(seed(master, &holder).await, Ok(Extension::Extended));
    assert_eq!(seed(master, &other).await, Ok(Extension::HeldByOther));
    assert_eq!(renew(master, &other).await, Ok(Extension::HeldByOther));
    assert_eq!(server.get(&key).await, Some(holder.value().to_owned()));
}

#[tokio::test]
async fn both_are_refused_where_the_marker_is_of_another_process() {
    let servers = start().await;
    let (client, key, server) = (connected(&servers).await, key("a"), &servers[0]);
    let (master, claim) = (&client.masters()[0], claim(&key, 7));
    // As a restart from an append-only file brings it back.
    server.set("redlock:armed", b"0123456789 3600000", &[]).await.expect("set");
    assert_eq!(seed(master, &claim).await, Err(MasterError::Quarantined));
    assert_eq!(renew(master, &claim).await, Err(MasterError::Quarantined));
    assert_eq!(server.get(&key).await, None);
}

#[tokio::test]
async fn a_release_deletes_no_key_of_another() {
    let servers = start().await;
    let (client, key, server) = (connected(&servers).await, key("a"), &servers[0]);
    let (master, holder, other) = (&client.masters()[0], claim(&key, 7), claim(&key, 8));
    assert_eq!(seed(master, &holder).await, Ok(Extension::Extended));
    for wake in [false, true] {
        let answer = master.release(&other, wake, Instant::now() + PATIENCE).await;
        assert_eq!(answer, Ok(ReleaseAnswer::NotOwner));
    }
    assert_eq!(server.get(&key).await, Some(holder.value().to_owned()));
    assert_eq!(master.release(&holder, true, Instant::now() + PATIENCE).await, Ok(ReleaseAnswer::Deleted));
    assert_eq!(server.get(&key).await, None);
}

#[tokio::test]
async fn neither_lowers_the_fence() {
    let servers = start().await;
    let (client, key, server) = (connected(&servers).await, key("a"), &servers[0]);
    let (master, claim) = (&client.masters()[0], claim(&key, 7));
    let fence = format!("ZSCORE {} {}", key.fences_key(), key.redis_key());
    assert_eq!(seed(master, &claim).await, Ok(Extension::Extended));
    assert_eq!(server.run::<String>(&fence).await, "7");
    // A contender's token, of a vote that it did not win.
    let _: i64 = server.run(&format!("ZADD {} 9 {}", key.fences_key(), key.redis_key())).await;
    assert_eq!(renew(master, &claim).await, Ok(Extension::Extended));
    assert_eq!(seed(master, &claim).await, Ok(Extension::Extended));
    assert_eq!(server.run::<String>(&fence).await, "9");
}
