//! The two kinds of `redlock.dev/v1alpha1`: types, validation rules, columns and conditions. No IO.
//!
//! # Layout
//! - [`cluster`]: `RedisLockCluster`, a set of independent Redis masters
//! - [`lock`]: `DistributedLock`, one named lock on such a cluster
//! - [`condition`]: the condition types and reasons of both, and how a list of conditions is updated
//! - [`rules`]: the CEL rules that several fields share
//! - [`selector`]: selectors of labels, as Kubernetes evaluates them
//! - [`crds`]: the two `CustomResourceDefinition`s as they are committed in `crds/`

pub mod cluster;
pub mod condition;
pub mod crds;
pub mod lock;
mod rules;
pub mod selector;

use kube::core::DeserializeGuard;

pub use cluster::{RedisLockCluster, RedisLockClusterSpec, RedisLockClusterStatus};
pub use lock::{DistributedLock, DistributedLockSpec, DistributedLockStatus};

/// A cluster as it is watched. One that cannot be read (the API server has another version's definition) does not hide the
/// others.
pub type WatchedCluster = DeserializeGuard<RedisLockCluster>;
/// A lock as it is watched, likewise.
pub type WatchedLock = DeserializeGuard<DistributedLock>;

/// API group of both kinds.
pub const GROUP: &str = "redlock.dev";
/// The version served and stored.
pub const VERSION: &str = "v1alpha1";
