//! The chart and the image.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::harness::install::{self, CHART};
use crate::harness::{existing_cluster, kubectl, output};

/// The chart's objects with these values, or helm's error.
async fn render(values: &[&str]) -> Result<Vec<Value>, String> {
    // A helm of another build assumes a cluster that is older than any that the chart supports.
    let fixed = ["template", "redlock-operator", CHART, "--namespace", "elsewhere", "--kube-version", "1.33.0"];
    let values = values.iter().flat_map(|value| ["--set", value]);
    let text = output("helm", &fixed.into_iter().chain(values).collect::<Vec<_>>()).await?;
    let documents = serde_yaml::Deserializer::from_str(&text).map(|d| Value::deserialize(d).expect("YAML of helm"));
    Ok(documents.filter(|d| !d.is_null()).collect())
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|o| o["kind"] == kind).collect()
}

fn operator(objects: &[Value]) -> &Value {
    &of_kind(objects, "Deployment")[0]["spec"]["template"]["spec"]
}

fn strings(value: &Value) -> BTreeSet<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

#[tokio::test]
async fn a_mistyped_value_is_refused_and_named() {
    for (value, named) in [
        ("replicaCout=2", "replicaCout"),
        ("image.tagg=1", "tagg"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("imagePullSecrets[0]=regcred", "imagePullSecrets"),
        ("redis.imge=x", "imge"),
        ("crds.enable=false", "enable"),
        ("serviceAccount.nam=x", "nam"),
        ("rbac.creat=false", "creat"),
        ("cleanup.enable=false", "enable"),
        ("cleanup.activeDeadlineSeconds=null", "activeDeadlineSeconds"),
        ("log.levle=debug", "levle"),
        ("log.format=xml", "format"),
        ("replicas=two", "replicas"),
        ("resources.limit.memory=1Gi", "limit"),
        ("tolerations[0].efect=NoSchedule", "efect"),
        ("affinity.podAntiAfinity=x", "podAntiAfinity"),
        ("podAnnotation.x=y", "podAnnotation"),
        ("podDisruptionBudget.enable=false", "enable"),
        ("renewWithoutApiServer=10", "renewWithoutApiServer"),
    ] {
        let refused = render(&[value]).await.expect_err(value);
        assert!(refused.contains("schema") && refused.contains(named), "{value}: {refused}");
    }
}

#[tokio::test]
async fn two_replicas_are_spread_over_machines_and_drains_leave_one() {
    let objects = render(&[]).await.unwrap();
    assert_eq!(of_kind(&objects, "Deployment")[0]["spec"]["replicas"], 2);
    let spread = &operator(&objects)["topologySpreadConstraints"][0];
    assert_eq!((&spread["topologyKey"], &spread["maxSkew"]), (&json!("kubernetes.io/hostname"), &json!(1)));
    assert_eq!(spread["whenUnsatisfiable"], "ScheduleAnyway", "two on one machine are better than one");
    let selector = &of_kind(&objects, "Deployment")[0]["spec"]["selector"];
    assert_eq!(&spread["labelSelector"], selector);
    let budget = &of_kind(&objects, "PodDisruptionBudget")[0]["spec"];
    assert_eq!((&budget["maxUnavailable"], &budget["selector"]), (&json!(1), selector));
    assert_eq!(budget["unhealthyPodEvictionPolicy"], "AlwaysAllow");
    assert!(strings(&operator(&objects)["containers"][0]["args"]).contains("--renew-without-api-server=10m"));

    let own = "topologySpreadConstraints[0].topologyKey=rack";
    let scope = "watchNamespaces={billing,locks}";
    let objects =
        render(&[own, "podDisruptionBudget.enabled=false", "renewWithoutApiServer=1h30m", scope]).await.unwrap();
    assert!(strings(&operator(&objects)["containers"][0]["args"]).contains("--watch-namespaces=billing,locks"));
    assert_eq!(operator(&objects)["topologySpreadConstraints"], json!([{"topologyKey": "rack"}]));
    assert!(of_kind(&objects, "PodDisruptionBudget").is_empty());
    assert!(strings(&operator(&objects)["containers"][0]["args"]).contains("--renew-without-api-server=1h30m"));
    let objects = render(&["replicas=1"]).await.unwrap();
    assert!(of_kind(&objects, "PodDisruptionBudget").is_empty(), "it would block every drain");
}

#[tokio::test]
async fn no_image_is_built_with_the_feature_that_makes_masters_unsafe() {
    let read = |file: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        std::fs::read_to_string(path).expect(file)
    };
    for file in ["Dockerfile", "hack/image.sh", "hack/demo.sh", "Cargo.toml"] {
        let text = read(file);
        assert!(!text.contains("--features") && !text.contains("--all-features"), "{file}");
        assert!(!text.contains("default = [\"unsafe"), "{file}");
    }
    const { assert!(!redlock_operator::IS_UNSAFE, "these tests are without it too") };
    if existing_cluster() {
        return;
    }
    // What runs in the pods says so itself.
    install::ready_once().await;
    let version =
        kubectl(&["-n", install::NAMESPACE, "exec", "deploy/redlock-operator", "--", "/redlock", "--version"]).await;
    assert_eq!(version.unwrap().trim(), concat!("redlock ", env!("CARGO_PKG_VERSION")));
}

