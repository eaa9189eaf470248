//! The watchdog under faults: losses, a release without a network, a panic, and very many renewals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redlock_engine::{
    Client, Environment, Error, Lease, LeaseOptions, LeaseState, Loss, Marker, Reason, RedisMaster, Released, Renewal,
    System, Wait,
};
use redlock_test_servers::proxy::{Flow, Proxy};
use redlock_test_servers::server::{
    CALL_TIMEOUT, PATIENCE, Server, client, connected, delete_everywhere, eventually, gone_everywhere, held_everywhere,
    key, until_connected,
};
use tokio::time::{Instant, timeout};

fn renewed_each(period: Duration, ttl: Duration) -> LeaseOptions {
    LeaseOptions::new("x", ttl).renewal(Renewal::Every(period))
}

/// Waits until the lease was renewed `more` times from now on, or has ended.
async fn renewed(lease: &Lease, more: u64) -> LeaseState {
    let mut state = lease.state();
    let before = match &*state.borrow() {
        LeaseState::Held(grant) => grant.renewals,
        ended => return ended.clone(),
    };
    let reached = state.wait_for(|s| !matches!(s, LeaseState::Held(grant) if grant.renewals < before + more));
    timeout(PATIENCE, reached).await.expect("renewed in time").expect("a watchdog").clone()
}

#[tokio::test]
async fn a_lock_taken_again_after_a_loss_is_renewed_like_the_first() {
    let mut servers = Server::start_armed(3).await;
    let client = connected(&servers).await;
    let options = renewed_each(Duration::from_millis(150), Duration::from_millis(1500));
    let mut last = None;
    for deleted in [true, false] {
        let lease = client.acquire(&key("a"), &options, Wait::For(PATIENCE)).await.expect("granted");
        assert!(Some(lease.owner().token()) > last, "another grant, another token");
        last = Some(lease.owner().token());
        assert!(matches!(renewed(&lease, 1).await, LeaseState::Held(_)));
        if deleted {
            held_everywhere(&servers, &key("a"), lease.owner()).await;
            delete_everywhere(&servers, &key("a")).await;
        } else {
            servers[0].crash().await;
            servers[1].crash().await;
        }
        let loss = timeout(PATIENCE, lease.ended()).await.expect("told");
        let LeaseState::Lost(loss) = loss else { panic!("{loss:?}") };
        assert_eq!(loss.as_str(), if deleted { "Taken" } else { "Expired" });
    }
    for server in &mut servers[..2] {
        server.restart().await;
        server.arm().await;
    }
    let lease = client.acquire(&key("a"), &options, Wait::For(PATIENCE)).await.expect("granted");
    let LeaseState::Held(first) = lease.state().borrow().clone() else { panic!("held") };
    // Twelve renewals take longer than the TTL.
    let LeaseState::Held(grant) = renewed(&lease, 12).await else { panic!("renewed") };
    assert!(grant.renewed_at - first.renewed_at >= Duration::from_millis(1500));
    held_everywhere(&servers, &key("a"), lease.owner()).await;
}

#[tokio::test]
async fn a_failed_attempt_does_not_prevent_renewals_of_the_next_grant() {
    let servers = Server::start_armed(3).await;
    let (one, other) = (connected(&servers).await, connected(&servers).await);
    let options = renewed_each(Duration::from_millis(50), Duration::from_secs(5));
    let held = other.try_acquire(&key("a"), &options).await.expect("granted");
    assert_eq!(one.try_acquire(&key("a"), &options).await.expect_err("held").reason(), Reason::Contended);
    held.release().await;
    let lease = one.acquire(&key("a"), &options, Wait::For(PATIENCE)).await.expect("granted");
    assert!(matches!(renewed(&lease, 3).await, LeaseState::Held(_)));
}

