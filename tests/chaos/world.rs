//! What the storm goes over: a cluster of five masters, five locks, and four contenders for each.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use redlock_operator::api::cluster::MasterState;
use redlock_operator::api::{DistributedLock, RedisLockCluster};
use redlock_test_servers::stamp::Stamp;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::harness::objects::{all_vote, example, held, object, redis_key};
use crate::harness::redis::{self, Masters};
use crate::harness::{Env, PATIENCE, wait};
use crate::history::History;
use crate::library::Contenders;
use crate::observers::Observers;
use crate::verdict;

/// How many masters the cluster has.
pub(crate) const MASTERS: usize = 5;
/// How many of them are a majority.
pub(crate) const QUORUM: usize = 3;
/// How many locks there are.
pub(crate) const LOCKS: usize = 5;
/// How long a master stays away.
const RESTART_DELAY: Duration = Duration::from_secs(8);
/// The longest lease.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(5);
/// The TTL of redsync's leases.
const LIBRARY_TTL: Duration = Duration::from_secs(4);
/// The longest time from when no contender is left until a new one has its lock: the last lease ends, and an attempt comes.
pub(crate) const FREE_WITHIN: Duration = Duration::from_secs(20);

/// The world.
pub(crate) struct World<'a> {
    pub(crate) env: &'a Env,
    pub(crate) history: History,
    pub(crate) observers: Observers,
    library: Mutex<(Contenders, u32)>,
}

impl<'a> World<'a> {
    /// Makes everything, and waits until the cluster is ready.
    pub(crate) async fn make(env: &'a Env) -> Arc<Self> {
        let history = History::default();
        let locks: Vec<_> = (0..LOCKS).map(|lock| (name(lock), redis_key(env, &name(lock)))).collect();
        let observers = Observers::start(history.clone(), locks);
        make_cluster(env).await;
        tokio::spawn(follow_password(env.api(), observers.clone()));
        for lock in 0..LOCKS {
            make_lock(env, lock).await.expect("create a lock");
            make_sidecars(env, lock).await;
        }
        until_ready(env).await;
        let library = start_library(env, &history, 0).await;
        Arc::new(Self { env, history, observers, library: Mutex::new((library, 0)) })
    }

    /// Makes the cluster again after it was deleted, under the same name.
    pub(crate) async fn remake_cluster(&self) {
        make_cluster(self.env).await;
        let mut library = self.library.lock().await;
        library.0.kill();
        library.1 += 100;
        library.0 = start_library(self.env, &self.history, library.1).await;
    }

