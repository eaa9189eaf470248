//! The watchdog: how it renews a lease, and what it tells the holder.

use std::time::Duration;

use redlock_engine::{
    Client, Lease, LeaseOptions, LeaseState, Loss, Marker, Reason, RedisMaster, Released, Renewal, Wait,
};
use redlock_test_servers::server::{
    CALL_TIMEOUT, PATIENCE, Server, client, delete_everywhere, eventually, gone_everywhere, held_everywhere, key,
};
use tokio::time::timeout;

/// Short, so that the tests are short; long enough that a loaded machine renews it in time.
const TTL: Duration = Duration::from_secs(2);

/// Waits until a lease was renewed `times` times, or has ended.
async fn renewed(lease: &Lease, times: u64) -> LeaseState {
    let mut state = lease.state();
    let reached = state.wait_for(|s| !matches!(s, LeaseState::Held(grant) if grant.renewals < times));
    timeout(PATIENCE, reached).await.expect("renewed in time").expect("a watchdog").clone()
}

#[tokio::test]
async fn a_lease_is_renewed_back_to_the_full_ttl_on_every_master() {
    let servers = Server::start_armed(5).await;
    let (client, key) = (client(&servers), key("a"));
    let lease = client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect("granted");
    let LeaseState::Held(first) = lease.state().borrow().clone() else { panic!("held") };
    // Ten renewals take longer than three times the TTL.
    let LeaseState::Held(grant) = renewed(&lease, 10).await else { panic!("renewed") };
    assert!(grant.renewed_at - first.renewed_at >= 3 * TTL);
    assert_eq!(grant.valid_until - grant.renewed_at, Duration::from_millis(1978));
    assert_eq!(grant.acquired_at, first.acquired_at);
    held_everywhere(&servers, &key, lease.owner()).await;
    assert_eq!(lease.release().await, Released::Freed);
}

#[tokio::test]
async fn a_master_that_lacks_the_key_is_seeded_at_the_next_renewal() {
    let servers = Server::start_armed(5).await;
    let (client, key) = (client(&servers), key("a"));
    let lease = client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect("granted");
    for server in &servers[..2] {
        eventually("the key", async || server.get(&key).await).await;
        let _: i64 = server.run(&format!("DEL {}", key.redis_key())).await;
    }
    for server in &servers[..2] {
        let seeded = eventually("the key again", async || server.get(&key).await).await;
        assert_eq!(seeded, lease.owner().to_string());
    }
    assert!(lease.is_held());
}

#[tokio::test]
async fn a_lease_that_does_not_seed_renews_what_is_there_and_brings_no_key_back() {
    let servers = Server::start_armed(5).await;
    let (client, key) = (client(&servers), key("a"));
    let lease = client.try_acquire(&key, &LeaseOptions::new("x", TTL).seeds(false)).await.expect("granted");
    held_everywhere(&servers, &key, lease.owner()).await;
    delete_everywhere(&servers[..2], &key).await;
    // Two whole rounds after the keys were deleted.
    assert!(matches!(renewed(&lease, 3).await, LeaseState::Held(_)));
    gone_everywhere(&servers[..2], &key).await;
    lease.set_seeds(true);
    held_everywhere(&servers, &key, lease.owner()).await;
}

#[tokio::test]
async fn a_holder_whose_key_a_majority_lacks_is_told_lost_at_the_next_renewal() {
    let servers = Server::start_armed(5).await;
    let (client, key) = (client(&servers), key("a"));
    let options = LeaseOptions::new("x", Duration::from_secs(30));
    let options = options.renewal(Renewal::Every(Duration::from_millis(300)));
    let lease = client.try_acquire(&key, &options).await.expect("granted");
    held_everywhere(&servers, &key, lease.owner()).await;
    delete_everywhere(&servers[..3], &key).await;
    // Long before its validity of 30 s is over.
    assert_eq!(timeout(PATIENCE, lease.ended()).await.expect("told"), LeaseState::Lost(Loss::Taken));
    assert!(!lease.is_held());
    gone_everywhere(&servers, &key).await;
    let again = client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect("free again");
    assert!(again.owner().token() > lease.owner().token());
}

#[tokio::test]
async fn a_holder_cut_off_from_a_majority_is_told_before_anyone_else_can_win() {
    let servers = Server::start_armed(3).await;
    let (one, other, key) = (client(&servers), client(&servers), key("a"));
    let lease = one.try_acquire(&key, &LeaseOptions::new("one", TTL)).await.expect("granted");
    servers[0].freeze();
    servers[1].freeze();
    assert!(matches!(timeout(PATIENCE, lease.ended()).await.expect("told"), LeaseState::Lost(Loss::Expired { .. })));
    let told = tokio::time::Instant::now();
    servers[0].thaw();
    servers[1].thaw();
    let granted = other
        .acquire(&key, &LeaseOptions::new("other", TTL), Wait::For(PATIENCE))
        .await
        .expect("granted once the old keys are gone");
    let LeaseState::Held(grant) = granted.state().borrow().clone() else { panic!("held") };
    assert!(grant.acquired_at >= told);
    assert!(granted.owner().token() > lease.owner().token());
}

#[tokio::test]
async fn a_short_outage_loses_no_lease() {
    let mut servers = Server::start_armed(3).await;
    let (client, key) = (client(&servers), key("a"));
    let lease = client.try_acquire(&key, &LeaseOptions::new("x", Duration::from_secs(6))).await.expect("granted");
    let before = renewed(&lease, 1).await;
    servers[0].freeze();
    servers[1].freeze();
    // The next renewal fails; then the masters answer again.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    servers[0].thaw();
    servers[1].thaw();
    let LeaseState::Held(after) = renewed(&lease, 2).await else { panic!("renewed") };
    let LeaseState::Held(before) = before else { panic!("held") };
    assert!(after.renewed_at > before.renewed_at);
    servers[0].crash().await;
    assert!(matches!(renewed(&lease, 3).await, LeaseState::Held(grant) if grant.votes == 2));
}

