//! Named locks and leader election for Kubernetes: leases on a majority of independent Redis masters (RedLock).
//!
//! Public are the two kinds ([`api`]), the command line ([`cli`]) and the sidecar ([`agent`]). Rust programs that want a lock
//! use the crate `redlock-engine`, which this one is built on.
//!
//! # Layout
//! From the roof down; a module uses those below it only:
//! - [`cli`]: the command line, its exit codes and logs; the wiring of the operator
//! - [`agent`]: the sidecar that elects a leader among pods, straight on the masters
//! - `cluster`: controller of `RedisLockCluster`: provisions the masters, keeps a crashed one out until it can do no harm
//! - `lock`: controller of `DistributedLock`: acquires, renews, observes and releases locks
//! - `operator`: what both controllers stand on: watches, the way to the API server, leadership, Events, metrics, health
//! - `contract`: what two sides must agree on: names, credentials, the Secret for clients
//! - [`api`]: the kinds `RedisLockCluster` and `DistributedLock`
//! - `duration`, `openmetrics`: durations and metrics in their text formats; `log_sink`: where log lines go

// What nobody outside can use is closed, so that dead code shows.
#![warn(unreachable_pub)]
// This crate's documentation is for those who work on it: it is built with its private items.
#![allow(rustdoc::private_intra_doc_links)]

/// Whether masters come back at once, so that two may hold a lock at once: only where the checker of `tests/chaos` is itself tested.
pub const IS_UNSAFE: bool = cfg!(feature = "unsafe-for-chaos");

pub mod agent;
#[allow(unreachable_pub)] // The lint is wrong about types from which kube derives.
pub mod api;
pub mod cli;
mod cluster;
mod contract;
mod duration;
mod lock;
mod log_sink;
mod openmetrics;
mod operator;