    /// Waits until all masters but one vote, at most until `end`.
    pub(crate) async fn calm(&self, end: Instant) {
        let clusters: Api<RedisLockCluster> = self.env.api();
        let votes = |cluster: &RedisLockCluster| {
            let rows = cluster.status.iter().flat_map(|status| &status.masters);
            rows.filter(|row| row.state == MasterState::Armed).count() >= MASTERS - 1
        };
        while Instant::now() < end {
            if clusters.get("main").await.is_ok_and(|cluster| votes(&cluster)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// The masters, for commands.
    pub(crate) async fn masters(&self) -> Masters {
        Masters::of(self.env, "main", MASTERS).await
    }

    /// Deletes the `DistributedLock` of a lock, and makes it again.
    pub(crate) async fn remake_lock(&self, lock: usize) -> Result<(), String> {
        let locks: Api<DistributedLock> = self.env.api();
        locks.delete(&held_name(lock), &DeleteParams::default()).await.map_err(|error| error.to_string())?;
        wait::gone(&locks, &held_name(lock)).await;
        make_lock(self.env, lock).await
    }

    /// The pod with this uid.
    pub(crate) async fn pod(&self, uid: &str) -> Result<Pod, String> {
        let pods: Api<Pod> = self.env.api();
        let all = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        all.items.into_iter().find(|pod| pod.uid().as_deref() == Some(uid)).ok_or_else(|| "it is gone".to_owned())
    }

    /// After the storm: how long it takes until the contenders that are there hold each lock, once all masters vote. What a contender
    /// held that was killed in the storm is held until its lease ends.
    pub(crate) async fn held_again(&self) -> Duration {
        until_ready(self.env).await;
        let (ready, since) = (Instant::now(), Stamp::now());
        loop {
            let spans = self.history.spans();
            let each: Option<Vec<_>> =
                (0..LOCKS).map(|lock| verdict::held_after(&spans, QUORUM, lock, since)).collect();
            match each {
                Some(each) => return each.into_iter().max().unwrap_or_default(),
                None if ready.elapsed() > PATIENCE => return ready.elapsed(),
                None => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
    }

    /// After the storm: ends all contenders, and sees how long it takes until new ones have each lock.
    pub(crate) async fn freed(&self) -> Duration {
        until_ready(self.env).await;
        let (deployments, pods): (Api<Deployment>, Api<Pod>) = (self.env.api(), self.env.api());
        let locks: Api<DistributedLock> = self.env.api();
        self.library.lock().await.0.kill();
        for lock in 0..LOCKS {
            deployments.delete(&app(lock), &DeleteParams::background()).await.expect("delete the sidecars");
            locks.delete(&held_name(lock), &DeleteParams::default()).await.expect("delete a lock");
        }
        for lock in 0..LOCKS {
            for pod in pods.list(&ListParams::default().labels(&format!("app={}", app(lock)))).await.expect("list pods")
            {
                wait::gone(&pods, &pod.name_any()).await;
            }
            wait::gone(&locks, &held_name(lock)).await;
        }
        let ended = Instant::now();
        for lock in 0..LOCKS {
            make_lock(self.env, lock).await.expect("create a lock");
        }
        for lock in 0..LOCKS {
            held(self.env, &held_name(lock)).await;
        }
        let took = ended.elapsed();
        self.observers.stop();
        took
    }
}

fn name(lock: usize) -> String {
    format!("key-{lock}")
}

fn held_name(lock: usize) -> String {
    format!("held-{lock}")
}

fn app(lock: usize) -> String {
    format!("app-{lock}")
}

async fn start_library(env: &Env, history: &History, first: u32) -> Contenders {
    let keys: Vec<_> = (0..LOCKS).map(|lock| redis_key(env, &name(lock))).collect();
    Contenders::start(env, history, &keys, MASTERS, LIBRARY_TTL, first).await
}

async fn make_cluster(env: &Env) {
    let spec = json!({
        "masters": MASTERS,
        "maxTTL": format!("{}s", MAX_TTL.as_secs()),
        "restartDelay": format!("{}s", RESTART_DELAY.as_secs()),
        "callTimeout": "250ms",
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
    });
    let cluster: RedisLockCluster = object(env, "RedisLockCluster", "main", &spec);
    let clusters: Api<RedisLockCluster> = env.api();
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = clusters.create(&PostParams::default(), &cluster).await {
        assert!(Instant::now() < deadline, "create the cluster: {error}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Tells observers the password of the operator's user, whenever the cluster's Secret is another one.
pub(crate) async fn follow_password(secrets: Api<Secret>, observers: Observers) {
    let mut known = None;
    while !observers.is_over() {
        if let Ok(secret) = secrets.get("main-auth").await
            && let Some(key) = secret.data.and_then(|mut data| String::from_utf8(data.remove("key")?.0).ok())
            && known.as_ref() != Some(&key)
        {
            observers.add_password(redis::password(&key, "operator"));
            known = Some(key);
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

async fn make_lock(env: &Env, lock: usize) -> Result<(), String> {
    let holder = format!("job/storm-{lock}");
    let spec = json!({"clusterRef": {"name": "main"}, "key": name(lock), "holder": holder, "lease": {"ttl": "4s"}});
    let object: DistributedLock = object(env, "DistributedLock", &held_name(lock), &spec);
    env.api().create(&PostParams::default(), &object).await.map(drop).map_err(|error| error.to_string())
}

async fn make_sidecars(env: &Env, lock: usize) {
    let pods = sidecars(env, &app(lock), &name(lock), &["--ttl=4s"]);
    env.api().create(&PostParams::default(), &pods).await.expect("create the sidecars");
}

/// Two pods with sidecars, as in the example, that contend for a lock.
pub(crate) fn sidecars(env: &Env, app: &str, lock: &str, times: &[&str]) -> Deployment {
    let mut pods = example(env, "20-leader-election.yaml")
        .into_iter()
        .find(|object| object["kind"] == "Deployment")
        .expect("pods");
    let labels = json!({"app": app});
    pods["metadata"]["name"] = json!(app);
    pods["spec"]["replicas"] = json!(2);
    pods["spec"]["selector"]["matchLabels"] = labels.clone();
    pods["spec"]["template"]["metadata"]["labels"] = labels;
    let pod = &mut pods["spec"]["template"]["spec"];
    pod["initContainers"][0]["args"] = json!([&["agent", &format!("--lock={lock}")], times].concat());
    pod["terminationGracePeriodSeconds"] = json!(3);
    // A machine that is away for long is given up soon.
    let soon = |key: &str| json!({"key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10});
    pod["tolerations"] = Value::Array(vec![soon("not-ready"), soon("unreachable")]);
    serde_json::from_value(pods).expect("a Deployment")
}

/// Waits until all masters vote.
async fn until_ready(env: &Env) {
    let clusters: Api<RedisLockCluster> = env.api();
    let ready = wait::until_within(5 * PATIENCE, &clusters, "main", all_vote).await;
    if let Err(last) = ready {
        panic!("the cluster is not ready after the storm:\n{last}");
    }
}
