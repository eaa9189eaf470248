//! The sidecar: one of several leads, and each of them reports the leader.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use redlock_engine::permissions::acl_rules;
use redlock_operator::agent::{self, Options};
use redlock_test_servers::server::{CALL_TIMEOUT, PATIENCE, Server, eventually, gone_everywhere, key};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Longer than a test takes: a lock that another gets within it was released.
const LONG: Duration = Duration::from_secs(60);
/// For leases that are to expire.
const SHORT: Duration = Duration::from_secs(3);

/// Servers with the user of the namespace `tests` and no other, and that user's Secret.
pub(crate) async fn cluster(count: usize) -> (Vec<Server>, TempDir) {
    let servers = Server::start_armed(count).await;
    let password = "a-password";
    let rules = acl_rules("tests", false).join(" ");
    for server in &servers {
        let () = server.run(&format!("ACL SETUSER ns-tests reset on >{password} {rules}")).await;
    }
    let secret = tempfile::tempdir().expect("a folder for the Secret");
    let lines: Vec<_> = servers.iter().map(|s| format!("r{0}=127.0.0.1:{0}", s.port)).collect();
    let timeout = format!("{}ms", CALL_TIMEOUT.as_millis());
    for (file, content) in [
        ("endpoints", lines.join("\n").as_str()),
        ("username", "ns-tests"),
        ("password", password),
        ("namespace", "tests"),
        ("max-ttl", "60s"),
        ("call-timeout", &timeout),
    ] {
        fs::write(secret.path().join(file), content).expect("a file of the Secret");
    }
    (servers, secret)
}

struct Agent {
    identity: String,
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<Result<(), agent::Error>>,
}