#[tokio::test]
async fn a_release_that_reaches_no_master_is_reported_and_nothing_is_renewed_after_it() {
    let servers = Server::start_armed(3).await;
    let (links, client) = Proxy::to_all(&servers).await;
    let options = renewed_each(Duration::from_millis(100), Duration::from_secs(2));
    let lease = client.try_acquire(&key("a"), &options).await.expect("granted");
    let owner = lease.owner().clone();
    assert!(matches!(renewed(&lease, 2).await, LeaseState::Held(_)));
    links.iter().for_each(Proxy::cut);
    let mut state = lease.state();
    assert_eq!(lease.release().await, Released::Unknown);
    assert_eq!(*state.borrow_and_update(), LeaseState::Released);
    let mut renewals = Vec::new();
    for server in &servers {
        // A renewal that was sent before the cut is counted before its connection ends.
        eventually("no connection", async || (server.connections().await == 0).then_some(())).await;
        renewals.push(server.calls("pexpire").await);
    }
    links.iter().for_each(Proxy::heal);
    for master in client.masters() {
        let up = async || matches!(master.health(), redlock_engine::Health::Up { .. }).then_some(());
        eventually("connected again", up).await;
    }
    // Not renewed though the masters are back: the keys expire.
    gone_everywhere(&servers, &key("a")).await;
    for (server, renewals) in servers.iter().zip(renewals) {
        assert_eq!(server.calls("pexpire").await, renewals);
    }
    assert_eq!(client.release(&key("a"), &owner).await, Released::AlreadyExpired);
}

#[tokio::test]
async fn a_release_whose_answers_are_late_can_be_repeated() {
    let servers = Server::start_armed(3).await;
    let (links, client) = Proxy::to_all(&servers).await;
    let lease = client.try_acquire(&key("a"), &LeaseOptions::new("x", Duration::from_secs(30))).await.expect("granted");
    let owner = lease.owner().clone();
    for link in &links {
        link.answers(Flow::Hold);
    }
    assert_eq!(lease.release().await, Released::Unknown);
    links.iter().for_each(Proxy::heal);
    // The masters may have run it or not. Repeated, it has an answer either way, and no error.
    let again = eventually("an answer", async || {
        Some(client.release(&key("a"), &owner).await).filter(|found| *found != Released::Unknown)
    })
    .await;
    assert!(matches!(again, Released::Freed | Released::AlreadyExpired), "{again:?}");
    gone_everywhere(&servers, &key("a")).await;
}

#[tokio::test]
async fn a_missed_renewal_is_repeated_before_the_next_is_due() {
    let servers = Server::start_armed(3).await;
    let (links, client) = Proxy::to_all_within(&servers, Duration::from_millis(200)).await;
    let period = Duration::from_secs(2);
    let options = renewed_each(period, Duration::from_secs(20));
    let lease = client.acquire(&key("a"), &options, Wait::For(PATIENCE)).await.expect("granted");
    let LeaseState::Held(first) = lease.state().borrow().clone() else { panic!("held") };
    links.iter().for_each(Proxy::cut);
    for master in client.masters() {
        eventually("down", async || matches!(master.health(), redlock_engine::Health::Down(_)).then_some(())).await;
    }
    // Until the first renewal is due, and has failed.
    tokio::time::sleep_until(first.renewed_at + period + Duration::from_millis(20)).await;
    links.iter().for_each(Proxy::heal);
    let LeaseState::Held(second) = renewed(&lease, 1).await else { panic!("renewed") };
    assert!(second.renewed_at - first.renewed_at < 2 * period, "{:?}", second.renewed_at - first.renewed_at);
}

#[tokio::test]
async fn the_end_of_a_lost_lease_waits_for_no_master() {
    let servers = Server::start_armed(3).await;
    // Longer than the test waits, so that it would notice a wait for one call.
    let (links, client) = Proxy::to_all_within(&servers, 2 * PATIENCE).await;
    let options = renewed_each(Duration::from_millis(200), Duration::from_secs(1));
    for dropped in [false, true] {
        let lease = client.acquire(&key("a"), &options, Wait::For(PATIENCE)).await.expect("granted");
        links.iter().for_each(Proxy::swallow);
        let left = async {
            assert!(matches!(lease.ended().await, LeaseState::Lost(Loss::Expired { .. })));
            if dropped {
                drop(lease);
            } else {
                assert_eq!(lease.release().await, Released::AlreadyExpired);
            }
        };
        timeout(PATIENCE, left).await.expect("no master is waited for");
        links.iter().for_each(Proxy::cut);
        links.iter().for_each(Proxy::heal);
    }
}

#[tokio::test]
async fn a_holder_that_slept_past_its_validity_knows_it_without_a_call() {
    let servers = Server::start_armed(3).await;
    let client = connected(&servers).await;
    let options = renewed_each(Duration::from_millis(100), Duration::from_secs(1));
    let lease = client.try_acquire(&key("a"), &options).await.expect("granted");
    let LeaseState::Held(grant) = lease.state().borrow().clone() else { panic!("held") };
    // This test has one thread: while it sleeps, no watchdog runs.
    std::thread::sleep(grant.valid_until.saturating_duration_since(Instant::now()));
    assert!(!lease.is_held());
    assert_eq!(lease.validity(), Duration::ZERO);
    // It stays lost, whatever keys the masters still have.
    assert!(matches!(timeout(PATIENCE, lease.ended()).await.expect("told"), LeaseState::Lost(Loss::Expired { .. })));
    assert!(!lease.is_held());
}

