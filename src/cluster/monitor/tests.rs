//! What a poll finds on real servers and does about it, and which findings count as stuck.

use redlock_test_servers::faketime::Clock;
use redlock_test_servers::server::{PATIENCE, eventually, free_port};
use tokio::time::timeout;

use super::*;
use crate::cluster::server::tests::harness::{MasterServer, POD_UID};
use crate::cluster::server::{Admin, AdminError};
use crate::contract::credentials::RootKey;
use crate::operator::leadership::Terms;

#[test]
fn a_silent_server_is_stuck_only_while_another_answers_and_a_busy_one_always() {
    let (silent, busy) = (Finding::Stuck { answers: false }, Finding::Stuck { answers: true });
    let (armed, gone) = (Finding::Armed("run-1".to_owned()), Finding::Unreachable);
    let pods = |findings: &[Option<&Finding>]| {
        let named: Vec<_> = ["a", "b", "c"].into_iter().zip(findings.iter().copied()).collect();
        let mut pods: Vec<_> = stuck(&named).into_keys().collect();
        pods.sort();
        pods.concat()
    };
    assert_eq!(pods(&[Some(&silent), Some(&armed), Some(&silent)]), "ac");
    assert_eq!(pods(&[Some(&silent), Some(&silent), Some(&silent)]), "", "the operator's network");
    assert_eq!(pods(&[Some(&silent), Some(&gone), None]), "");
    assert_eq!(pods(&[Some(&silent)]), "a");
    assert_eq!(pods(&[Some(&busy), Some(&busy), Some(&busy)]), "abc");
}

/// A poll of real servers as the task of a cluster makes it, once a second.
struct Poll {
    server: MasterServer,
    monitored: MonitoredServer,
    target: MonitorTarget,
}

impl Poll {
    /// Of a server that is armed for the namespace `tests`.
    async fn of_armed(scripts: ClientScripts) -> Self {
        Self::of_armed_in(scripts, &[]).await
    }

