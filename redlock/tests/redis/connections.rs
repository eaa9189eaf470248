//! The network between client and servers: silent, slow, cut; and how many connections a client makes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use redlock_engine::{
    Address, Client, Credentials, Endpoint, Error, Health, LeaseOptions, LeaseState, LockKey, Marker, MasterError,
    Reason, RedisMaster, Released, Renewal, Wait,
};
use redlock_test_servers::proxy::{Flow, Proxy};
use redlock_test_servers::server::{
    CALL_TIMEOUT, PATIENCE, Server, connected, eventually, gone_everywhere, key, nobody_listens,
};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout};

const TTL: Duration = Duration::from_secs(30);

fn options(identity: &str) -> LeaseOptions {
    LeaseOptions::new(identity, TTL)
}

fn unrenewed(identity: &str) -> LeaseOptions {
    options(identity).renewal(Renewal::None)
}

/// A client whose calls do not time out, however busy the machine is.
fn patient(servers: &[Server]) -> Client {
    Client::new(servers.iter().map(|s| RedisMaster::connect(s.endpoint(Marker::Required))), PATIENCE)
        .expect("valid settings")
}

async fn acquire_and_release(client: &Client) {
    let lease = client.acquire(&key("a"), &unrenewed("x"), Wait::For(PATIENCE)).await.expect("granted");
    lease.release().await;
}

async fn is_down(client: &Client, master: usize) {
    eventually("the master is down", async || {
        matches!(client.masters()[master].health(), Health::Down(_)).then_some(())
    })
    .await;
}

async fn is_up(client: &Client, master: usize) {
    eventually("the master is up", async || {
        matches!(client.masters()[master].health(), Health::Up { .. }).then_some(())
    })
    .await;
}

/// Tasks of this test's runtime.
fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

#[tokio::test]
async fn a_master_that_falls_silent_is_soon_neither_called_nor_waited_for() {
    let servers = Server::start_armed(3).await;
    let (links, client) = Proxy::to_all(&servers).await;
    let before = tasks();
    links[0].swallow();
    eventually("its connection is closed", async || {
        acquire_and_release(&client).await;
        matches!(client.masters()[0].health(), Health::Down(_)).then_some(())
    })
    .await;
    let (sent, connected) = (links[0].received(), links[0].accepted());
    for _ in 0..300 {
        acquire_and_release(&client).await;
    }
    // Since then it got only the first words of new connections. Three hundred calls would be 60,000 bytes and more.
    let (sent, connected) = (links[0].received() - sent, links[0].accepted() - connected);
    assert!(sent < 200 * (connected as u64 + 10), "{sent} bytes in {connected} connections");
    links[0].cut();
    eventually("no task of it is left", async || (tasks() <= before + 2).then_some(())).await;
    links[0].heal();
    is_up(&client, 0).await;
}

#[tokio::test]
async fn hundreds_of_calls_at_once_to_a_silent_master_end_and_leave_nothing_behind() {
    let servers = Server::start_armed(3).await;
    let (links, client) = Proxy::to_all(&servers).await;
    let before = tasks();
    links[0].swallow();
    let sent = links[0].received();
    let all = stream::iter(0..300).map(|n| {
        // Short, in case a busy machine makes an attempt fail.
        let options = unrenewed("x").ttl(Duration::from_secs(5));
        let client = client.clone();
        async move { client.acquire(&key(&format!("n{n}")), &options, Wait::For(PATIENCE)).await.map(drop) }
    });
    let failed = all.buffer_unordered(300).filter(|r| std::future::ready(r.is_err())).count().await;
    assert_eq!(failed, 0, "two of three masters answer");
    is_down(&client, 0).await;
    // A request and a release of some 400 bytes each, and little more.
    assert!(links[0].received() - sent < 360_000, "{}", links[0].received() - sent);
    links[0].cut();
    eventually("no task is left", async || (tasks() <= before + 2).then_some(())).await;
}