impl Agent {
    async fn start(identity: &str, ttl: Duration, secret: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let options = Options {
            lock: "web".to_owned(),
            identity: identity.to_owned(),
            ttl,
            renew_every: None,
            secret_dir: secret.to_owned(),
            listen: address,
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(agent::serve(options, listener, stop.clone()));
        Self { identity: identity.to_owned(), address, stop, task }
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let response = reqwest::get(format!("http://{}{path}", self.address)).await.expect("an answer");
        (response.status().as_u16(), response.text().await.expect("its text"))
    }

    async fn leads(&self) -> bool {
        self.get("/leader").await.0 == 200
    }

    async fn answer(&self) -> Value {
        serde_json::from_str(&self.get("/").await.1).expect("JSON")
    }

    /// Stops it as SIGTERM does, and waits until it has ended.
    async fn stop(self) {
        self.stop.cancel();
        timeout(PATIENCE, self.task).await.expect("an end").expect("no panic").expect("a good end");
    }
}

/// The index of the only agent that leads.
async fn leader(agents: &[Agent]) -> usize {
    eventually("one leader", async || {
        let leads = futures::future::join_all(agents.iter().map(Agent::leads)).await;
        let leaders: Vec<_> = (0..agents.len()).filter(|&i| leads[i]).collect();
        // Of two that were asked one after the other both may have led, but not at the same time.
        if let [first, second, ..] = leaders[..] {
            assert!(!(agents[first].leads().await && agents[second].leads().await), "{leaders:?}");
            return None;
        }
        leaders.first().copied()
    })
    .await
}

/// The token that all agents report, once all name the same leader.
async fn agreed_token(agents: &[Agent], name: &str) -> u64 {
    eventually("all name the leader", async || {
        let answers = futures::future::join_all(agents.iter().map(Agent::answer)).await;
        for (agent, answer) in agents.iter().zip(&answers) {
            assert_eq!(answer["self"], agent.identity);
            assert!(answer["name"] == "" || answer["validForMs"].as_u64() <= Some(60_000), "{answer}");
        }
        let token = answers[0]["token"].as_u64()?;
        answers.iter().all(|a| a["name"] == name && a["token"] == token).then_some(token)
    })
    .await
}

#[tokio::test]
async fn one_of_three_leads_and_a_stopped_leader_has_a_successor_at_once() {
    let (servers, secret) = cluster(5).await;
    let mut agents = Vec::new();
    for identity in ["web-0", "web-1", "web-2"] {
        agents.push(Agent::start(identity, LONG, secret.path()).await);
    }
    let first = leader(&agents).await;
    let name = agents[first].identity.clone();
    let token = agreed_token(&agents, &name).await;
    for agent in &agents {
        eventually("ready", async || (agent.get("/readyz").await.0 == 200).then_some(())).await;
        assert_eq!(agent.get("/livez").await.0, 200);
    }
    let metrics = agents[first].get("/metrics").await.1;
    assert!(metrics.contains("redlock_agent_leader 1\n"), "{metrics}");
    assert!(metrics.contains("redlock_agent_acquisitions_total 1\n"), "{metrics}");

    let stopped = agents.remove(first);
    stopped.stop().await;
    let second = leader(&agents).await;
    let name = agents[second].identity.clone();
    assert!(agreed_token(&agents, &name).await > token);

    for agent in agents {
        agent.stop().await;
    }
    gone_everywhere(&servers, &key("web")).await;
}

#[tokio::test]
async fn a_leader_stays_leader_while_its_mounted_password_is_replaced() {
    let (servers, secret) = cluster(3).await;
    let agents = [Agent::start("web-0", SHORT, secret.path()).await, Agent::start("web-1", SHORT, secret.path()).await];
    let first = leader(&agents).await;
    let name = agents[first].identity.clone();
    let token = agreed_token(&agents, &name).await;

    // As the operator does it: both are valid, the Secret follows, then one master after the other closes what was logged in
    // with the former one.
    for server in &servers {
        let () = server.run("ACL SETUSER ns-tests >another").await;
    }
    fs::write(secret.path().join("password"), "another").expect("a file of the Secret");
    for server in &servers {
        let () = server.run("ACL SETUSER ns-tests <a-password").await;
        let _: i64 = server.run("CLIENT KILL USER ns-tests").await;
        let logged_in = async || {
            let clients: String = server.run("CLIENT LIST").await;
            (clients.matches("user=ns-tests").count() >= agents.len()).then_some(())
        };
        eventually("the sidecars log in with the new password", logged_in).await;
        assert_eq!(agreed_token(&agents, &name).await, token, "the same grant");
    }
    // Renewed since: without a connection to a majority it would have ended by now.
    let renewals = || async {
        let metrics = agents[first].get("/metrics").await.1;
        let line =
            metrics.lines().find_map(|line| line.strip_prefix("redlock_agent_renewals_total ")).map(str::to_owned);
        line.and_then(|count| count.parse::<u64>().ok()).expect("a count of renewals")
    };
    let before = renewals().await;
    eventually("renewed with the new password", async || (renewals().await >= before + 3).then_some(())).await;
    assert_eq!(agreed_token(&agents, &name).await, token, "the same grant");
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test]
async fn a_leader_without_a_majority_steps_down_in_time_and_contends_again() {
    let (servers, secret) = cluster(3).await;
    let agents = [Agent::start("web-0", SHORT, secret.path()).await, Agent::start("web-1", SHORT, secret.path()).await];
    let first = leader(&agents).await;
    let name = agents[first].identity.clone();
    let token = agreed_token(&agents, &name).await;

    servers[0].freeze();
    servers[1].freeze();
    let since = Instant::now();
    eventually("nobody leads", async || {
        let asked = since.elapsed();
        let leads = agents[first].leads().await;
        assert!(!leads || asked <= SHORT, "leads still {asked:?} after it was cut off");
        (!leads).then_some(())
    })
    .await;
    eventually("nobody is named", async || {
        let answers = futures::future::join_all(agents.iter().map(Agent::answer)).await;
        answers.iter().all(|a| a["name"] == "" && a["token"].is_null()).then_some(())
    })
    .await;
    // The pods stay in service while no leader can be elected.
    assert_eq!(agents[first].get("/readyz").await.0, 200);

    servers[0].thaw();
    servers[1].thaw();
    let next = leader(&agents).await;
    let name = agents[next].identity.clone();
    assert!(agreed_token(&agents, &name).await > token);
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test]
async fn an_agent_that_does_not_lead_stops_at_once() {
    let (servers, secret) = cluster(3).await;
    for server in &servers {
        server.freeze();
    }
    let agent = Agent::start("web-0", LONG, secret.path()).await;
    assert_eq!(agent.get("/readyz").await.0, 503);
    assert!(!agent.leads().await);
    agent.stop().await;
    for server in &servers {
        server.thaw();
    }
}

#[tokio::test]
async fn a_secret_that_is_not_mounted_is_a_configuration_error() {
    let nowhere = tempfile::tempdir().expect("an empty folder");
    let agent = Agent::start("web-0", LONG, nowhere.path()).await;
    let error = agent.task.await.expect("no panic").expect_err("no Secret");
    assert!(error.is_configuration() && error.to_string().contains("mount the Secret"), "{error}");
}

#[tokio::test]
async fn a_key_of_another_program_that_never_expires_is_shown_as_its_holder() {
    for (command, shown) in [("SET redlock:tests/web 6f1c", "6f1c"), ("HSET redlock:tests/web f v", "another type")] {
        let (servers, secret) = cluster(3).await;
        for server in &servers {
            let _: redis::Value = server.run(command).await;
        }
        let agent = Agent::start("web-0", LONG, secret.path()).await;
        eventually("it is ready", async || (agent.get("/readyz").await.0 == 200).then_some(())).await;
        let named = async || (agent.answer().await["name"] == shown).then_some(());
        eventually("the holder is named", named).await;
        assert!(!agent.leads().await);
        for server in &servers {
            let _: i64 = server.run(&format!("DEL {}", key("web").redis_key())).await;
        }
        eventually("it leads once the key is deleted", async || agent.leads().await.then_some(())).await;
        agent.stop().await;
    }
}

#[tokio::test]
async fn a_secret_with_which_no_client_works_is_a_wrong_configuration() {
    let (_servers, secret) = cluster(1).await;
    fs::write(secret.path().join("call-timeout"), "5h").expect("a file of the Secret");
    let agent = Agent::start("web-0", LONG, secret.path()).await;
    let error = agent.task.await.expect("no panic").expect_err("too long");
    assert!(error.is_configuration() && error.to_string().contains("call timeout"), "{error}");
}
