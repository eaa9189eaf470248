//! Objects that tests of locks share.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{DeserializeGuard, PartialObjectMetaExt as _};

use crate::api::cluster::{AllowedNamespaces, NamespacesFrom};
use crate::api::lock::{ClusterRef, LockPhase, ObserveSpec};
use crate::api::{
    DistributedLock, DistributedLockSpec, DistributedLockStatus, RedisLockCluster, RedisLockClusterSpec,
    WatchedCluster, WatchedLock,
};
use crate::contract::names::OPERATOR_ANNOTATION;
use crate::operator::watch::WatchedNamespace;

/// UID of [`lock`].
pub(crate) const UID: &str = "0b6c1c9e-5d0e-4a53-9f0c-3d9a1a2b3c4d";
/// UID of [`cluster`].
pub(crate) const CLUSTER_UID: &str = "7a1d5f1e-1111-4222-8333-444455556666";

/// A lock of the namespace `billing` on the cluster `locks/quintet`, held for `job/night`.
pub(crate) fn lock() -> DistributedLock {
    let spec = DistributedLockSpec {
        cluster_ref: ClusterRef { name: "quintet".to_owned(), namespace: Some("locks".to_owned()) },
        key: None,
        holder: Some("job/night".to_owned()),
        observe: None,
        lease: None,
        priority: None,
        on_lost: None,
    };
    let metadata = ObjectMeta {
        name: Some("nightly".to_owned()),
        namespace: Some("billing".to_owned()),
        uid: Some(UID.to_owned()),
        resource_version: Some("100".to_owned()),
        generation: Some(1),
        ..ObjectMeta::default()
    };
    DistributedLock { metadata, spec, status: None }
}

/// `lock` as it is watched.
pub(crate) fn watched(lock: DistributedLock) -> WatchedLock {
    DeserializeGuard(Ok(lock))
}

/// `cluster` as it is watched.
pub(crate) fn watched_cluster(cluster: RedisLockCluster) -> WatchedCluster {
    DeserializeGuard(Ok(cluster))
}

/// The namespace of [`lock`], as it is watched.
pub(crate) fn namespace() -> WatchedNamespace {
    let metadata = ObjectMeta {
        name: Some("billing".to_owned()),
        uid: Some("uid of billing".to_owned()),
        ..ObjectMeta::default()
    };
    metadata.into_response_partial()
}

/// A lock that pods hold.
pub(crate) fn observed_lock() -> DistributedLock {
    let mut lock = lock();
    (lock.spec.holder, lock.spec.observe) = (None, Some(ObserveSpec {}));
    lock
}

/// A cluster of five masters that admits every namespace.
pub(crate) fn cluster() -> RedisLockCluster {
    let spec = RedisLockClusterSpec {
        masters: 5,
        image: None,
        max_ttl: None,
        restart_delay: None,
        call_timeout: None,
        scripts: None,
        allowed_namespaces: Some(AllowedNamespaces { from: NamespacesFrom::All, selector: None }),
        resources: None,
        credentials: None,
    };
    let metadata = ObjectMeta {
        name: Some("quintet".to_owned()),
        namespace: Some("locks".to_owned()),
        uid: Some(CLUSTER_UID.to_owned()),
        annotations: Some([(OPERATOR_ANNOTATION.to_owned(), "redlock-system/redlock-operator".to_owned())].into()),
        ..ObjectMeta::default()
    };
    RedisLockCluster { metadata, spec, status: None }
}

/// The status that an earlier process wrote about a grant to [`lock`].
pub(crate) fn held_status(token: i64) -> DistributedLockStatus {
    DistributedLockStatus {
        phase: Some(LockPhase::Held),
        holder: Some("job/night".to_owned()),
        fencing_token: Some(token),
        owner: Some(format!("job/night/{UID}@{token}.0000000000000001")),
        transitions: Some(1),
        observed_generation: Some(1),
        ..DistributedLockStatus::default()
    }
}

/// A reference to [`lock`].
pub(crate) fn reference() -> ObjectReference {
    ObjectReference {
        name: Some("nightly".to_owned()),
        namespace: Some("billing".to_owned()),
        uid: Some(UID.to_owned()),
        ..ObjectReference::default()
    }
}