#[tokio::test]
async fn calls_on_dead_connections_end_after_the_call_timeout() {
    let servers = Server::start_armed(3).await;
    let (links, client) = Proxy::to_all_within(&servers, Duration::from_millis(200)).await;
    let key = key("a");
    let short = LeaseOptions::new("x", Duration::from_secs(3)).renewal(Renewal::None);
    let lease = client.acquire(&key, &short, Wait::For(PATIENCE)).await.expect("granted");
    // Nothing is refused and nothing is reset: the other side does not answer any more.
    links.iter().for_each(Proxy::swallow);
    let error = client.try_acquire(&LockKey::new("tests", "b").expect("a name"), &options("x")).await;
    let Err(Error::NoQuorum { usable: 0, failures, .. }) = error else { panic!("{error:?}") };
    assert!(failures.iter().all(|f| f.error == MasterError::Timeout), "{failures:?}");
    assert_eq!(client.read(&key).await.expect_err("no answers").reason(), Reason::NoQuorum);
    assert_eq!(lease.release().await, Released::Unknown);
    links.iter().for_each(Proxy::heal);
    let lease =
        client.acquire(&key, &options("y"), Wait::For(PATIENCE)).await.expect("granted, at the latest after the TTL");
    assert!(lease.is_held());
}

#[tokio::test]
async fn a_master_that_accepts_and_never_answers_costs_no_lock() {
    let servers = Server::start_armed(2).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = silent.local_addr().expect("its address").port();
    let accepting = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok(connection) = silent.accept().await {
            open.push(connection);
        }
    });
    let address = Address::Tcp("127.0.0.1".to_owned(), port);
    let masters = [
        servers[0].endpoint(Marker::Required),
        servers[1].endpoint(Marker::Required),
        Endpoint { address, ..servers[0].endpoint(Marker::Required) },
    ];
    let client = Client::new(masters.map(RedisMaster::connect), CALL_TIMEOUT).expect("valid settings");
    for _ in 0..3 {
        let lease = client.acquire(&key("a"), &options("x"), Wait::For(PATIENCE)).await.expect("granted by two");
        assert_eq!(lease.release().await, Released::Freed);
    }
    eventually("timed out", async || {
        (client.masters()[2].health() == Health::Down(MasterError::Timeout)).then_some(())
    })
    .await;
    drop(client.try_acquire(&key("a"), &options("x")).await.expect("granted by two"));
    accepting.abort();
}

#[tokio::test]
async fn a_name_that_does_not_resolve_costs_no_lock_and_is_named() {
    let servers = Server::start_armed(2).await;
    // Two dots in a row: no resolver looks this name up.
    let address = Address::Tcp("redis..invalid".to_owned(), 6379);
    let masters = [
        servers[0].endpoint(Marker::Required),
        servers[1].endpoint(Marker::Required),
        Endpoint { address, ..servers[0].endpoint(Marker::Required) },
    ];
    let client = Client::new(masters.map(RedisMaster::connect), CALL_TIMEOUT).expect("valid settings");
    drop(client.acquire(&key("a"), &options("x"), Wait::For(PATIENCE)).await.expect("granted by two"));
    is_down(&client, 2).await;
    assert!(matches!(client.masters()[2].health(), Health::Down(MasterError::Unreachable(_))));
}

#[tokio::test]
async fn connections_that_are_reset_are_made_again_and_the_lease_goes_on() {
    let servers = Server::start_armed(3).await;
    let (links, client) = Proxy::to_all(&servers).await;
    let renewal = Renewal::Every(Duration::from_millis(200));
    let lease = client.try_acquire(&key("a"), &options("x").renewal(renewal)).await.expect("granted");
    for _ in 0..3 {
        links.iter().for_each(Proxy::cut);
        for master in 0..3 {
            is_down(&client, master).await;
        }
        links.iter().for_each(Proxy::heal);
        let LeaseState::Held(before) = lease.state().borrow().clone() else { panic!("held") };
        let mut state = lease.state();
        let renewed = state.wait_for(|s| !matches!(s, LeaseState::Held(g) if g.renewals <= before.renewals));
        let renewed = timeout(PATIENCE, renewed).await.expect("renewed in time").expect("a watchdog").clone();
        assert!(matches!(renewed, LeaseState::Held(_)), "{renewed:?}");
    }
    assert_eq!(lease.release().await, Released::Freed);
}

