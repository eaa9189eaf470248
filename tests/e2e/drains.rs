//! Kubernetes nodes are drained: no lock is lost, and no drain is held up for ever.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ResourceQuota};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use redlock_operator::api::{DistributedLock, RedisLockCluster};
use serde_json::json;

use crate::harness::objects::{
    all_vote, condition, create_cluster, create_lock, held, is_held, owner, redis_key, token,
};
use crate::harness::probe::Probe;
use crate::harness::redis::Masters;
use crate::harness::{Env, LABEL, existing_cluster, install, kubectl, scenario_that_disturbs_the_operator, wait};

/// Masters of a scenario's cluster.
const MASTERS: usize = 5;
/// Longest lease there.
const TTL: &str = "5s";
/// A drain replaces up to all masters, one after the other.
const DRAIN_TIMEOUT: &str = "--timeout=300s";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_one_machine_after_the_other_never_loses_a_held_lock_and_each_drain_ends() {
    if existing_cluster() {
        return;
    }
    scenario_that_disturbs_the_operator("drains", async |env| {
        let masters = ready_cluster(env).await;
        install::scale_operator(2).await;
        install::wait_until_one_leads().await;
        assert_spread(env).await;
        create_lock(env, "report", "report", "job/report", TTL).await;
        let lock = held(env, "report").await;
        let probe = Probe::start(&masters, &redis_key(env, "report")).await;

        let watch = tokio::spawn(fewest_armed(env.api()));
        for machine in machines(env).await {
            let cordon = Cordon(machine.clone());
            drain(&machine, DRAIN_TIMEOUT).await.unwrap();
            let left = pods_on(env, &machine).await;
            assert_eq!(left, [""; 0], "{machine} is drained");
            // The next drain begins at once: it waits for the last master that this one has evicted.
            drop(cordon);
        }
        watch.abort();
        if let Ok(fewest) = watch.await {
            panic!("{fewest} masters are armed, while one at a time may be out");
        }

        let rows = ready(env).await.status.unwrap().masters;
        assert!(rows.iter().all(|row| row.crashes > 0), "each was moved: {rows:?}");
        let now: DistributedLock = env.api().get("report").await.unwrap();
        assert!(is_held(&now));
        assert_eq!((token(&now), owner(&now)), (token(&lock), owner(&lock)), "the same grant throughout");
        probe.catch_up(&[0, 1, 2, 3, 4]).await;
        probe.finish().assert_tokens_only_grow();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_stays_broken_holds_a_drain_up_only_until_it_has_been_out_for_longer_than_a_restart_takes() {
    if existing_cluster() {
        return;
    }
    scenario_that_disturbs_the_operator("broken-drain", async |env| {
        let masters = ready_cluster(env).await;
        create_lock(env, "report", "report", "job/report", TTL).await;
        let lock = held(env, "report").await;
        // There is no room for the fifth pod once it is gone.
        let quotas: Api<ResourceQuota> = env.api();
        let quota = json!({"metadata": {"name": "four"}, "spec": {"hard": {"pods": "4"}}});
        quotas.create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
        let enforced = |q: &ResourceQuota| q.status.as_ref().is_some_and(|s| s.used.is_some());
        wait::until(&quotas, "four", "enforced", enforced).await;
        let (pods, budgets): (Api<Pod>, Api<PodDisruptionBudget>) = (env.api(), env.api());
        pods.delete(&masters.pod(0), &DeleteParams::default()).await.unwrap();
        let clusters: Api<RedisLockCluster> = env.api();
        let refused = |c: &RedisLockCluster| condition(c, "ConfigValid").is_some_and(|c| c.reason == "PodRefused");
        wait::until(&clusters, "main", "told that a pod is refused", refused).await;

        let machine = pods.get(&masters.pod(1)).await.unwrap().spec.unwrap().node_name.unwrap();
        let _cordon = Cordon(machine.clone());
        assert_eq!(kept(&budgets.get("main").await.unwrap()), Some(4));
        let early = drain(&machine, "--timeout=3s").await;
        assert!(early.is_err(), "the master may come back: {early:?}");

        wait::until(&budgets, "main", "lowered to the quorum", |budget| kept(budget) == Some(3)).await;
        drain(&machine, DRAIN_TIMEOUT).await.unwrap();
        assert_eq!(pods_on(env, &machine).await, [""; 0]);
        let now: DistributedLock = env.api().get("report").await.unwrap();
        assert!(is_held(&now));
        assert_eq!(token(&now), token(&lock), "the same grant throughout");

        quotas.delete("four", &DeleteParams::default()).await.unwrap();
        ready(env).await;
        wait::until(&budgets, "main", "raised again", |budget| kept(budget) == Some(4)).await;
    })
    .await;
}

async fn ready_cluster(env: &Env) -> Masters {
    create_cluster(env, json!({"masters": MASTERS, "maxTTL": TTL, "restartDelay": "8s"})).await;
    ready(env).await;
    // A pod of another scenario that is still ending would hold up a drain, or refuse it.
    let namespaces: Api<Namespace> = Api::all(env.client.clone());
    for other in namespaces.list(&ListParams::default().labels(LABEL)).await.unwrap() {
        if other.metadata.deletion_timestamp.is_some() {
            wait::gone(&namespaces, &other.name_any()).await;
        }
    }
    Masters::of(env, "main", MASTERS).await
}

async fn ready(env: &Env) -> RedisLockCluster {
    wait::until(&env.api(), "main", "ready", all_vote).await
}

/// The names of the Kubernetes nodes.
async fn machines(env: &Env) -> Vec<String> {
    let all: Api<Node> = Api::all(env.client.clone());
    let listed = all.list(&ListParams::default()).await.expect("list the Kubernetes nodes");
    listed.iter().map(ResourceExt::name_any).collect()
}

/// Two of five at most on each of three machines: the loss of one leaves the quorum.
async fn assert_spread(env: &Env) {
    for machine in machines(env).await {
        let on = pods_on(env, &machine).await;
        assert!(on.len() <= 2, "{on:?} on {machine}");
    }
}

/// The masters whose pods are on a Kubernetes node.
async fn pods_on(env: &Env, machine: &str) -> Vec<String> {
    let on = ListParams::default().labels("redlock.dev/cluster=main").fields(&format!("spec.nodeName={machine}"));
    env.api::<Pod>().list(&on).await.expect("list pods").iter().map(ResourceExt::name_any).collect()
}

/// As a person drains it, without any flag that permits to lose something.
async fn drain(machine: &str, timeout: &str) -> Result<String, String> {
    kubectl(&["drain", machine, "--ignore-daemonsets", timeout]).await
}

fn kept(budget: &PodDisruptionBudget) -> Option<i32> {
    match budget.spec.as_ref()?.min_available.as_ref()? {
        IntOrString::Int(kept) => Some(*kept),
        IntOrString::String(_) => None,
    }
}

/// Ends with how many pods stand whose masters are armed, once these are too few.
async fn fewest_armed(pods: Api<Pod>) -> usize {
    let armed = |pod: &&Pod| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let is_armed = conditions.into_iter().any(|c| c.type_ == "redlock.dev/armed" && c.status == "True");
        is_armed && pod.metadata.deletion_timestamp.is_none()
    };
    loop {
        // A failed list is tried again: the API server has more to do than usual.
        if let Ok(all) = pods.list(&ListParams::default().labels("redlock.dev/cluster=main")).await {
            let count = all.iter().filter(armed).count();
            if count < MASTERS - 1 {
                return count;
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A Kubernetes node that is cordoned until this value is dropped, also after a panic: the other scenarios need it.
struct Cordon(String);

impl Drop for Cordon {
    fn drop(&mut self) {
        let _ = std::process::Command::new("kubectl").args(["uncordon", &self.0]).output();
    }
}