#[tokio::test]
async fn permissions_are_listed_one_by_one_and_secrets_are_neither_listed_nor_watched() {
    let objects = render(&[]).await.unwrap();
    let roles: Vec<_> = of_kind(&objects, "ClusterRole").into_iter().chain(of_kind(&objects, "Role")).collect();
    assert_eq!(roles.len(), 4, "of the operator, and of the hook after its uninstallation");
    for rule in roles.iter().flat_map(|role| role["rules"].as_array().unwrap()) {
        let all = ["apiGroups", "resources", "verbs"].map(|part| strings(&rule[part]));
        assert!(all.iter().all(|part| !part.is_empty() && !part.contains("*")), "{rule}");
        let [_, resources, verbs] = all;
        if resources.contains("secrets") {
            assert_eq!(verbs, BTreeSet::from(["get", "create", "patch", "delete"]), "{rule}");
        }
        for escalation in ["escalate", "bind", "impersonate", "deletecollection"] {
            assert!(!verbs.contains(escalation), "{rule}");
        }
    }
    for binding in of_kind(&objects, "ClusterRoleBinding").into_iter().chain(of_kind(&objects, "RoleBinding")) {
        assert_eq!(binding["subjects"][0]["namespace"], "elsewhere", "the release's namespace");
    }
}

#[tokio::test]
async fn the_operator_runs_restricted_on_the_image_of_this_version() {
    let objects = render(&[]).await.unwrap();
    let pod = operator(&objects);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let containers = pod["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1);
    let restricted = json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
    });
    assert_eq!(containers[0]["securityContext"], restricted);
    assert_eq!(containers[0]["image"], concat!("redlock-operator:", env!("CARGO_PKG_VERSION")));
    assert_eq!(containers[0]["imagePullPolicy"], "IfNotPresent");
    let probes = ["livenessProbe", "readinessProbe"].map(|p| containers[0][p]["httpGet"]["path"].clone());
    assert_eq!(probes, ["/livez", "/readyz"]);
}

