//! The pod of a master.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, KeyToPath, ObjectFieldSelector, Pod,
    PodReadinessGate, PodSecurityContext, PodSpec, Probe, SeccompProfile, SecretVolumeSource, SecurityContext,
    TCPSocketAction, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use sha2::{Digest, Sha256};

use super::spread::{Spread, constraint};
use super::{PORT, conf, metadata, resources};
use crate::api::RedisLockCluster;
use crate::cluster::server::IDENTITY_DIRECTIVE;
use crate::contract::credentials::{CONFIG_KEY, hexadecimal};
use crate::contract::names;

/// User and group of the server: those that the Redis images provide for it.
const REDIS_ID: i64 = 999;
/// Environment variable with the uid of the pod.
const UID_VARIABLE: &str = "POD_UID";
/// Name of the container in a master's pod.
pub(crate) const CONTAINER: &str = "redis";

/// The pod of a master. `image` is used where the spec names none.
///
/// The kubelet never restarts its container (`restartPolicy: Never`), and no probe can kill it: only the operator knows when a
/// restarted master may vote again, and a server that waits for that is healthy. Its finalizer keeps the object until the operator has
/// read how the server ended, also where the deletion was forced.
///
/// `spread` is no part of the digest: pods are not replaced because the number of Kubernetes nodes has changed.
pub(crate) fn pod(cluster: &RedisLockCluster, master: &str, image: &str, spread: Spread) -> Pod {
    let mut spec = pod_spec(cluster, image);
    let mut metadata = metadata(cluster, master.to_owned(), Some(master));
    metadata.annotations = Some(BTreeMap::from([
        (names::SPEC_HASH_ANNOTATION.to_owned(), hash(&spec, cluster)),
        (names::RESTART_DELAY_ANNOTATION.to_owned(), cluster.spec.restart_delay().as_secs().to_string()),
        // An autoscaler does not know the kind of the pod's controller, and would keep its Kubernetes node for ever.
        ("cluster-autoscaler.kubernetes.io/safe-to-evict".to_owned(), "true".to_owned()),
    ]));
    metadata.finalizers = Some(vec![names::MASTER_FINALIZER.to_owned()]);
    spec.topology_spread_constraints = Some(vec![constraint(cluster, spread)]);
    Pod { metadata, spec: Some(spec), ..Pod::default() }
}

/// Digest of everything that the pods of this cluster are made from.
pub(crate) fn spec_hash(cluster: &RedisLockCluster, image: &str) -> String {
    hash(&pod_spec(cluster, image), cluster)
}

fn hash(spec: &PodSpec, cluster: &RedisLockCluster) -> String {
    let settings = conf::settings(conf::max_memory(&resources(cluster)));
    // A PodSpec always serializes. If it did not, all pods would have the same hash and none would be replaced.
    let text = serde_json::to_string(spec).unwrap_or_default();
    hexadecimal(&Sha256::digest(format!("{text}\n{settings}"))[..8])
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
        // A pod is ready only while its master votes: that is what the PodDisruptionBudget counts.
        readiness_gates: Some(vec![PodReadinessGate { condition_type: names::ARMED_GATE.to_owned() }]),
        containers: vec![container(cluster, image)],
        volumes: Some(vec![Volume {
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
        }]),
        ..PodSpec::default()
    }
}

fn container(cluster: &RedisLockCluster, image: &str) -> Container {
    let mount = VolumeMount {
        name: "config".to_owned(),
        mount_path: conf::FOLDER.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    };
    Container {
        name: CONTAINER.to_owned(),
        image: Some(cluster.spec.image.clone().unwrap_or_else(|| image.to_owned())),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(vec![
            "redis-server".to_owned(),
            format!("{}/{CONFIG_KEY}", conf::FOLDER),
            // By this the operator knows whose server answers at the address of a pod.
            format!("--{IDENTITY_DIRECTIVE}"),
            format!("$({UID_VARIABLE})"),
        ]),
        env: Some(vec![EnvVar {
            name: UID_VARIABLE.to_owned(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    // Both as the API server stores them.
                    api_version: Some("v1".to_owned()),
                    field_path: "metadata.uid".to_owned(),
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        }]),
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
        volume_mounts: Some(vec![mount]),
        ..Container::default()
    }
}