#[tokio::test]
async fn nothing_is_renewed_after_a_release_or_a_drop() {
    let servers = Server::start_armed(3).await;
    let (client, key) = (client(&servers), key("a"));
    for dropped in [false, true] {
        let lease = client.try_acquire(&key, &LeaseOptions::new("x", TTL)).await.expect("granted");
        let mut state = lease.state();
        if dropped {
            drop(lease);
        } else {
            lease.release().await;
        }
        // The watchdog has ended: its side of the channel is gone.
        timeout(PATIENCE, async { while state.changed().await.is_ok() {} }).await.expect("ended");
        assert_eq!(*state.borrow(), LeaseState::Released);
        gone_everywhere(&servers, &key).await;
    }
}

#[tokio::test]
async fn an_abandoned_lease_is_adopted_with_its_token() {
    let servers = Server::start_armed(5).await;
    let (one, other, key) = (client(&servers), client(&servers), key("a"));
    let options = LeaseOptions::new("x", TTL);
    let lease = one.try_acquire(&key, &options).await.expect("granted");
    let owner = lease.owner().clone();
    lease.abandon();
    let adopted = other.adopt(&key, &owner, &options).await.expect("adopted");
    assert_eq!(adopted.owner(), &owner);
    assert!(matches!(renewed(&adopted, 4).await, LeaseState::Held(_)), "renewed for longer than a TTL");
    assert_eq!(adopted.release().await, Released::Freed);
}

#[tokio::test]
async fn a_lease_dropped_as_its_runtime_ends_neither_blocks_nor_panics() {
    let servers = Server::start_armed(3).await;
    let endpoints: Vec<_> = servers.iter().map(|s| s.endpoint(Marker::Required)).collect();
    let done = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let lease = runtime.block_on(async {
            let client =
                Client::new(endpoints.into_iter().map(RedisMaster::connect), CALL_TIMEOUT).expect("valid settings");
            client.try_acquire(&key("a"), &LeaseOptions::new("x", TTL)).await.expect("granted")
        });
        drop(runtime);
        let held = lease.is_held();
        drop(lease);
        held
    });
    assert!(done.join().expect("no panic"), "valid until its end, whatever becomes of its runtime");
    // Its keys expire.
    gone_everywhere(&servers, &key("a")).await;
}

#[tokio::test]
async fn a_lease_at_its_renewal_limit_tells_its_holder_before_it_is_released() {
    let ttl = Duration::from_secs(30);
    let servers = Server::start_armed(3).await;
    let (one, other, key) = (client(&servers), client(&servers), key("a"));
    let renewal = Renewal::Every(Duration::from_millis(20));
    let options = LeaseOptions::new("one", ttl).renewal(renewal).max_renewals(Some(3));
    for releases in [true, false] {
        let lease = one.acquire(&key, &options, Wait::Forever).await.expect("granted");
        let mut renewals = 0;
        let mut state = lease.state();
        let ended = loop {
            match &*state.borrow_and_update() {
                LeaseState::Held(grant) => renewals = grant.renewals,
                ended => break ended.clone(),
            }
            timeout(PATIENCE, state.changed()).await.expect("an event").expect("a watchdog");
        };
        assert_eq!((ended, renewals), (LeaseState::Lost(Loss::MaxRenewals), 3));
        assert!(!lease.is_held());
        // It has the rest of its validity to undo its work.
        let error = other.try_acquire(&key, &LeaseOptions::new("other", ttl)).await.expect_err("held meanwhile");
        assert_eq!(error.reason(), Reason::Contended);
        if releases {
            assert_eq!(lease.release().await, Released::Freed);
        } else {
            drop(lease);
        }
        eventually("released", async || other.try_acquire(&key, &LeaseOptions::new("other", ttl)).await.ok().map(drop))
            .await;
    }
}

#[tokio::test]
async fn a_process_that_finds_its_lease_over_takes_nothing_from_its_successor() {
    let servers = Server::start_armed(3).await;
    let (successor, other) = (client(&servers), client(&servers));
    // Without renewals the former process is as one that was paused until the end of its validity.
    let fixed = LeaseOptions::new("x", TTL).renewal(Renewal::None).shared(true);
    let renewed = LeaseOptions::new("x", Duration::from_secs(30));
    for (name, ends) in [("over", true), ("dropped", false)] {
        let (former, key) = (client(&servers), key(name));
        let lease = former.try_acquire(&key, &fixed).await.expect("granted");
        let adopted = successor.adopt(&key, lease.owner(), &renewed).await.expect("adopted");
        if ends {
            assert!(matches!(
                timeout(PATIENCE, lease.ended()).await.expect("over"),
                LeaseState::Lost(Loss::Expired { .. })
            ));
        }
        drop(lease);
        // All its requests have been sent.
        former.shutdown().await;
        let error = other.try_acquire(&key, &LeaseOptions::new("y", TTL)).await.expect_err("held by the successor");
        assert_eq!(error.reason(), Reason::Contended);
        assert!(adopted.is_held());
        // The grant outlives the successor's lease too, until somebody releases it.
        let owner = adopted.owner().clone();
        drop(adopted);
        let error = other.try_acquire(&key, &LeaseOptions::new("y", TTL)).await.expect_err("held still");
        assert_eq!(error.reason(), Reason::Contended);
        assert_eq!(successor.release(&key, &owner).await, Released::Freed);
    }
}
