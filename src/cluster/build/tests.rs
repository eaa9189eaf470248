//! The objects that are built from a spec. No field of it is ignored.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::core::Duration;
use proptest::prelude::*;

use super::*;
use crate::api::cluster::{AllowedNamespaces, ClientScripts, NamespacesFrom};
use crate::cluster::fixtures;
use crate::contract::credentials::{CONFIG_KEY, ROOT_KEY, RootKey};

const IMAGE: &str = "redis:7.4-alpine";

/// The pod where masters must be spread.
fn pod(cluster: &RedisLockCluster, master: &str, image: &str) -> Pod {
    super::pod(cluster, master, image, Spread::Required)
}

fn made(cluster: &RedisLockCluster) -> String {
    let key = RootKey::from_secret(&fixed_secret()).unwrap();
    let objects = (secret(cluster, &key), service(cluster, "votes-0", "then"), pod(cluster, "votes-0", IMAGE));
    serde_json::to_string(&(objects, names::masters(cluster), cluster.spec.max_ttl(), cluster.spec.restart_delay()))
        .unwrap()
}

fn fixed_secret() -> Secret {
    let key = ByteString(b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA".to_vec());
    Secret { data: Some(BTreeMap::from([(ROOT_KEY.to_owned(), key)])), ..Secret::default() }
}

#[test]
fn no_field_of_the_spec_is_ignored() {
    let plain = fixtures::cluster(3);
    let before = made(&plain);
    assert_eq!(made(&plain), before, "building is deterministic");
    // Destructured by name, so that a new field does not compile until it is here.
    let crate::api::RedisLockClusterSpec {
        masters,
        image,
        max_ttl,
        restart_delay,
        call_timeout,
        allowed_namespaces,
        scripts,
        resources,
        credentials,
    } = plain.spec.clone();
    let changed = |change: &dyn Fn(&mut RedisLockCluster)| {
        let mut cluster = plain.clone();
        change(&mut cluster);
        cluster
    };
    let minutes = |n: u64| Some(Duration::from(std::time::Duration::from_secs(60 * n)));
    assert_ne!(made(&changed(&|c| c.spec.masters = masters + 2)), before);
    assert_eq!(image, None);
    assert_ne!(made(&changed(&|c| c.spec.image = Some("valkey:8".to_owned()))), before);
    assert_eq!(max_ttl, None);
    assert_ne!(made(&changed(&|c| c.spec.max_ttl = minutes(2))), before);
    assert_eq!(restart_delay, None);
    assert_ne!(made(&changed(&|c| c.spec.restart_delay = minutes(3))), before);
    assert_eq!(resources, None);
    let limits = BTreeMap::from([("memory".to_owned(), Quantity("1Gi".to_owned()))]);
    let more = ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() };
    assert_ne!(made(&changed(&|c| c.spec.resources = Some(more.clone()))), before);
    // These are about clients. No object of the cluster depends on them.
    assert_eq!(credentials, None);
    assert_eq!(call_timeout, None);
    assert_eq!(allowed_namespaces, None);
    assert_eq!((scripts, plain.spec.scripts()), (None, ClientScripts::Any));
    assert_eq!(changed(&|c| c.spec.scripts = Some(ClientScripts::Builtin)).spec.scripts(), ClientScripts::Builtin);
    let all = AllowedNamespaces { from: NamespacesFrom::All, selector: None };
    let open = changed(&|c| c.spec.allowed_namespaces = Some(all.clone()));
    assert!(open.spec.admits("keys", "billing", &BTreeMap::new()));
    assert!(!plain.spec.admits("keys", "billing", &BTreeMap::new()));
}

#[test]
fn a_change_that_pods_must_follow_changes_their_hash() {
    let plain = fixtures::cluster(3);
    let hash = spec_hash(&plain, IMAGE);
    assert_eq!(pod(&plain, "votes-0", IMAGE).annotations()[names::SPEC_HASH_ANNOTATION], hash);
    assert_eq!(pod(&plain, "votes-1", IMAGE).annotations()[names::SPEC_HASH_ANNOTATION], hash);
    assert_ne!(spec_hash(&plain, "redis:8"), hash);
    let mut longer = plain.clone();
    longer.spec.max_ttl = Some(Duration::from(std::time::Duration::from_secs(600)));
    assert_eq!(spec_hash(&longer, IMAGE), hash, "a longer lease needs no restart");
    let mut named = plain;
    named.spec.image = Some(IMAGE.to_owned());
    assert_eq!(spec_hash(&named, "redis:8"), hash, "the image that is in use already");
}

#[test]
fn pods_are_spread_over_machines_that_take_pods_and_a_changed_number_of_machines_replaces_none() {
    let cluster = fixtures::cluster(3);
    let spread = |spread| {
        let pod = super::pod(&cluster, "votes-0", IMAGE, spread);
        assert_eq!(pod.annotations()[names::SPEC_HASH_ANNOTATION], spec_hash(&cluster, IMAGE));
        let labels = pod.metadata.labels.unwrap();
        let constraints = pod.spec.unwrap().topology_spread_constraints.unwrap();
        let selector = constraints[0].label_selector.clone().unwrap().match_labels.unwrap();
        assert!(selector.iter().all(|(key, value)| labels.get(key) == Some(value)), "{selector:?}");
        serde_json::to_value(&constraints).unwrap()
    };
    let [required, preferred] = [Spread::Required, Spread::Preferred].map(spread);
    assert_eq!(required[0]["topologyKey"], "kubernetes.io/hostname");
    assert_eq!((&required[0]["maxSkew"], &required[0]["whenUnsatisfiable"]), (&1.into(), &"DoNotSchedule".into()));
    assert_eq!(
        (&required[0]["nodeTaintsPolicy"], &required[0]["nodeAffinityPolicy"]),
        (&"Honor".into(), &"Honor".into())
    );
    assert_eq!(preferred[0]["whenUnsatisfiable"], "ScheduleAnyway");
}

