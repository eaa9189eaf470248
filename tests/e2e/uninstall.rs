//! `helm uninstall` removes the operator and nothing else; a new install adopts what is there.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use redlock_operator::api::{DistributedLock, RedisLockCluster};

use crate::harness::objects::{create_lock, held, is_held, ready_cluster, token};
use crate::harness::{install, kubectl, scenario_that_disturbs_the_operator, wait};

const CRDS: [&str; 2] = ["distributedlocks.redlock.dev", "redislockclusters.redlock.dev"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uninstall_removes_the_operator_alone_and_a_new_install_adopts_everything() {
    scenario_that_disturbs_the_operator("uninstall", async |env| {
        let masters = ready_cluster(env, 3).await;
        let locks: Api<DistributedLock> = env.api();
        let crds: Api<CustomResourceDefinition> = Api::all(env.client.clone());
        create_lock(env, "kept", "kept", "job/kept", "4s").await;
        create_lock(env, "freed", "freed", "job/freed", "4s").await;
        let before = (held(env, "kept").await, held(env, "freed").await);
        let crd_uids = async || {
            let mut uids = Vec::new();
            for name in CRDS {
                uids.push(crds.get(name).await.expect("the CRDs stay").uid());
            }
            uids
        };
        let uids = crd_uids().await;

        install::helm(&["uninstall", install::RELEASE, "--wait", "--timeout=120s"]).await.unwrap();
        let pods: Api<Pod> = Api::namespaced(env.client.clone(), install::NAMESPACE);
        for pod in install::operator_pods().await {
            wait::gone(&pods, &pod.name_any()).await;
        }
        for kind in ["deployment", "serviceaccount", "role", "rolebinding"] {
            let selector = format!("--selector=app.kubernetes.io/instance={}", install::RELEASE);
            let left = kubectl(&["-n", install::NAMESPACE, "get", kind, "-o", "name", &selector]).await.unwrap();
            assert_eq!(left, "", "no {kind} is left");
        }
        assert_eq!(crd_uids().await, uids, "the CRDs are the same objects");
        let clusters: Api<RedisLockCluster> = env.api();
        clusters.get("main").await.expect("the cluster stays");
        for index in 0..masters.count {
            env.api::<Pod>().get(&masters.pod(index)).await.expect("its masters stay");
        }

        // With no operator, the finalizer of a lock waits; docs/operations.md says how to free it.
        locks.delete("freed", &DeleteParams::default()).await.unwrap();
        let waiting = locks.get("freed").await.expect("its finalizer holds it");
        assert!(waiting.metadata.deletion_timestamp.is_some());
        let free = ["patch", "dlock", "freed", "--type=merge", "--patch", r#"{"metadata":{"finalizers":null}}"#];
        kubectl(&[&["-n", env.namespace.as_str()][..], &free].concat()).await.unwrap();
        wait::gone(&locks, "freed").await;

        install::make_ready().await;
        assert_eq!(crd_uids().await, uids, "the CRDs are adopted, not made anew");
        let renewed = |l: &DistributedLock| {
            let was = before.0.status.as_ref().unwrap().renew_time.as_ref().unwrap().0;
            is_held(l) && l.status.as_ref().and_then(|s| s.renew_time.as_ref()).is_some_and(|t| t.0 > was)
        };
        let again = wait::until(&locks, "kept", "held by the new operator", renewed).await;
        assert!(token(&again) >= token(&before.0), "the same grant, or a later one");
    })
    .await;
}
