//! The objects of a cluster as they should be. No IO.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EmptyDirVolumeSource, KeyToPath, Pod, PodSecurityContext, PodSpec, Probe,
    ResourceRequirements, SeccompProfile, Secret, SecretVolumeSource, SecurityContext, Service, ServicePort,
    ServiceSpec, TCPSocketAction, TopologySpreadConstraint, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Resource, ResourceExt};
use sha2::{Digest, Sha256};

use super::conf;
use crate::api::RedisLockCluster;
use crate::contract::credentials::{CONFIG_KEY, ROOT_KEY, RootKey, hexadecimal};
use crate::contract::names;

/// User and group of the server: those that the images of Redis make for it.
const REDIS_ID: i64 = 999;
/// Name of the container in a master's pod.
pub const CONTAINER: &str = "redis";
/// Name of the container's port.
const PORT: &str = "redis";

/// CPU and memory of a master's container.
#[must_use]
pub fn resources(cluster: &RedisLockCluster) -> ResourceRequirements {
    let amounts = |all: &[(&str, &str)]| {
        Some(all.iter().map(|&(name, amount)| (name.to_owned(), Quantity(amount.to_owned()))).collect())
    };
    cluster.spec.resources.clone().unwrap_or_else(|| ResourceRequirements {
        requests: amounts(&[("cpu", "50m"), ("memory", "64Mi")]),
        limits: amounts(&[("memory", "256Mi")]),
        ..ResourceRequirements::default()
    })
}

/// The Secret with the root key and the configuration of every master. The key of an existing Secret is passed in again: it is
/// never replaced.
#[must_use]
pub fn secret(cluster: &RedisLockCluster, key: &RootKey) -> Secret {
    let conf = conf::redis_conf(&key.operator_password(), conf::max_memory(&resources(cluster)));
    Secret {
        metadata: metadata(cluster, names::auth_secret(&cluster.name_any()), None),
        type_: Some("Opaque".to_owned()),
        data: Some(BTreeMap::from([
            (ROOT_KEY.to_owned(), ByteString(key.to_text().into_bytes())),
            (CONFIG_KEY.to_owned(), ByteString(conf.into_bytes())),
        ])),
        ..Secret::default()
    }
}

/// The Service that gives a master its stable address. It leads to a master that is not ready, too: a probe that fails must not
/// take away a vote that still counts.
#[must_use]
pub fn service(cluster: &RedisLockCluster, master: &str, started_at: &str) -> Service {
    let mut metadata = metadata(cluster, master.to_owned(), Some(master));
    metadata.annotations = Some(BTreeMap::from([(names::STARTED_AT_ANNOTATION.to_owned(), started_at.to_owned())]));
    Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            selector: Some(BTreeMap::from([
                (names::CLUSTER_LABEL.to_owned(), cluster.name_any()),
                (names::MASTER_LABEL.to_owned(), master.to_owned()),
            ])),
            ports: Some(vec![ServicePort {
                name: Some(PORT.to_owned()),
                port: names::REDIS_PORT.into(),
                target_port: Some(IntOrString::String(PORT.to_owned())),
                protocol: Some("TCP".to_owned()),
                ..ServicePort::default()
            }]),
            publish_not_ready_addresses: Some(true),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// The pod of a master. `image` is used where the spec names none.
///
/// It never restarts by itself (`restartPolicy: Never`), and no probe can kill it: only the operator knows when a restarted
/// master may vote again, and a server that waits for that is healthy.
#[must_use]
pub fn pod(cluster: &RedisLockCluster, master: &str, image: &str) -> Pod {
    let spec = pod_spec(cluster, image);
    let mut metadata = metadata(cluster, master.to_owned(), Some(master));
    metadata.annotations = Some(BTreeMap::from([(names::SPEC_HASH_ANNOTATION.to_owned(), hash(&spec, cluster))]));
    Pod { metadata, spec: Some(spec), ..Pod::default() }
}

/// Digest of everything that pods of this cluster are made from.
#[must_use]
pub fn spec_hash(cluster: &RedisLockCluster, image: &str) -> String {
    hash(&pod_spec(cluster, image), cluster)
}

fn hash(spec: &PodSpec, cluster: &RedisLockCluster) -> String {
    let max_memory = conf::max_memory(&resources(cluster));
    // Serializing a PodSpec has no way to fail; were it to, all pods would look alike, and none be replaced.
    let text = serde_json::to_string(spec).unwrap_or_default();
    hexadecimal(&Sha256::digest(format!("{text} maxmemory {max_memory}"))[..8])
}

fn pod_spec(cluster: &RedisLockCluster, image: &str) -> PodSpec {
    PodSpec {
        restart_policy: Some("Never".to_owned()),
        termination_grace_period_seconds: Some(5),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(REDIS_ID),
            run_as_group: Some(REDIS_ID),
            fs_group: Some(REDIS_ID),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), ..SeccompProfile::default() }),
            ..PodSecurityContext::default()
        }),
        topology_spread_constraints: Some(vec![TopologySpreadConstraint {
            max_skew: 1,
            topology_key: "kubernetes.io/hostname".to_owned(),
            // A master that shares a machine is better than none: the spread is a wish.
            when_unsatisfiable: "ScheduleAnyway".to_owned(),
            label_selector: Some(LabelSelector {
                match_labels: Some(BTreeMap::from([(names::CLUSTER_LABEL.to_owned(), cluster.name_any())])),
                ..LabelSelector::default()
            }),
            ..TopologySpreadConstraint::default()
        }]),
        containers: vec![container(cluster, image)],
        volumes: Some(vec![
            Volume {
                name: "config".to_owned(),
                secret: Some(SecretVolumeSource {
                    secret_name: Some(names::auth_secret(&cluster.name_any())),
                    default_mode: Some(0o440),
                    // The root key stays out of the pod.
                    items: Some(vec![KeyToPath {
                        key: CONFIG_KEY.to_owned(),
                        path: CONFIG_KEY.to_owned(),
                        ..KeyToPath::default()
                    }]),
                    ..SecretVolumeSource::default()
                }),
                ..Volume::default()
            },
            Volume { name: "data".to_owned(), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() },
        ]),
        ..PodSpec::default()
    }
}

fn container(cluster: &RedisLockCluster, image: &str) -> Container {
    let mount = |name: &str, path: &str, read_only| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(read_only),
        ..VolumeMount::default()
    };
    Container {
        name: CONTAINER.to_owned(),
        image: Some(cluster.spec.image.clone().unwrap_or_else(|| image.to_owned())),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(vec!["redis-server".to_owned(), format!("/etc/redlock/{CONFIG_KEY}")]),
        ports: Some(vec![ContainerPort {
            name: Some(PORT.to_owned()),
            container_port: names::REDIS_PORT.into(),
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]),
        resources: Some(resources(cluster)),
        readiness_probe: Some(Probe {
            tcp_socket: Some(TCPSocketAction {
                port: IntOrString::String(PORT.to_owned()),
                ..TCPSocketAction::default()
            }),
            period_seconds: Some(5),
            ..Probe::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(vec![mount("config", "/etc/redlock", true), mount("data", "/data", false)]),
        ..Container::default()
    }
}

fn metadata(cluster: &RedisLockCluster, name: String, master: Option<&str>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: cluster.namespace(),
        labels: Some(names::labels(&cluster.name_any(), master)),
        owner_references: Some(vec![OwnerReference {
            api_version: RedisLockCluster::api_version(&()).into_owned(),
            kind: RedisLockCluster::kind(&()).into_owned(),
            name: cluster.name_any(),
            uid: cluster.uid().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
#[path = "build_tests.rs"]
mod tests;