#[test]
fn a_pod_meets_the_restricted_security_standard() {
    let pod = serde_json::to_value(pod(&fixtures::cluster(3), "votes-0", IMAGE)).unwrap();
    let spec = &pod["spec"];
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    for container in spec["containers"].as_array().unwrap() {
        assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
        assert_eq!(container["securityContext"]["capabilities"], serde_json::json!({"drop": ["ALL"]}));
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    }
    for volume in spec["volumes"].as_array().unwrap() {
        assert!(volume.get("secret").is_some(), "{volume}");
    }
    assert_eq!(spec["automountServiceAccountToken"], false);
}

/// As kubectl and the autoscaler decide: no local storage, a controller, and a word for a controller of an unknown kind.
#[test]
fn a_pod_can_be_drained_without_any_flag_and_removed_by_an_autoscaler() {
    let pod = pod(&fixtures::cluster(3), "votes-0", IMAGE);
    let volumes = &pod.spec.as_ref().unwrap().volumes;
    assert!(volumes.iter().flatten().all(|volume| volume.empty_dir.is_none() && volume.host_path.is_none()));
    assert!(pod.owner_references().iter().any(|owner| owner.controller == Some(true)));
    assert_eq!(pod.annotations()["cluster-autoscaler.kubernetes.io/safe-to-evict"], "true");
}

#[test]
fn nothing_but_the_operator_restarts_a_server() {
    let pod = pod(&fixtures::cluster(3), "votes-0", IMAGE);
    let spec = pod.spec.unwrap();
    assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
    let container = &spec.containers[0];
    assert_eq!((&container.liveness_probe, &container.startup_probe), (&None, &None), "a failed one would kill it");
}

#[test]
fn no_secret_is_in_a_pod_but_by_the_file_that_the_server_reads() {
    let cluster = fixtures::cluster(3);
    let pod = pod(&cluster, "votes-0", IMAGE);
    let spec = pod.spec.as_ref().unwrap();
    let items = spec.volumes.iter().flatten().filter_map(|v| v.secret.as_ref()).flat_map(|s| s.items.iter().flatten());
    assert_eq!(items.map(|item| item.key.as_str()).collect::<Vec<_>>(), [CONFIG_KEY]);
    let environment = spec.containers[0].env.iter().flatten().map(|variable| variable.name.as_str());
    assert_eq!((environment.collect::<Vec<_>>(), &spec.containers[0].env_from), (vec!["POD_UID"], &None));
    let command = ["redis-server", "/etc/redlock/redis.conf", "--syslog-ident", "$(POD_UID)"];
    assert_eq!(spec.containers[0].command.as_ref().unwrap(), &command);
}

#[test]
fn a_service_leads_to_its_master_even_while_that_is_not_ready() {
    let cluster = fixtures::cluster(3);
    let spec = service(&cluster, "votes-1", "then").spec.unwrap();
    let labels = pod(&cluster, "votes-1", IMAGE).metadata.labels.unwrap();
    assert!(spec.selector.unwrap().iter().all(|(key, value)| labels.get(key) == Some(value)));
    assert_eq!(spec.publish_not_ready_addresses, Some(true));
}

#[test]
fn everything_belongs_to_the_cluster() {
    let cluster = fixtures::cluster(3);
    let owned = |meta: ObjectMeta| {
        let owner = &meta.owner_references.unwrap()[0];
        assert_eq!((owner.controller, Some(&owner.uid)), (Some(true), cluster.metadata.uid.as_ref()));
        assert_eq!(meta.namespace, cluster.metadata.namespace);
        assert_eq!(meta.labels.unwrap()[names::CLUSTER_LABEL], "votes");
    };
    owned(pod(&cluster, "votes-0", IMAGE).metadata);
    owned(service(&cluster, "votes-0", "then").metadata);
    owned(secret(&cluster, &RootKey::generate()).metadata);
}

proptest! {
    #[test]
    fn building_never_panics(
        masters in any::<i32>().prop_map(|n| n % 1_000),
        image in proptest::option::of(".{0,40}"),
        memory in ".{0,12}",
        seconds in any::<u64>(),
    ) {
        let mut cluster = fixtures::cluster(masters);
        cluster.spec.image = image;
        cluster.spec.max_ttl = Some(Duration::from(std::time::Duration::from_secs(seconds)));
        let limits = BTreeMap::from([("memory".to_owned(), Quantity(memory))]);
        cluster.spec.resources = Some(ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() });
        let _ = (pod(&cluster, "votes-0", IMAGE), secret(&cluster, &RootKey::generate()), names::masters(&cluster));
    }
}
