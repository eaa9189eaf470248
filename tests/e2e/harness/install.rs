//! The chart in the cluster, and the operator's pods.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::OnceCell;

use super::{LABEL, PATIENCE, client, existing_cluster, kubectl, output, wait};

/// Namespace of the operator.
pub const NAMESPACE: &str = "redlock-system";
/// Name of the Helm release, and of the Deployment.
pub const RELEASE: &str = "redlock-operator";
/// The chart under test.
pub const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/redlock-operator");
/// The Lease of the operator that leads.
const LEASE: &str = "redlock-operator";
/// The operator's pods.
const SELECTOR: &str = "app.kubernetes.io/name=redlock-operator";

static READY: OnceCell<()> = OnceCell::const_new();

/// Image of the operator and the agent.
pub fn operator_image() -> String {
    given("E2E_OPERATOR_IMAGE").unwrap_or_else(|| concat!("redlock-operator:", env!("CARGO_PKG_VERSION")).to_owned())
}

/// Image of the Redis masters; empty for the operator's default.
fn redis_image() -> String {
    // The local cluster cannot pull images; this one is part of it.
    let local = if existing_cluster() { "" } else { "localhost/redis:dev" };
    given("E2E_REDIS_IMAGE").unwrap_or_else(|| local.to_owned())
}

/// The value of a variable of the environment; an empty one is none.
pub fn given(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|value| !value.is_empty())
}

/// Installs the chart, once in this process, and deletes what an interrupted run left.
pub async fn ready_once() {
    READY
        .get_or_init(|| async {
            create_own_namespace().await;
            make_ready().await;
            let namespaces: Api<Namespace> = Api::all(client().await);
            let left = namespaces.list(&ListParams::default().labels(LABEL)).await.expect("list namespaces");
            for namespace in left {
                namespaces.delete(&namespace.name_any(), &DeleteParams::default()).await.expect("delete a namespace");
            }
        })
        .await;
}

/// Installs the chart if it is not installed, runs one operator, and waits until it is ready and leads.
pub async fn make_ready() {
    helm_install().await.unwrap();
    wait_until_one_leads().await;
}

async fn create_own_namespace() {
    let object = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    });
    let namespaces: Api<Namespace> = Api::all(client().await);
    let params = PatchParams::apply("redlock-e2e").force();
    namespaces.patch(NAMESPACE, &params, &Patch::Apply(object)).await.expect("create the operator's namespace");
}

/// `helm upgrade --install` of the chart. It waits until the operator's pod is ready.
pub async fn helm_install() -> Result<String, String> {
    let image = operator_image();
    let (repository, tag) = image.rsplit_once(':').expect("the operator's image needs a tag");
    let values = format!("image.repository={repository},image.tag={tag},redis.image={},replicas=1", redis_image());
    helm(&["upgrade", RELEASE, CHART, "--install", "--set", &values, "--wait", "--timeout=120s"]).await
}

/// Runs `helm` in the operator's namespace.
pub async fn helm(args: &[&str]) -> Result<String, String> {
    output("helm", &[&["--namespace", NAMESPACE], args].concat()).await
}

/// The operator's pods.
pub async fn operator_pods() -> Vec<Pod> {
    let pods: Api<Pod> = Api::namespaced(client().await, NAMESPACE);
    pods.list(&ListParams::default().labels(SELECTOR)).await.expect("list the operator's pods").items
}

/// Waits until the Lease names a pod that exists. Until then the operator only renews held leases.
pub async fn wait_until_one_leads() {
    let leases: Api<Lease> = Api::namespaced(client().await, NAMESPACE);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let uids: Vec<_> = operator_pods().await.iter().filter_map(ResourceExt::uid).collect();
        let leads = move |lease: &Lease| {
            let holder = lease.spec.as_ref().and_then(|s| s.holder_identity.as_deref()).unwrap_or_default();
            uids.iter().any(|uid| holder.contains(uid.as_str()))
        };
        // The pods may be replaced meanwhile: their list is read again from time to time.
        if wait::until_within(Duration::from_secs(5), &leases, LEASE, leads).await.is_ok() {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "no operator leads after {PATIENCE:?}");
    }
}

/// The pod that leads, by the Lease.
pub async fn leader() -> Pod {
    wait_until_one_leads().await;
    let leases: Api<Lease> = Api::namespaced(client().await, NAMESPACE);
    let lease = leases.get(LEASE).await.expect("the Lease");
    let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
    let is_it = |pod: &Pod| pod.uid().is_some_and(|uid| holder.contains(&uid));
    operator_pods().await.into_iter().find(is_it).expect("a pod leads")
}

/// Waits until all of the operator's pods are ready.
pub async fn wait_until_ready() {
    let (deployment, timeout) = (format!("deployment/{RELEASE}"), format!("--timeout={}s", PATIENCE.as_secs()));
    kubectl(&["-n", NAMESPACE, "rollout", "status", &deployment, &timeout]).await.expect("ready operators");
}

/// A replica's metrics.
pub async fn metrics_of(pod: &Pod) -> Result<String, String> {
    kubectl(&["get", "--raw", &format!("/api/v1/namespaces/{NAMESPACE}/pods/{}:8080/proxy/metrics", pod.name_any())])
        .await
}

/// Sets the number of operator pods, and waits until there are as many.
pub async fn scale_operator(replicas: i32) {
    let deployments: Api<Deployment> = Api::namespaced(client().await, NAMESPACE);
    let scale = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    deployments.patch_scale(RELEASE, &PatchParams::default(), &scale).await.expect("scale the operator");
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let pods: Api<Pod> = Api::namespaced(client().await, NAMESPACE);
    if replicas == 0 {
        for pod in operator_pods().await {
            wait::gone(&pods, &pod.name_any()).await;
        }
    }
    while operator_pods().await.len() != usize::try_from(replicas).unwrap() {
        assert!(tokio::time::Instant::now() < deadline, "not {replicas} operator pods after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
