//! `helm uninstall` removes the operator and nothing else: what is left can be deleted, and a new install adopts it.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, PropagationPolicy};
use kube::{Api, ResourceExt};
use redlock_operator::api::{DistributedLock, RedisLockCluster};

use crate::harness::objects::{create_lock, held, is_held, owner, ready_cluster, ready_cluster_for_long_leases, token};
use crate::harness::redis::Masters;
use crate::harness::{Env, install, kubectl, output, scenario_that_disturbs_the_operator, wait};

const CRDS: [&str; 2] = ["distributedlocks.redlock.dev", "redislockclusters.redlock.dev"];
/// The finalizers of the operator.
const FINALIZERS: [&str; 3] = ["redlock.dev/release", "redlock.dev/retirement", "redlock.dev/master"];

/// Uninstalls the operator, and checks that nothing of it is left: neither of the release nor of its hook.
async fn uninstall(env: &Env) {
    install::helm(&["uninstall", install::RELEASE, "--wait", "--timeout=120s"]).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(env.client.clone(), install::NAMESPACE);
    for pod in install::operator_pods().await {
        wait::gone(&pods, &pod.name_any()).await;
    }
    for kind in ["deployment", "job", "serviceaccount", "role", "rolebinding", "clusterrole", "clusterrolebinding"] {
        let selector = format!("--selector=app.kubernetes.io/instance={}", install::RELEASE);
        let left = kubectl(&["-n", install::NAMESPACE, "get", kind, "-o", "name", &selector]).await.unwrap();
        assert_eq!(left, "", "no {kind} is left");
    }
}

/// The finalizers of the operator on the objects of this scenario.
async fn finalizers(env: &Env) -> Vec<String> {
    let path = "-o=jsonpath={range .items[*]}{.metadata.finalizers}{\"\\n\"}{end}";
    let all = kubectl(&["-n", &env.namespace, "get", "pods,rlc,dlock", path]).await.unwrap();
    all.lines().filter(|line| FINALIZERS.iter().any(|ours| line.contains(ours))).map(str::to_owned).collect()
}

