//! A second operator for what one serves already stands by, and says who is there.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt as _};
use redlock_operator::api::{DistributedLock, RedisLockCluster};

use crate::harness::objects::{create_lock, held, is_held, ready_cluster, token};
use crate::harness::{PATIENCE, install, kubectl, output, scenario_that_disturbs_the_operator};

/// Namespace and release of the second operator.
const SECOND: &str = "redlock-second";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_release_stands_by_and_says_who_serves_the_cluster() {
    scenario_that_disturbs_the_operator("two-operators", async |env| {
        ready_cluster(env, 3).await;
        let mut before = Vec::new();
        for n in 0..6 {
            let name = format!("lock-{n}");
            create_lock(env, &name, &name, "job/report", "4s").await;
            before.push(held(env, &name).await);
        }
        let image = install::operator_image();
        let (repository, tag) = image.rsplit_once(':').unwrap();
        let values = format!("image.repository={repository},image.tag={tag},replicas=1,crds.enabled=false");
        let args = ["upgrade", SECOND, install::CHART, "--install", "--namespace", SECOND, "--create-namespace"];
        let more = ["--set", &values, "--wait", "--timeout=120s"];
        output("helm", &[&args[..], &more].concat()).await.unwrap();

        let begin = tokio::time::Instant::now();
        let told = loop {
            let events = [
                "-n",
                &env.namespace,
                "get",
                "events",
                "-o",
                "jsonpath={range .items[*]}{.reason}: {.message}{\"\\n\"}{end}",
            ];
            let events = kubectl(&events).await.unwrap();
            if let Some(line) = events.lines().find(|line| line.starts_with("ServedByAnother: ")) {
                break line.to_owned();
            }
            assert!(begin.elapsed() < PATIENCE, "the second operator says nothing:\n{events}");
            tokio::time::sleep(Duration::from_millis(500)).await;
        };
        assert!(told.contains("redlock-system/redlock-operator") && told.contains("redlock-second/"), "{told}");
        // Longer than several TTLs, in which two operators that both decide take the locks from each other.
        tokio::time::sleep(Duration::from_secs(15)).await;
        let locks: Api<DistributedLock> = env.api();
        for lock in &before {
            let now = locks.get(&lock.name_any()).await.unwrap();
            assert!(is_held(&now), "{:?}", now.status);
            let transitions = |lock: &DistributedLock| lock.status.as_ref().and_then(|status| status.transitions);
            assert_eq!((token(&now), transitions(&now)), (token(lock), transitions(lock)));
        }
        let clusters: Api<RedisLockCluster> = env.api();
        let cluster = clusters.get("main").await.unwrap();
        assert_eq!(cluster.annotations()["redlock.dev/operator"], "redlock-system/redlock-operator");

        output("helm", &["uninstall", SECOND, "--namespace", SECOND, "--no-hooks", "--wait"]).await.unwrap();
        Api::<Namespace>::all(env.client.clone()).delete(SECOND, &DeleteParams::default()).await.unwrap();
    })
    .await;
}