#[tokio::test]
async fn the_hook_after_the_uninstallation_ends_in_time_runs_restricted_and_brings_what_it_needs() {
    let objects = render(&["podLabels.team=x", "nodeSelector.disk=ssd"]).await.unwrap();
    let job = of_kind(&objects, "Job")[0];
    assert_eq!(job["metadata"]["namespace"], "elsewhere");
    assert!(job["spec"]["activeDeadlineSeconds"].as_i64().unwrap() < 300, "Helm waits five minutes");
    assert_eq!(job["spec"]["backoffLimit"], 1);
    let pod = &job["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["args"], json!(["cleanup", "--log-format=json", "--log-level=info"]));
    let operator = operator(&objects);
    assert_eq!(container["securityContext"], operator["containers"][0]["securityContext"]);
    for same in ["securityContext", "nodeSelector"] {
        assert_eq!(pod[same], operator[same], "{same}");
    }
    let labels = &job["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels["team"], "x");
    assert_ne!(labels["app.kubernetes.io/name"], "redlock-operator", "it is no pod of the operator's");

    let is_hook = |object: &&Value| !object["metadata"]["annotations"]["helm.sh/hook"].is_null();
    let hooks: Vec<_> = objects.iter().filter(is_hook).collect();
    let weight = |object: &Value| -> i64 {
        object["metadata"]["annotations"]["helm.sh/hook-weight"].as_str().unwrap().parse().unwrap()
    };
    let needed = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];
    for kind in needed {
        let hook = hooks.iter().find(|hook| hook["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"));
        let annotations = &hook["metadata"]["annotations"];
        assert_eq!(annotations["helm.sh/hook"], "post-delete", "the operator's own is gone by then: {kind}");
        assert_eq!(
            annotations["helm.sh/hook-delete-policy"], "before-hook-creation,hook-succeeded,hook-failed",
            "{kind}"
        );
        assert!(weight(hook) < weight(job), "{kind}");
    }
    assert_eq!(hooks.len(), needed.len() + 1);
    let may: BTreeSet<_> = hooks
        .iter()
        .flat_map(|hook| hook["rules"].as_array().into_iter().flatten())
        .flat_map(|rule| strings(&rule["verbs"]))
        .collect();
    assert_eq!(may, BTreeSet::from(["get", "list", "patch", "update"]), "it creates and deletes nothing");
}

#[tokio::test]
async fn the_hook_can_be_left_out_or_get_a_service_account_and_is_none_without_permissions() {
    for without in ["cleanup.enabled=false", "rbac.create=false"] {
        let objects = render(&[without]).await.unwrap();
        assert!(of_kind(&objects, "Job").is_empty(), "{without}");
        assert!(of_kind(&objects, "ServiceAccount").len() == 1, "{without}: the operator's");
    }
    let objects = render(&["rbac.create=false", "cleanup.serviceAccount=mine"]).await.unwrap();
    assert_eq!(of_kind(&objects, "Job")[0]["spec"]["template"]["spec"]["serviceAccountName"], "mine");
    assert!(of_kind(&objects, "ClusterRole").is_empty());
}

#[tokio::test]
async fn values_reach_their_objects() {
    let values = ["redis.image=registry.test/redis:8", "log.level=debug", "log.format=text", "image.repository=a/b"];
    let more = ["image.tag=c", "replicas=2", "priorityClassName=high", "nodeSelector.disk=ssd", "podLabels.team=x"];
    let objects = render(&[&values[..], &more].concat()).await.unwrap();
    let pod = operator(&objects);
    let container = &pod["containers"][0];
    let (silence, image) = ("--renew-without-api-server=10m", "--redis-image=registry.test/redis:8");
    let args = ["operator", "--log-format=text", "--log-level=debug", silence, "--status-refreshes=10", image];
    assert_eq!(container["args"], json!(args));
    assert_eq!(container["image"], "a/b:c");
    assert_eq!((&pod["priorityClassName"], &pod["nodeSelector"]), (&json!("high"), &json!({"disk": "ssd"})));
    let deployment = &of_kind(&objects, "Deployment")[0]["spec"];
    assert_eq!(deployment["replicas"], 2);
    assert_eq!(deployment["template"]["metadata"]["labels"]["team"], "x");
    assert_eq!(deployment["selector"]["matchLabels"].as_object().unwrap().len(), 2, "never changed by values");
    let plain = render(&[]).await.unwrap();
    assert_eq!(operator(&plain)["containers"][0]["args"].as_array().unwrap().len(), 5, "no --redis-image by default");
}

#[tokio::test]
async fn the_crds_are_kept_at_uninstall_and_can_be_left_out() {
    let objects = render(&[]).await.unwrap();
    let crds = of_kind(&objects, "CustomResourceDefinition");
    let names: BTreeSet<_> = crds.iter().filter_map(|c| c["metadata"]["name"].as_str()).collect();
    assert_eq!(names, BTreeSet::from(["distributedlocks.redlock.dev", "redislockclusters.redlock.dev"]));
    for crd in crds {
        assert_eq!(crd["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    }
    let without = render(&["crds.enabled=false"]).await.unwrap();
    assert!(of_kind(&without, "CustomResourceDefinition").is_empty());
}