    /// The same, with environment variables.
    async fn of_armed_in(scripts: ClientScripts, environment: &[(&'static str, String)]) -> Self {
        let mut server = MasterServer::start_in(&RootKey::generate(), environment).await;
        server.scripts = scripts;
        server.arm(&["tests"]).await;
        let run_id = server.facts().await.run_id;
        let target = MonitorTarget {
            master: "votes-0".to_owned(),
            host: "127.0.0.1".to_owned(),
            port: server.port,
            pod_uid: POD_UID.to_owned(),
            password: server.key.operator_password(),
            scripts: server.scripts,
            expected: Finding::Armed(run_id),
        };
        Self { server, monitored: MonitoredServer::of(POD_UID), target }
    }

    async fn check(&mut self) -> Option<Finding> {
        self.monitored.check(&self.target, &Leadership::always()).await
    }

    /// Sends a script as a client whose answer nobody waits for.
    async fn run_script(&self, script: &str) {
        let mut client = self.server.client("tests").await.expect("logged in");
        let mut eval = redis::cmd("EVAL");
        eval.arg(script).arg(1).arg("redlock:tests/a");
        tokio::spawn(async move { eval.query_async::<redis::Value>(&mut client).await });
        let busy = async || {
            let admin = Admin::connect("127.0.0.1", self.server.port, &self.target.password).await;
            let busy = match admin {
                Ok(mut admin) => admin.poll().await.is_err_and(|error| error == AdminError::Busy),
                Err(error) => error == AdminError::Busy,
            };
            busy.then_some(())
        };
        eventually("the server is busy", busy).await;
    }
}

#[tokio::test]
async fn a_flushed_master_is_without_users_after_the_next_poll() {
    let mut poll = Poll::of_armed(ClientScripts::Any).await;
    let armed = poll.target.expected.clone();
    assert_eq!(poll.check().await, Some(armed.clone()));
    let mut raw = poll.server.client("tests").await.expect("logged in");
    let () = poll.server.as_operator("FLUSHALL").await;
    let Finding::Armed(run_id) = armed else { unreachable!() };
    assert_eq!(poll.check().await, Some(Finding::NotArmed(run_id)));
    // Neither a client that is connected gets a vote, nor one that comes.
    let vote = redis::cmd("SET").arg(&["redlock:tests/a", "x", "NX"]).exec_async(&mut raw).await;
    assert!(vote.is_err(), "{vote:?}");
    assert!(poll.server.client("tests").await.is_err());
}

#[tokio::test]
async fn a_process_that_does_not_lead_disarms_nobody_and_ends_no_script() {
    let mut poll = Poll::of_armed(ClientScripts::Any).await;
    let () = poll.server.as_operator("FLUSHALL").await;
    let follower = Terms::new().1;
    let finding = poll.monitored.check(&poll.target, &follower).await;
    assert!(matches!(finding, Some(Finding::NotArmed(_))), "{finding:?}");
    poll.server.client("tests").await.expect("its user is still there");
}

#[tokio::test]
async fn a_master_whose_policy_changes_is_disarmed_at_the_next_poll() {
    let mut poll = Poll::of_armed(ClientScripts::Any).await;
    let () = poll.server.as_operator("CONFIG SET maxmemory-policy allkeys-lru").await;
    let finding = poll.check().await;
    assert!(matches!(finding, Some(Finding::NotArmed(_))), "{finding:?}");
    assert!(poll.server.facts().await.unfit.unwrap().contains("allkeys-lru"));
}

#[tokio::test]
async fn a_master_whose_clock_stops_or_jumps_is_disarmed_at_the_next_poll() {
    for stops in [true, false] {
        let clock = Clock::right();
        let mut poll = Poll::of_armed_in(ClientScripts::Any, &clock.environment()).await;
        if stops {
            clock.stop();
        }
        assert_eq!(poll.check().await, Some(poll.target.expected.clone()), "one reading tells nothing");
        if !stops {
            clock.jump(3600);
        }
        // Polls are a second apart.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let finding = poll.check().await;
        assert!(matches!(finding, Some(Finding::NotArmed(_))), "{finding:?}");
        let why = poll.server.admin().await.poll().await.unwrap().unfit.unwrap();
        assert!(why.starts_with("ClockFault: "), "{why}");
    }
}

#[tokio::test]
async fn lost_scripts_are_loaded_at_the_next_poll() {
    let mut poll = Poll::of_armed(ClientScripts::Builtin).await;
    assert!(poll.server.facts().await.has_scripts);
    let () = poll.server.as_operator("SCRIPT FLUSH").await;
    assert!(!poll.server.facts().await.has_scripts);
    assert_eq!(poll.check().await, Some(poll.target.expected.clone()));
    assert!(poll.server.facts().await.has_scripts);
}

#[tokio::test]
async fn an_endless_script_is_ended_at_the_next_poll_and_the_master_goes_on() {
    let mut poll = Poll::of_armed(ClientScripts::Any).await;
    assert_eq!(poll.check().await, Some(poll.target.expected.clone()));
    poll.run_script("while true do end").await;
    assert_eq!(poll.check().await, None, "it answers, and is not misconfigured");
    let after = eventually("it goes on", async || poll.server.admin().await.poll().await.ok()).await;
    assert!(after.is_armed());
    // Also over a connection that is only made now.
    poll.run_script("while true do end").await;
    poll.monitored = MonitoredServer::of(POD_UID);
    assert_eq!(poll.check().await, None);
    // How soon the script ends after it was told to is the machine's affair.
    let found = timeout(PATIENCE, async {
        loop {
            if let Some(found) = poll.check().await {
                return found;
            }
        }
    });
    assert_eq!(found.await.expect("it goes on"), poll.target.expected);
}

#[tokio::test]
async fn a_script_that_cannot_be_ended_makes_the_master_stuck_after_five_seconds() {
    let mut poll = Poll::of_armed(ClientScripts::Any).await;
    poll.run_script("redis.call('SET', KEYS[1], 'x') while true do end").await;
    let began = Instant::now();
    let finding = loop {
        match poll.check().await {
            Some(finding @ Finding::Stuck { .. }) => break finding,
            None | Some(Finding::Unreachable) => tokio::time::sleep(Duration::from_millis(100)).await,
            Some(other) => panic!("{other:?}"),
        }
    };
    assert_eq!(finding, Finding::Stuck { answers: true });
    assert!(began.elapsed() >= server::STUCK_AFTER, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_frozen_master_is_stuck_after_five_seconds_and_one_that_is_gone_never() {
    let mut poll = Poll::of_armed(ClientScripts::Any).await;
    assert_eq!(poll.check().await, Some(poll.target.expected.clone()));
    poll.server.freeze();
    let began = Instant::now();
    loop {
        match poll.check().await {
            Some(Finding::Stuck { answers: false }) => break,
            None | Some(Finding::Unreachable) => {}
            Some(other) => panic!("{other:?}"),
        }
    }
    assert!(began.elapsed() >= server::STUCK_AFTER, "{:?}", began.elapsed());
    // Nothing listens any more.
    poll.target.port = free_port();
    for _ in 0..3 {
        let finding = poll.check().await;
        assert!(matches!(finding, None | Some(Finding::Unreachable)), "{finding:?}");
    }
}