async fn master_uids(env: &Env, masters: &Masters) -> Vec<Option<String>> {
    let mut uids = Vec::new();
    for index in 0..masters.count {
        uids.push(env.api::<Pod>().get(&masters.pod(index)).await.expect("its masters stay").uid());
    }
    uids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uninstall_removes_the_operator_alone_and_a_new_install_adopts_everything_with_the_same_grant() {
    scenario_that_disturbs_the_operator("uninstall", async |env| {
        let masters = ready_cluster_for_long_leases(env, 3).await;
        let locks: Api<DistributedLock> = env.api();
        let crds: Api<CustomResourceDefinition> = Api::all(env.client.clone());
        // It outlasts the time without an operator.
        create_lock(env, "kept", "kept", "job/kept", "60s").await;
        create_lock(env, "freed", "freed", "job/freed", "4s").await;
        let before = (held(env, "kept").await, held(env, "freed").await);
        let crd_uids = async || {
            let mut uids = Vec::new();
            for name in CRDS {
                uids.push(crds.get(name).await.expect("the CRDs stay").uid());
            }
            uids
        };
        let (uids, pods) = (crd_uids().await, master_uids(env, &masters).await);
        assert_eq!(finalizers(env).await.len(), 6, "on three pods, a cluster and two locks");

        uninstall(env).await;
        assert_eq!(finalizers(env).await, [""; 0], "the hook has taken them off");
        assert_eq!(crd_uids().await, uids, "the CRDs are the same objects");
        let clusters: Api<RedisLockCluster> = env.api();
        clusters.get("main").await.expect("the cluster stays");
        assert_eq!(master_uids(env, &masters).await, pods, "its masters are the same");
        kubectl(&["-n", &env.namespace, "delete", "dlock", "freed", "--timeout=10s"]).await.expect("nothing holds it");

        install::make_ready().await;
        assert_eq!(crd_uids().await, uids, "the CRDs are adopted, not made anew");
        let renewed = |l: &DistributedLock| {
            let was = before.0.status.as_ref().unwrap().renew_time.as_ref().unwrap().0;
            is_held(l) && l.status.as_ref().and_then(|s| s.renew_time.as_ref()).is_some_and(|t| t.0 > was)
        };
        let again = wait::until(&locks, "kept", "held by the new operator", renewed).await;
        assert_eq!((token(&again), owner(&again)), (token(&before.0), owner(&before.0)), "the same grant");
        assert_eq!(master_uids(env, &masters).await, pods, "the masters have gone on");
        let protected = |p: &Pod| p.finalizers().iter().any(|finalizer| finalizer == "redlock.dev/master");
        for index in 0..masters.count {
            wait::until(&env.api::<Pod>(), &masters.pod(index), "protected again", protected).await;
        }
        let retired =
            |c: &RedisLockCluster| c.finalizers().iter().any(|finalizer| finalizer == "redlock.dev/retirement");
        wait::until(&clusters, "main", "protected again", retired).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_uninstall_each_object_and_a_whole_namespace_can_be_deleted_without_an_operator() {
    scenario_that_disturbs_the_operator("uninstalled", async |env| {
        let masters = ready_cluster(env, 3).await;
        create_lock(env, "report", "report", "job/report", "4s").await;
        held(env, "report").await;
        uninstall(env).await;

        kubectl(&["-n", &env.namespace, "delete", "pod", &masters.pod(0), "--timeout=40s"]).await.unwrap();
        let clusters: Api<RedisLockCluster> = env.api();
        let namespaces: Api<Namespace> = Api::all(env.client.clone());
        namespaces.delete(&env.namespace, &DeleteParams::default()).await.unwrap();
        wait::gone_within(Duration::from_secs(60), &namespaces, &env.namespace).await;
        assert!(clusters.get_opt("main").await.unwrap().is_none());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_only_the_operator_was_removed_the_command_frees_its_objects_and_while_it_runs_it_names_it() {
    scenario_that_disturbs_the_operator("cleanup", async |env| {
        ready_cluster(env, 1).await;
        create_lock(env, "report", "report", "job/report", "4s").await;
        held(env, "report").await;
        let program = env!("CARGO_BIN_EXE_redlock");
        let cleanup = ["cleanup", "--namespace", install::NAMESPACE, "--wait=5s"];

        let leader = install::operator_pods().await[0].name_any();
        let refused = output(program, &cleanup).await.unwrap_err();
        assert!(refused.contains(&format!("an operator runs: {leader}")), "{refused}");
        assert_eq!(finalizers(env).await.len(), 3, "all of them");

        // As where its namespace is deleted: no hook runs.
        let background =
            DeleteParams { propagation_policy: Some(PropagationPolicy::Background), ..DeleteParams::default() };
        let deployments: Api<k8s_openapi::api::apps::v1::Deployment> =
            Api::namespaced(env.client.clone(), install::NAMESPACE);
        deployments.delete(install::RELEASE, &background).await.unwrap();
        let pods: Api<Pod> = Api::namespaced(env.client.clone(), install::NAMESPACE);
        wait::gone(&pods, &leader).await;
        let told = output(program, &[&cleanup[..], &["--dry-run"]].concat()).await.unwrap();
        assert!(told.contains(&format!("pod {}/main-0: finalizer would be taken off", env.namespace)), "{told}");
        assert_eq!(finalizers(env).await.len(), 3, "all of them");
        let told = output(program, &cleanup).await.unwrap();
        assert!(told.contains(&format!("distributedlock {}/report: finalizer is off", env.namespace)), "{told}");
        assert_eq!(finalizers(env).await, [""; 0]);
        kubectl(&["-n", &env.namespace, "delete", "rlc,dlock", "--all", "--timeout=40s"])
            .await
            .expect("nothing holds them");
    })
    .await;
}