#[tokio::test]
async fn the_delay_of_a_slow_link_shortens_the_validity() {
    let servers = Server::start_armed(3).await;
    let (links, client) = Proxy::to_all_within(&servers, Duration::from_secs(5)).await;
    let (key, late) = (key("a"), Duration::from_millis(150));
    let longest = TTL.saturating_sub(2 * late);
    client.try_acquire(&key, &options("x")).await.expect("granted").release().await;
    // A master that still has this key would refuse the next claim, and nobody renews that.
    gone_everywhere(&servers, &key).await;
    for link in &links {
        link.requests(Flow::Late(late));
        link.answers(Flow::Late(late));
    }
    let lease = client.try_acquire(&key, &unrenewed("x")).await.expect("granted");
    assert!(lease.validity() <= longest, "{:?}", lease.validity());
    for server in &servers[..2] {
        // The master counts from when it ran the command: its key outlives the validity.
        let left = eventually("the key", async || u64::try_from(server.pttl(&key).await).ok()).await;
        let left = Duration::from_millis(left);
        assert!(left > lease.validity(), "{left:?}");
    }
    lease.release().await;
    // The drift alone would leave enough validity; drift and delay do not.
    let demanding = unrenewed("x").min_validity(TTL.saturating_sub(3 * late));
    let error = client.acquire(&key, &demanding, Wait::For(Duration::ZERO)).await.expect_err("the delay is too long");
    assert_eq!(error.reason(), Reason::TooSlow, "{error}");
    gone_everywhere(&servers, &key).await;
}

#[tokio::test]
async fn a_paused_server_makes_at_most_one_grant_of_an_acquire_that_timed_out() {
    let servers = Server::start_armed(3).await;
    let masters = servers.iter().map(|s| RedisMaster::connect(s.endpoint(Marker::Required)));
    let client = Client::new(masters, Duration::from_millis(300)).expect("valid settings");
    let key = key("a");
    client.acquire(&key, &options("x"), Wait::For(PATIENCE)).await.expect("granted").release().await;
    gone_everywhere(&servers, &key).await;
    for server in &servers {
        let () = server.run("CLIENT PAUSE 1500 ALL").await;
    }
    // Tries again and again while nothing answers, and once more after it.
    let lease = client.acquire(&key, &unrenewed("x"), Wait::For(PATIENCE)).await.expect("granted after the pause");
    let owner = lease.owner().to_string();
    for server in &servers {
        // A majority has its key. The other master may have none, but no key of an attempt that timed out.
        let one_grant = async || server.get(&key).await.is_none_or(|shown| shown == owner).then_some(());
        eventually("no key of another attempt", one_grant).await;
    }
    assert_eq!(lease.release().await, Released::Freed);
    gone_everywhere(&servers, &key).await;
}

#[tokio::test]
async fn a_release_before_the_subscription_is_confirmed_is_not_missed() {
    let servers = Server::start_armed(3).await;
    let (links, other) = Proxy::to_all_within(&servers, Duration::from_secs(60)).await;
    let (one, key) = (connected(&servers).await, key("a"));
    // Longer than the test waits: nobody gets it because it expires.
    let long = LeaseOptions::new("one", Duration::from_secs(60));
    let lease = one.try_acquire(&key, &long).await.expect("granted");
    for link in &links {
        link.requests(Flow::HoldFrom("SUBSCRIBE"));
    }
    let waiting = tokio::spawn({
        let key = key.clone();
        async move { other.acquire(&key, &options("other"), Wait::Forever).await }
    });
    for link in &links {
        eventually("it has been refused, and subscribes", async || link.holds().then_some(())).await;
    }
    assert_eq!(lease.release().await, Released::Freed);
    gone_everywhere(&servers, &key).await;
    assert!(!waiting.is_finished());
    links.iter().for_each(Proxy::heal);
    let lease = timeout(PATIENCE, waiting).await.expect("it asked again").expect("no panic").expect("granted");
    assert_eq!(lease.owner().identity(), "other");
}

#[tokio::test]
async fn a_release_while_the_waiters_subscriptions_are_gone_is_not_missed() {
    let servers = Server::start_armed(3).await;
    let (one, other, key) = (connected(&servers).await, connected(&servers).await, key("a"));
    let long = LeaseOptions::new("one", Duration::from_secs(60));
    for _ in 0..5 {
        let lease = one.acquire(&key, &long, Wait::For(PATIENCE)).await.expect("granted");
        let waiting = tokio::spawn({
            let (key, other) = (key.clone(), other.clone());
            async move { other.acquire(&key, &options("other"), Wait::Forever).await }
        });
        for server in &servers {
            eventually("the waiter is cut off", async || {
                (server.run::<i64>("CLIENT KILL TYPE pubsub").await > 0).then_some(())
            })
            .await;
        }
        // Nobody hears of this.
        lease.release().await;
        let lease = timeout(PATIENCE, waiting).await.expect("woken").expect("no panic").expect("granted");
        lease.release().await;
    }
}

