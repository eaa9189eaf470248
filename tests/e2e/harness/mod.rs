//! What every scenario needs: a namespace of its own, a running operator, and evidence when it fails.
//!
//! # Layout
//! - [`install`]: the chart in the cluster, and the operator's pods
//! - [`machine`]: the machines of the local cluster
//! - [`objects`]: the objects that scenarios create
//! - [`wait`]: waits until an object is as expected
//! - [`forward`]: a stream to a port of a pod
//! - [`redis`]: direct connections to the masters of a cluster
//! - [`probe`]: the owners of a key on each master over time
//! - [`audit`]: what the operator has written to the API server
//! - [`agent`]: sidecars, and a check that never two of them lead

pub mod agent;
pub mod audit;
pub mod forward;
pub mod install;
pub mod machine;
pub mod objects;
pub mod probe;
pub mod redis;
pub mod wait;

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, Config, Resource};
use serde_json::json;
use tokio::process::Command;
use tokio::sync::RwLock;

/// How long a test waits for an event before it fails: long, because it only decides how late a failure is reported.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Label of scenarios' namespaces, by which the leftovers of an interrupted run are found.
pub const LABEL: &str = "redlock.dev/e2e";

/// Scenarios that disturb the operator run alone; all others run beside each other.
static OPERATOR: RwLock<()> = RwLock::const_new(());

/// The environment of a scenario.
pub struct Env {
    /// The API server.
    pub client: Client,
    /// A namespace of the scenario's own, which admits restricted pods only.
    pub namespace: String,
}

impl Env {
    /// Objects of the scenario's namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

/// Runs a scenario in a namespace of its own, with the operator installed and left alone.
pub async fn scenario(name: &str, body: impl AsyncFnOnce(&Env)) {
    install::ready_once().await;
    let _shared = OPERATOR.read().await;
    run(name, body).await;
}

/// Runs a scenario that may disturb the operator. The operator is installed and ready again afterwards.
pub async fn scenario_that_disturbs_the_operator(name: &str, body: impl AsyncFnOnce(&Env)) {
    install::ready_once().await;
    let _alone = OPERATOR.write().await;
    let outcome = AssertUnwindSafe(run(name, body)).catch_unwind().await;
    install::make_ready().await;
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

/// Runs a part of a scenario in another namespace.
pub async fn in_another_namespace(name: &str, body: impl AsyncFnOnce(&Env)) {
    run(name, body).await;
}

async fn run(name: &str, body: impl AsyncFnOnce(&Env)) {
    let client = client().await;
    let namespace = create_namespace(&client, name).await;
    let env = Env { client, namespace };
    let outcome = AssertUnwindSafe(body(&env)).catch_unwind().await;
    if outcome.is_err() {
        eprintln!("{}", evidence(&env.namespace).await);
    }
    if outcome.is_ok() || std::env::var_os("E2E_KEEP").is_none() {
        let all: Api<Namespace> = Api::all(env.client.clone());
        let deleted = all.delete(&env.namespace, &DeleteParams::default()).await;
        // A scenario may have deleted it itself.
        assert!(deleted.is_ok() || deleted.is_err_and(|e| is_not_found(&e)), "delete {}", env.namespace);
    }
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

/// A client of the cluster that `KUBECONFIG` names. Each runtime needs its own: a client's tasks live on it.
pub async fn client() -> Client {
    let mut config = Config::infer().await.expect("KUBECONFIG must name a cluster: run `make e2e`");
    // A pod's answer 503, which the API server forwards, is not to be retried.
    config.default_retry = false;
    Client::try_from(config).expect("a client of the cluster that KUBECONFIG names")
}

async fn create_namespace(client: &Client, scenario: &str) -> String {
    let name = format!("e2e-{scenario}-{:04x}", rand::random::<u16>());
    let object: Namespace = serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {LABEL: "true", "pod-security.kubernetes.io/enforce": "restricted"}},
    }))
    .unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &object).await.expect("create the scenario's namespace");
    name
}

/// What a person reads first after a failure.
async fn evidence(namespace: &str) -> String {
    let operator = format!("deployment/{}", install::RELEASE);
    let mut all = String::new();
    for args in [
        &["-n", namespace, "get", "rlc,dlock", "-o", "yaml"][..],
        &["-n", namespace, "get", "pods,services", "-o", "wide"],
        &["-n", namespace, "get", "events", "--sort-by=.lastTimestamp"],
        &["-n", install::NAMESPACE, "get", "pods", "-o", "wide"],
        &["-n", install::NAMESPACE, "logs", &operator, "--tail=120"],
    ] {
        let printed = kubectl(args).await.unwrap_or_else(|error| error);
        writeln!(all, "\n$ kubectl {}\n{printed}", args.join(" ")).unwrap();
    }
    all
}

/// Whether there is no such object.
pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_not_found())
}

/// How far the clocks of this process, the operator and the API server may be apart.
pub fn clocks_apart() -> Duration {
    if existing_cluster() { Duration::from_secs(2) } else { Duration::ZERO }
}

/// The output of `kubectl`, or its error.
pub async fn kubectl(args: &[&str]) -> Result<String, String> {
    output("kubectl", args).await
}

/// The output of a program, or its error.
pub async fn output(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).output().await.map_err(|e| format!("{program}: {e}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!(
            "{program} {}: {}\n{}{}",
            args.join(" "),
            output.status,
            text(&output.stdout),
            text(&output.stderr)
        ))
    }
}

/// Whether the tests run on a cluster that somebody else runs, perhaps on other machines.
pub fn existing_cluster() -> bool {
    std::env::var("USE_EXISTING_CLUSTER").is_ok_and(|v| !v.is_empty() && v != "0")
}
