//! Several locks at once, work that ends with its lease, and leases that are leaked.

use std::future::pending;
use std::time::Duration;

use redlock_engine::{Error, Lease, LeaseOptions, LeaseState, Loss, Released, Renewal, Wait};
use redlock_test_servers::server::{PATIENCE, Server, client, delete_until_lost, eventually, key};
use tokio::sync::oneshot;
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(30);

#[tokio::test]
async fn contenders_that_take_the_same_locks_in_another_order_do_not_wait_for_each_other_for_ever() {
    let servers = Server::start_armed(3).await;
    let (a, b) = (key("a"), key("b"));
    let rounds = ["one", "two", "three"].map(|name| {
        let client = client(&servers);
        let keys = if name == "two" { [b.clone(), a.clone()] } else { [a.clone(), b.clone()] };
        tokio::spawn(async move {
            for _ in 0..5 {
                let leases = client.acquire_all(&keys, &LeaseOptions::new(name, TTL), Wait::Forever).await;
                let leases = leases.expect("granted");
                assert!(leases.is_held() && !leases.validity().is_zero());
                assert!(leases.iter().map(|lease| lease.key().name()).eq(["a", "b"]), "in the order of their keys");
                assert_eq!(leases.get(&keys[0]).map(Lease::key), Some(&keys[0]));
                let released = leases.release().await;
                assert!(released.iter().all(|(_, released)| *released == Released::Freed), "{released:?}");
            }
        })
    });
    for round in rounds {
        timeout(3 * PATIENCE, round).await.expect("no deadlock").expect("no panic");
    }
}

#[tokio::test]
async fn what_was_taken_is_released_where_one_of_several_locks_is_not_granted() {
    let servers = Server::start_armed(3).await;
    let (one, other) = (client(&servers), client(&servers));
    let lease = other.acquire(&key("b"), &LeaseOptions::new("other", TTL), Wait::For(PATIENCE)).await.expect("granted");
    let (keys, options) = ([key("b"), key("a"), key("a")], LeaseOptions::new("one", TTL));
    let refused = one.acquire_all(&keys, &options, Wait::For(Duration::from_millis(200))).await;
    assert_eq!(refused.expect_err("b is held").to_string(), format!("held by {}", lease.owner()));
    eventually("a is free", async || other.try_acquire(&key("a"), &options).await.ok().map(drop)).await;
    let none = one.acquire_all(&[], &options, Wait::Forever).await;
    assert!(matches!(none, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn several_locks_are_lost_when_one_of_them_is() {
    let servers = Server::start_armed(3).await;
    let (client, keys) = (client(&servers), [key("a"), key("b")]);
    let options = LeaseOptions::new("one", TTL).renewal(Renewal::Every(Duration::from_millis(20)));
    let leases = client.acquire_all(&keys, &options, Wait::Forever).await.expect("granted");
    delete_until_lost(&servers, leases.get(&keys[1]).expect("b")).await;
    let ended = timeout(PATIENCE, leases.ended()).await.expect("told");
    assert_eq!(ended, (&keys[1], LeaseState::Lost(Loss::Taken)));
    assert!(!leases.is_held());
    assert_eq!(leases.run(pending::<()>()).await, Err(Loss::Taken));
    drop(leases);
    for server in &servers {
        eventually("the other is released", async || server.get(&keys[0]).await.is_none().then_some(())).await;
    }
}

#[tokio::test]
async fn a_lock_that_is_lost_while_the_next_is_waited_for_is_taken_anew() {
    let servers = Server::start_armed(3).await;
    let (one, other, keys) = (client(&servers), client(&servers), [key("a"), key("b")]);
    let blocking =
        other.acquire(&keys[1], &LeaseOptions::new("other", TTL), Wait::For(PATIENCE)).await.expect("granted");
    let waiting = tokio::spawn({
        let (one, keys) = (one.clone(), keys.clone());
        let options = LeaseOptions::new("one", TTL).renewal(Renewal::Every(Duration::from_millis(20)));
        async move { one.acquire_all(&keys, &options, Wait::Forever).await }
    });
    let first = eventually("a is taken", async || one.read(&keys[0]).await.ok()?.holder).await;
    let again = async || {
        for server in &servers {
            server.delete_of(&keys[0], &first).await;
        }
        one.read(&keys[0]).await.ok()?.holder.filter(|holder| *holder != first)
    };
    let second = eventually("a is taken anew", again).await;
    assert_eq!(blocking.release().await, Released::Freed);
    let leases = timeout(PATIENCE, waiting).await.expect("in time").expect("no panic").expect("granted");
    assert_eq!(leases.get(&keys[0]).expect("a").owner().to_string(), second);
}

#[tokio::test]
async fn work_runs_while_its_lease_is_held_and_is_dropped_when_it_is_lost() {
    let servers = Server::start_armed(3).await;
    let (client, key) = (client(&servers), key("a"));
    let options = LeaseOptions::new("x", TTL).renewal(Renewal::Every(Duration::from_millis(20)));
    let lease = client.acquire(&key, &options, Wait::For(PATIENCE)).await.expect("granted");
    assert_eq!(lease.run(async { 7 }).await, Ok(7));
    delete_until_lost(&servers, &lease).await;
    let (kept_by_work, dropped) = oneshot::channel::<()>();
    let work = async move {
        pending::<()>().await;
        drop(kept_by_work);
    };
    assert_eq!(timeout(PATIENCE, lease.run(work)).await.expect("told"), Err(Loss::Taken));
    assert!(dropped.await.is_err(), "the work is gone");
    assert_eq!(lease.run(async { panic!("no work is begun without a lease") }).await, Err::<(), _>(Loss::Taken));

    let lease = client.acquire(&key, &options, Wait::Forever).await.expect("granted");
    let (ended, ()) = tokio::join!(lease.run(pending::<()>()), client.shutdown());
    assert_eq!(ended, Err(Loss::ShutDown));
}

#[tokio::test]
async fn a_leaked_lease_is_renewed_until_its_client_is_shut_down() {
    let servers = Server::start_armed(3).await;
    let (one, other, key) = (client(&servers), client(&servers), key("a"));
    let options = LeaseOptions::new("one", TTL).renewal(Renewal::Every(Duration::from_millis(20)));
    let lease = one.acquire(&key, &options, Wait::For(PATIENCE)).await.expect("granted");
    let mut state = lease.state();
    std::mem::forget(lease);
    let renewed = state.wait_for(|state| !matches!(state, LeaseState::Held(grant) if grant.renewals < 5));
    let renewed = timeout(PATIENCE, renewed).await.expect("renewed").expect("a watchdog").clone();
    assert!(matches!(renewed, LeaseState::Held(_)), "{renewed:?}");
    one.shutdown().await;
    assert_eq!(*state.borrow(), LeaseState::Released);
    drop(other.acquire(&key, &LeaseOptions::new("other", TTL), Wait::For(PATIENCE)).await.expect("free again"));
}
