//! The Secret of a cluster.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;

use super::{conf, metadata, resources};
use crate::api::RedisLockCluster;
use crate::contract::credentials::{CONFIG_KEY, ROOT_KEY, RootKey};
use crate::contract::names;

/// The Secret with the root key and the configuration of every master. The caller passes the key of an existing Secret in again:
/// it is never replaced.
pub(crate) fn secret(cluster: &RedisLockCluster, key: &RootKey) -> Secret {
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
