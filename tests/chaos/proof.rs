//! The checker finds what it is for: with an operator whose masters come back at once, two sidecars lead.
//!
//! Only compiled with the feature `unsafe-for-chaos`. The operator runs on this machine: no image is built of it.

use std::process::{Child, Command};
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::PostParams;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redlock_operator::api::{DistributedLock, RedisLockCluster};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::harness::objects::{all_vote, object, redis_key};
use crate::harness::{PATIENCE, install, scenario_that_disturbs_the_operator, wait};
use crate::history::History;
use crate::observers::Observers;
use crate::verdict::Verdict;
use crate::world::{MASTERS, QUORUM, follow_password, sidecars};

/// TTL of the sidecars, and how often they renew: a leader that is not renewed notices nothing for so long.
const TIMES: [&str; 2] = ["--ttl=30s", "--renew-every=15s"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_restart_delay_the_checker_finds_two_who_hold_a_lock_at_once() {
    scenario_that_disturbs_the_operator("chaos-proof", async |env| {
        install::scale_operator(0).await;
        let _operator = Operator::start();
        let history = History::default();
        let observers = Observers::start(history.clone(), vec![("key".to_owned(), redis_key(env, "key"))]);
        let spec = json!({"masters": MASTERS, "maxTTL": "60s", "callTimeout": "250ms"});
        let cluster: RedisLockCluster = object(env, "RedisLockCluster", "main", &spec);
        env.api().create(&PostParams::default(), &cluster).await.expect("create the cluster");
        tokio::spawn(follow_password(env.api(), observers.clone()));
        // It has the operator write the Secret for clients.
        let lock = json!({"clusterRef": {"name": "main"}, "key": "other", "holder": "nobody"});
        let lock: DistributedLock = object(env, "DistributedLock", "other", &lock);
        env.api().create(&PostParams::default(), &lock).await.expect("create a lock");
        let pods: Deployment = sidecars(env, "proof", "key", &TIMES);
        env.api().create(&PostParams::default(), &pods).await.expect("create the sidecars");
        let clusters: Api<RedisLockCluster> = env.api();
        wait::until(&clusters, "main", "ready", all_vote).await;

        let deadline = Instant::now() + 3 * PATIENCE;
        while Verdict::of(&history.spans(), QUORUM, Duration::from_secs(60)).overlaps.is_empty() {
            assert!(Instant::now() < deadline, "the checker finds no overlap although masters come back at once");
            if history.leader(0).is_some() {
                for server in observers.servers() {
                    let _ = kill(Pid::from_raw(server.pid), Signal::SIGKILL);
                }
            }
            // A second leader comes as soon as the masters are there, and the first one renews.
            sleep(Duration::from_secs(20)).await;
        }
        observers.stop();
    })
    .await;
}

/// An operator on this machine.
struct Operator(Child);

impl Operator {
    fn start() -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_redlock"))
            .args(["operator", "--listen=127.0.0.1:0", "--redis-image=localhost/redis:dev"])
            .env("POD_NAMESPACE", install::NAMESPACE)
            .env("RUST_LOG", "warn")
            .spawn()
            .expect("the operator");
        Self(child)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
