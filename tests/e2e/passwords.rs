//! No password leaves the two Secrets: not into argv, environment, logs, Events, status or metrics. Passwords are replaced, and a root
//! key is not lost, while locks stay held.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use kube::api::{DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use redlock_operator::api::{DistributedLock, RedisLockCluster};
use serde_json::json;

use crate::harness::objects::{create_lock, example, held, ready_cluster, ready_pods, token};
use crate::harness::redis::{password, root_key};
use crate::harness::{Env, agent, existing_cluster, install, kubectl, scenario, wait};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_password_is_in_argv_environment_logs_events_status_or_metrics() {
    scenario("passwords", async |env| {
        for object in example(env, "20-leader-election.yaml") {
            if object["kind"] == "DistributedLock" {
                let lock: DistributedLock = serde_json::from_value(object).unwrap();
                env.api().create(&PostParams::default(), &lock).await.unwrap();
            } else {
                let pods: Deployment = serde_json::from_value(object).unwrap();
                env.api().create(&PostParams::default(), &pods).await.unwrap();
            }
        }
        ready_cluster(env, 1).await;
        create_lock(env, "report", "report", "job/report", "4s").await;
        held(env, "report").await;
        held(env, "web-leader").await;
        ready_pods(env, "app=web", 3).await;

        let secrets = secrets(env).await;
        assert_eq!(secrets.len(), 3);
        let places = everything_to_read(env).await;
        for (place, text) in &places {
            for (what, secret) in &secrets {
                let encoded = STANDARD.encode(secret);
                assert!(!text.contains(secret.as_str()) && !text.contains(&encoded), "{what} is in {place}");
            }
        }
        if existing_cluster() {
            eprintln!("the processes of a cluster on other machines cannot be read from here");
        } else {
            let processes = processes();
            let servers = processes.iter().filter(|(_, argv, _)| argv.contains("redis-server")).count();
            let sidecars = processes.iter().filter(|(_, argv, _)| argv.contains("--lock=web-leader")).count();
            assert!(servers >= 1 && sidecars >= 3, "{servers} servers and {sidecars} sidecars are checked");
            for (pid, argv, environment) in &processes {
                for (what, secret) in &secrets {
                    assert!(!argv.contains(secret.as_str()), "{what} is in the arguments of process {pid}");
                    assert!(!environment.contains(secret.as_str()), "{what} is in the environment of process {pid}");
                }
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_are_replaced_while_a_lock_stays_held() {
    scenario("rotation", async |env| {
        ready_cluster(env, 3).await;
        create_lock(env, "report", "report", "job/report", "4s").await;
        let before = token(&held(env, "report").await);
        let key = root_key(env, "main").await;
        let patch = Patch::Merge(json!({"spec": {"credentials": {"generation": 2}}}));
        let clusters: Api<RedisLockCluster> = env.api();
        clusters.patch("main", &PatchParams::default(), &patch).await.expect("a higher generation");
        let both = |cluster: &RedisLockCluster| {
            let record = cluster.status.as_ref().and_then(|status| status.credentials.as_ref());
            record.is_some_and(|r| {
                (r.generation, r.previous_generation) == (2, Some(1)) && r.previous_valid_until.is_some()
            })
        };
        wait::until(&clusters, "main", "told of the next passwords", both).await;
        let wanted = client_password(env, &key, 2).await;
        let has_next =
            |secret: &Secret| secret.data.as_ref().is_some_and(|data| data["password"].0 == wanted.as_bytes());
        wait::until(&env.api::<Secret>(), "main-client", "written with the next password", has_next).await;
        assert_eq!(token(&held(env, "report").await), before, "the same grant");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_root_key_is_restored_and_the_lock_stays_held() {
    scenario("lost-key", async |env| {
        ready_cluster(env, 1).await;
        create_lock(env, "report", "report", "job/report", "4s").await;
        let before = token(&held(env, "report").await);
        let key = root_key(env, "main").await;
        env.api::<Secret>().delete("main-auth", &DeleteParams::default()).await.expect("deleted");
        // Any change of the cluster has it reconciled.
        let patch = Patch::Merge(json!({"spec": {"callTimeout": "251ms"}}));
        env.api::<RedisLockCluster>().patch("main", &PatchParams::default(), &patch).await.expect("changed");
        assert_eq!(root_key(env, "main").await, key, "never another key");
        assert_eq!(token(&held(env, "report").await), before, "the same grant");
    })
    .await;
}

/// The password of the clients of the scenario's namespace, of that generation.
async fn client_password(env: &Env, key: &str, generation: i64) -> String {
    let namespaces: Api<Namespace> = Api::all(env.client.clone());
    let uid = namespaces.get(&env.namespace).await.unwrap().uid().unwrap();
    password(key, &format!("client/{uid}/{generation}/1"))
}

/// The root key and the passwords that are derived from it. The clients' password is read from their Secret.
async fn secrets(env: &Env) -> BTreeMap<&'static str, String> {
    let key = root_key(env, "main").await;
    let has_password = |s: &Secret| s.data.as_ref().is_some_and(|d| d.contains_key("password"));
    let client = wait::until(&env.api::<Secret>(), "main-client", "made", has_password).await;
    let client = String::from_utf8(client.data.unwrap()["password"].0.clone()).unwrap();
    assert_eq!(client, client_password(env, &key, 1).await, "derived, not stored");
    BTreeMap::from([
        ("the operator's password", password(&key, "operator")),
        ("the clients' password", client),
        ("the root key", key),
    ])
}

/// All texts of the cluster besides Secrets, each with its place.
async fn everything_to_read(env: &Env) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let kinds = "rlc,dlock,pods,services,configmaps,deployments,replicasets,events.events.k8s.io,leases";
    for namespace in [env.namespace.as_str(), install::NAMESPACE] {
        let yaml = kubectl(&["-n", namespace, "get", kinds, "-o", "yaml", "--show-managed-fields"]).await.unwrap();
        all.push((format!("the objects of {namespace}"), yaml));
        let pods: Api<Pod> = Api::namespaced(env.client.clone(), namespace);
        for pod in pods.list(&ListParams::default()).await.unwrap() {
            let name = pod.name_any();
            let spec = pod.spec.as_ref().unwrap();
            for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
                let of = LogParams { container: Some(container.name.clone()), ..LogParams::default() };
                let log = pods.logs(&name, &of).await.unwrap_or_else(|e| panic!("logs of {name}: {e}"));
                all.push((format!("the log of {name}/{}", container.name), log));
            }
            if spec.containers.iter().any(|c| c.name == "web") {
                let (_, body) = agent::get(&pods, &name, agent::PORT, "/").await.unwrap();
                all.push((format!("the answer of {name}"), body));
            }
        }
    }
    for pod in install::operator_pods().await {
        let pods: Api<Pod> = Api::namespaced(env.client.clone(), install::NAMESPACE);
        let (status, metrics) = agent::get(&pods, &pod.name_any(), 8080, "/metrics").await.unwrap();
        assert!(status == 200 && metrics.contains("redlock_"), "metrics: {status} {metrics}");
        all.push(("the metrics".to_owned(), metrics));
    }
    let logs = all.iter().filter(|(place, text)| place.starts_with("the log of") && !text.is_empty()).count();
    assert!(logs >= 5, "the operator, a master and three sidecars have logs, not {logs}");
    all
}

/// Every process of this machine, also in containers: pid, arguments and environment.
fn processes() -> Vec<(String, String, String)> {
    let read = |pid: &str, file: &str| {
        let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    };
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let pids = entries.filter_map(|e| e.file_name().into_string().ok()).filter(|n| n.parse::<u32>().is_ok());
    pids.map(|pid| (pid.clone(), read(&pid, "cmdline"), read(&pid, "environ"))).collect()
}
