//! Keys that another program wrote: without an expiry, or of another type.

use std::time::Duration;

use redlock_engine::{Error, LeaseOptions, LockKey, Released, Wait};
use redlock_test_servers::server::{PATIENCE, Server, connected, eventually, key};
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(30);

/// Puts a key into the way of a lock, on all servers.
async fn block(servers: &[Server], key: &LockKey, command: &str, value: &str) {
    for server in servers {
        let _: redis::Value = server.run(&format!("{command} {} {value}", key.redis_key())).await;
    }
}

#[tokio::test]
async fn a_key_that_never_expires_is_shown_without_an_end_and_waited_for() {
    let servers = Server::start_armed(3).await;
    let client = connected(&servers).await;
    for (name, command, value, shown) in [("a", "SET", "6f1c", "6f1c"), ("b", "HSET", "field value", "another type")] {
        let (key, options) = (key(name), LeaseOptions::new("x", TTL));
        block(&servers, &key, command, value).await;
        let seen = client.read(&key).await.expect("a majority answers");
        assert_eq!((seen.holder.as_deref(), seen.remaining, seen.votes), (Some(shown), None, 3));

        let error = client.try_acquire(&key, &options).await.expect_err("held");
        let held = Error::Contended { holder: Some(shown.to_owned()), remaining: None };
        assert_eq!(error, held);
        let short = Wait::For(Duration::from_millis(100));
        assert_eq!(client.acquire(&key, &options, short).await.expect_err("held still"), held);

        let waiting = tokio::spawn({
            let (client, key) = (client.clone(), key.clone());
            async move { client.acquire(&key, &LeaseOptions::new("waiter", TTL), Wait::Forever).await }
        });
        // It has entered the queue, and checks the lock at least once a second: no message tells of a DEL.
        eventually("it waits", async || {
            let waiters: i64 = servers[0].run(&format!("ZCARD {}", key.queue_key())).await;
            (waiters == 1).then_some(())
        })
        .await;
        for server in &servers {
            let _: i64 = server.run(&format!("DEL {}", key.redis_key())).await;
        }
        let lease = timeout(PATIENCE, waiting).await.expect("granted in time").expect("no panic").expect("granted");
        assert_eq!(lease.release().await, Released::Freed);
    }
}