#[tokio::test]
async fn many_renewals_over_a_slow_link_neither_shorten_the_validity_nor_lengthen_the_key() {
    const TTL: Duration = Duration::from_secs(10);
    let servers = Server::start_armed(3).await;
    let (links, client) = Proxy::to_all(&servers).await;
    let delay = Duration::from_millis(5);
    for link in &links {
        link.requests(Flow::Late(delay));
    }
    let lease = client.try_acquire(&key("a"), &renewed_each(Duration::from_millis(1), TTL)).await.expect("granted");
    let mut state = lease.state();
    let mut seen = 0;
    while seen < 200 {
        timeout(PATIENCE, state.changed()).await.expect("renewed in time").expect("a watchdog");
        let LeaseState::Held(grant) = state.borrow_and_update().clone() else { panic!("renewed") };
        assert_eq!(grant.valid_until - grant.renewed_at, Duration::from_millis(9_898), "the TTL less the drift");
        if grant.renewals % 20 == 0 {
            for server in &servers {
                let left = server.pttl(&key("a")).await;
                assert!(left <= 10_000, "{left} after {} renewals", grant.renewals);
            }
        }
        seen = grant.renewals;
    }
    // Its holder dies: the next contender waits for one TTL, not for two hundred.
    lease.abandon();
    for server in &servers {
        let left = server.pttl(&key("a")).await;
        assert!((1..=10_000).contains(&left), "{left}");
    }
}

#[tokio::test]
async fn a_hanging_minority_does_not_hold_up_renewals() {
    let servers = Server::start_armed(5).await;
    let client = connected(&servers).await;
    let options = renewed_each(Duration::from_millis(200), Duration::from_secs(4));
    let lease = client.try_acquire(&key("a"), &options).await.expect("granted");
    servers[3].freeze();
    servers[4].freeze();
    let LeaseState::Held(grant) = renewed(&lease, 5).await else { panic!("renewed") };
    assert_eq!(grant.votes, 3);
    assert_eq!(lease.release().await, Released::Freed);
    servers[3].thaw();
    servers[4].thaw();
    gone_everywhere(&servers, &key("a")).await;
}

#[tokio::test]
async fn each_loss_is_reported_once_while_five_contend_and_somebody_deletes_the_keys() {
    const LOSSES: usize = 4;
    let servers = Server::start_armed(3).await;
    let (told, mut losses) = tokio::sync::mpsc::unbounded_channel();
    let (granted, mut grants) = tokio::sync::mpsc::unbounded_channel();
    let contenders: Vec<_> = (0..5)
        .map(|number| {
            let (client, told, granted) = (client(&servers), told.clone(), granted.clone());
            let options =
                renewed_each(Duration::from_millis(100), Duration::from_secs(5)).identity(format!("c{number}"));
            tokio::spawn(async move {
                loop {
                    let lease = client.acquire(&key("a"), &options, Wait::Forever).await.expect("for ever");
                    granted.send(lease.owner().clone()).expect("the test listens");
                    let end = lease.ended().await;
                    assert!(!lease.is_held());
                    told.send((lease.owner().clone(), end)).expect("the test listens");
                }
            })
        })
        .collect();
    let mut owners = Vec::new();
    for _ in 0..LOSSES {
        let owner = timeout(PATIENCE, grants.recv()).await.expect("granted").expect("a contender");
        held_everywhere(&servers, &key("a"), &owner).await;
        delete_everywhere(&servers, &key("a")).await;
        let (lost, end) = timeout(PATIENCE, losses.recv()).await.expect("told").expect("a contender");
        assert_eq!((&lost, end), (&owner, LeaseState::Lost(Loss::Taken)));
        owners.push(owner);
    }
    let last = timeout(PATIENCE, grants.recv()).await.expect("granted").expect("a contender");
    owners.push(last);
    contenders.iter().for_each(tokio::task::JoinHandle::abort);
    assert!(owners.is_sorted_by(|a, b| a.token() < b.token()), "{owners:?}");
    assert!(losses.try_recv().is_err() && grants.try_recv().is_err(), "nothing was told twice");
}

/// Panics once when a random pause is drawn.
#[derive(Debug, Default)]
struct PanicsOnce {
    armed: AtomicBool,
}

