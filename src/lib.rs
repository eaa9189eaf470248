//! Named locks and leader election for Kubernetes: leases on a majority of independent Redis masters (RedLock).
//!
//! # Layout
//! - [`api`]: the kinds `RedisLockCluster` and `DistributedLock`
//! - [`cluster`]: controller of `RedisLockCluster`: keeps the masters, keeps a crashed one out until it can do no harm
//! - `lock`: controller of `DistributedLock`: acquires, keeps, observes and releases locks
//! - [`contract`]: what two sides must agree on
//! - [`operator`]: wiring of both controllers: leadership, health, metrics, events, shutdown
//! - [`agent`]: the sidecar that elects a leader among pods, straight on the masters
//! - [`cli`]: the command line, its exit codes and logs
//! - [`duration`]: durations as Kubernetes writes them

pub mod agent;
pub mod api;
pub mod cli;
pub mod cluster;
pub mod contract;
pub mod duration;
mod lock;
mod openmetrics;
pub mod operator;
