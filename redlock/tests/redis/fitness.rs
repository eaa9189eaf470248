//! What a server must be, checked at each connection and once a minute on it.

use std::time::Duration;

use redlock_engine::redis_master::scripts;
use redlock_engine::{
    Address, Client, Credentials, Endpoint, Health, LeaseOptions, Marker, MasterError, RedisMaster, Released, Wait,
};
use redlock_test_servers::proxy::{Flow, Proxy};
use redlock_test_servers::server::{CALL_TIMEOUT, PATIENCE, Server, client, eventually, key, until_connected};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

async fn refusal(client: &Client) -> MasterError {
    eventually("refused", async || match client.masters()[0].health() {
        Health::Down(error) => Some(error),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn a_server_in_cluster_mode_or_without_eval_is_refused_with_what_to_do() {
    for (flags, words) in [
        (&["--cluster-enabled", "yes"][..], ["cluster", "on its own"]),
        (&["--rename-command", "EVAL", "OFF"], ["EVAL", "SCRIPT LOAD"]),
        (&["--rename-command", "EVALSHA", "OFF"], ["EVALSHA", "scripts"]),
    ] {
        let server = Server::start(flags).await;
        let master = RedisMaster::connect(server.endpoint(Marker::Unused));
        let error = refusal(&Client::new([master], CALL_TIMEOUT).expect("valid settings")).await;
        let MasterError::Misconfigured(why) = &error else { panic!("{flags:?}: {error}") };
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
    }
}

#[tokio::test]
async fn a_user_without_eval_is_served_once_an_administrator_has_loaded_the_scripts() {
    let server = Server::start(&[]).await;
    let () = server.run("ACL SETUSER weak reset on >pw ~* &* +@all -eval -script").await;
    let credentials = Credentials::Password { username: "weak".to_owned(), password: "pw".to_owned() };
    let master = RedisMaster::connect(Endpoint { credentials, ..server.endpoint(Marker::Unused) });
    let client = Client::new([master], CALL_TIMEOUT).expect("valid settings");
    let error = refusal(&client).await;
    let MasterError::Auth(why) = &error else { panic!("{error}") };
    assert!(why.contains("EVAL") && why.contains("SCRIPT LOAD"), "{why}");
    let mut connection = redis::Client::open(format!("redis://127.0.0.1:{}", server.port)).expect("a client");
    for script in scripts() {
        let _: String = redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut connection).expect("loaded");
    }
    until_connected(&client).await;
    let lease = client.acquire(&key("a"), &LeaseOptions::new("x", PATIENCE), Wait::For(PATIENCE)).await;
    let lease = lease.expect("granted");
    // From here on nothing is refused, and each script takes one round trip, also on a connection that is made now.
    let (refused, called) = (server.refusals("eval").await, server.calls("evalsha").await);
    assert_eq!(lease.release().await, Released::Freed);
    eventually("released", async || server.get(&key("a")).await.is_none().then_some(())).await;
    assert_eq!(server.calls("evalsha").await, called + 1);
    let credentials = Credentials::Password { username: "weak".to_owned(), password: "pw".to_owned() };
    let master = RedisMaster::connect(Endpoint { credentials, ..server.endpoint(Marker::Unused) });
    until_connected(&Client::new([master], CALL_TIMEOUT).expect("valid settings")).await;
    assert_eq!(server.refusals("eval").await, refused);
}

/// A way to the server on which its answers do not show the `run_id`.
async fn without_run_id(port: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let own_port = listener.local_addr().expect("its address").port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", port)).await.expect("the server");
            let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                (client.into_split(), server.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
            tokio::spawn(async move {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(n @ 1..) = from_server.read(&mut buffer).await {
                    // The same length, and of one write as servers send it.
                    let found = buffer[..n].windows(6).position(|bytes| bytes == b"run_id");
                    if let Some(at) = found {
                        buffer[at..at + 6].copy_from_slice(b"hidden");
                    }
                    if to_client.write_all(&buffer[..n]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    own_port
}

#[tokio::test]
async fn a_server_that_does_not_name_its_process_is_refused_where_a_marker_is_required() {
    let servers = Server::start_armed(1).await;
    let port = without_run_id(servers[0].port).await;
    let through = |marker| {
        let endpoint = servers[0].endpoint(marker);
        let master = RedisMaster::connect(Endpoint { address: Address::Tcp("127.0.0.1".to_owned(), port), ..endpoint });
        Client::new([master], CALL_TIMEOUT).expect("valid settings")
    };
    let error = refusal(&through(Marker::Required)).await;
    let MasterError::Misconfigured(why) = &error else { panic!("{error}") };
    assert!(why.contains("run_id"), "{why}");
    until_connected(&through(Marker::Unused)).await;
}

#[tokio::test]
async fn an_eviction_policy_that_is_set_later_ends_the_votes_within_a_minute() {
    let servers = Server::start_armed(1).await;
    let client = client(&servers);
    until_connected(&client).await;
    let () = servers[0].run("CONFIG SET maxmemory-policy allkeys-lru").await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    let error = refusal(&client).await;
    let MasterError::Misconfigured(why) = &error else { panic!("{error}") };
    assert!(why.contains("maxmemory-policy is allkeys-lru"), "{why}");
    let () = servers[0].run("CONFIG SET maxmemory-policy noeviction").await;
    until_connected(&client).await;
}

#[tokio::test]
async fn masters_that_accept_and_answer_too_late_are_left_alone_ever_longer() {
    /// With pauses that begin anew after each handshake it is 0.6 s at most: two tenths, and a handshake of three slow answers.
    const LONG: Duration = Duration::from_secs(1);
    let servers = Server::start_armed(3).await;
    let (links, client) = Proxy::to_all_within(&servers, Duration::from_millis(20)).await;
    // Later than any call is waited for, also one that nobody waits for.
    for link in &links {
        link.answers(Flow::Late(Duration::from_millis(120)));
    }
    let mut connected: Vec<_> = client.masters().iter().map(|_| Instant::now()).collect();
    let is_left_alone = async {
        loop {
            let _ = client.try_acquire(&key("a"), &LeaseOptions::new("x", PATIENCE)).await;
            for (master, connected) in client.masters().iter().zip(&mut connected) {
                if matches!(master.health(), Health::Up { .. }) {
                    *connected = Instant::now();
                } else if connected.elapsed() > LONG {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_left_alone).await.expect("a pause of a second");
    let made: usize = links.iter().map(Proxy::accepted).sum();
    assert!(made < 3 * 20, "{made} connections until then");
}