impl Environment for PanicsOnce {
    fn unix_micros(&self) -> u64 {
        System.unix_micros()
    }

    fn random_up_to(&self, bound: Duration) -> Duration {
        assert!(!self.armed.swap(false, Ordering::SeqCst), "the panic of this test");
        System.random_up_to(bound)
    }

    fn nonce(&self) -> u64 {
        System.nonce()
    }
}

#[tokio::test]
async fn a_watchdog_that_panics_ends_no_other_lease() {
    let servers = Server::start_armed(3).await;
    let links = futures::future::join_all(servers.iter().map(|s| Proxy::to(s.port))).await;
    let masters: Vec<_> = links.iter().zip(&servers).map(|(l, s)| RedisMaster::connect(l.endpoint(s))).collect();
    let environment = Arc::<PanicsOnce>::default();
    let client = Client::with_environment(masters, CALL_TIMEOUT, Arc::clone(&environment) as Arc<dyn Environment>)
        .expect("valid settings");
    until_connected(&client).await;
    let mut leases = Vec::new();
    for n in 0..20 {
        let options = renewed_each(Duration::from_millis(300), Duration::from_secs(4));
        let lease = client.acquire(&key(&format!("n{n}")), &options, Wait::For(PATIENCE)).await;
        leases.push(lease.expect("granted"));
    }
    // The first renewal that fails without a network draws a pause.
    environment.armed.store(true, Ordering::SeqCst);
    links.iter().for_each(Proxy::cut);
    eventually("it panicked", async || (!environment.armed.load(Ordering::SeqCst)).then_some(())).await;
    links.iter().for_each(Proxy::heal);
    let mut renewed = 0;
    for lease in &leases {
        let mut state = lease.state();
        let LeaseState::Held(before) = state.borrow().clone() else {
            panic!("all were held when the masters came back")
        };
        let more = state.wait_for(|s| !matches!(s, LeaseState::Held(g) if g.renewals <= before.renewals));
        if let Ok(state) = timeout(PATIENCE, more).await.expect("renewed, or ended") {
            assert!(matches!(*state, LeaseState::Held(_)), "{:?}", *state);
            renewed += 1;
        } else {
            // Its watchdog has ended without a message: the lease ends with its validity.
            let end = timeout(PATIENCE, lease.ended()).await.expect("told");
            assert!(matches!(end, LeaseState::Lost(Loss::Expired { .. })));
            assert!(!lease.is_held());
        }
    }
    assert_eq!(renewed, 19);
}

#[tokio::test]
async fn no_wait_ttl_or_number_of_masters_makes_two_holders() {
    let servers = Server::start_armed(3).await;
    let held = Arc::new(std::sync::Mutex::new(Vec::new()));
    for masters in [1, 2, 3] {
        for ttl in [10, 40, 2000].map(Duration::from_millis) {
            let contenders = [Wait::For(Duration::ZERO), Wait::For(ttl / 2), Wait::For(Duration::MAX), Wait::Forever]
                .map(|wait| {
                    let masters = servers[..masters].iter().map(|s| RedisMaster::connect(s.endpoint(Marker::Required)));
                    let (client, held) =
                        (Client::new(masters, CALL_TIMEOUT).expect("valid settings"), Arc::clone(&held));
                    let options = LeaseOptions::new(format!("{wait:?}").replace(' ', ""), ttl).renewal(Renewal::None);
                    async move {
                        for _ in 0..4 {
                            let lease = match client.acquire(&key("a"), &options, wait).await {
                                Ok(lease) => lease,
                                Err(
                                    Error::Contended { .. }
                                    | Error::Split
                                    | Error::TooSlow { .. }
                                    | Error::NoQuorum { .. },
                                ) => continue,
                                Err(error) => panic!("{error}"),
                            };
                            let LeaseState::Held(grant) = lease.state().borrow().clone() else { continue };
                            let from = Instant::now();
                            tokio::task::yield_now().await;
                            let until = Instant::now().min(grant.valid_until);
                            if from < until {
                                held.lock().expect("no panic under this lock").push((from, until));
                            }
                            lease.release().await;
                        }
                    }
                });
            timeout(3 * PATIENCE, futures::future::join_all(contenders)).await.expect("nobody waits for ever");
        }
    }
    let mut held = held.lock().expect("no panic under this lock").clone();
    held.sort_unstable();
    assert!(held.len() > 36, "{}", held.len());
    assert!(held.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{held:?}");
}