#[tokio::test]
async fn clients_of_a_dead_server_reconnect_at_different_times_and_at_most_every_tenth_of_a_second() {
    const CLIENTS: usize = 30;
    const TRIES: usize = 5;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("its address").port();
    let tries: Arc<Mutex<HashMap<String, Vec<Instant>>>> = Arc::default();
    let log = Arc::clone(&tries);
    // Reads from the first words which client it is, then closes.
    let closing = tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let log = Arc::clone(&log);
            tokio::spawn(async move {
                let mut words = [0; 512];
                let read = connection.read(&mut words).await.unwrap_or(0);
                let words = String::from_utf8_lossy(&words[..read]);
                if let Some(name) = words.split_whitespace().find(|word| word.starts_with("client-")) {
                    log.lock()
                        .expect("no panic under this lock")
                        .entry(name.to_owned())
                        .or_default()
                        .push(Instant::now());
                }
            });
        }
    });
    let masters: Vec<_> = (0..CLIENTS)
        .map(|n| {
            RedisMaster::connect(Endpoint {
                name: "dead".to_owned(),
                address: Address::Tcp("127.0.0.1".to_owned(), port),
                credentials: Credentials::Password { username: format!("client-{n}"), password: "pw".to_owned() },
                marker: Marker::Required,
            })
        })
        .collect();
    let tries = eventually("each has tried often", async || {
        let tries = tries.lock().expect("no panic under this lock").clone();
        (tries.len() == CLIENTS && tries.values().all(|times| times.len() >= TRIES)).then_some(tries)
    })
    .await;
    closing.abort();
    drop(masters);
    let pauses = |n: usize| tries.values().map(move |times| times[n + 1] - times[n]);
    for n in 0..TRIES - 1 {
        let shortest = pauses(n).min().expect("clients");
        assert!(shortest >= Duration::from_millis(100), "{shortest:?} before try {}", n + 2);
    }
    // Each client draws from 0.1 to 0.8 s: that all thirty draw within a fifth of a second is practically impossible.
    let (shortest, longest) = (pauses(2).min().expect("clients"), pauses(2).max().expect("clients"));
    assert!(longest > shortest + Duration::from_millis(200), "{shortest:?} to {longest:?}");
}

#[tokio::test]
async fn a_thousand_names_need_one_connection_to_each_master_and_leave_no_channel() {
    const AT_ONCE: usize = 100;
    let servers = Server::start_armed(1).await;
    let client = patient(&servers);
    is_up(&client, 0).await;
    // A client of another library holds all of them.
    let fill = "for i=0,999 do redis.call('SET','redlock:tests/n'..i,'another','PX',600000) end";
    let mut connection = redis::Client::open(format!("redis://127.0.0.1:{}", servers[0].port)).expect("a client");
    let () = redis::cmd("EVAL").arg(fill).arg(0).query(&mut connection).expect("filled");
    drop(connection);
    let before = tasks();
    let all = stream::iter(0..1000).map(|n| {
        let client = client.clone();
        async move {
            let (key, options) = (key(&format!("n{n}")), options("x"));
            client.acquire(&key, &options, Wait::For(Duration::from_millis(1))).await.map(drop)
        }
    });
    let refused = all.buffer_unordered(AT_ONCE).filter(|r| std::future::ready(r.is_err())).count().await;
    assert_eq!(refused, 1000);
    assert!(servers[0].calls("subscribe").await > 0, "they did subscribe");
    eventually("one connection", async || (servers[0].connections().await == 1).then_some(())).await;
    nobody_listens(&servers).await;
    eventually("no task is left", async || (tasks() <= before).then_some(())).await;
}

#[tokio::test]
async fn a_thousand_leases_need_one_connection_to_each_master() {
    let servers = Server::start_armed(3).await;
    let client = patient(&servers);
    let all = stream::iter(0..1000).map(|n| {
        let client = client.clone();
        async move { client.acquire(&key(&format!("n{n}")), &options("x"), Wait::For(PATIENCE)).await }
    });
    let leases: Vec<_> = all.buffer_unordered(100).collect().await;
    assert!(leases.iter().all(|lease| lease.as_ref().is_ok_and(redlock_engine::Lease::is_held)));
    for server in &servers {
        // A master whose votes nobody needed may still be connecting.
        eventually("one connection", async || (server.connections().await == 1).then_some(())).await;
    }
    drop(leases);
    for server in &servers {
        // The marker, the fences of the namespace, and until when these are kept.
        eventually("all released", async || (server.run::<i64>("DBSIZE").await == 3).then_some(())).await;
    }
}
