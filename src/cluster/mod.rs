//! Controller of `RedisLockCluster`: keeps the masters, and keeps a crashed one out until it can do no harm.
//!
//! # Layout
//! A reconcile is five steps, a file each, with IO at the ends only:
//! - [`resolve`]: reads what is there, from the API server and from the servers themselves ([`snapshot`]: reduced to what
//!   decisions need)
//! - [`validate`]: what stands in the way of the cluster as it is written
//! - [`decide`]: what to do about each master, and the promises that this keeps; [`roll`]: a changed spec, one master at a time
//! - [`apply`]: carries it out; [`build`] and [`conf`]: the objects and the configuration file as they should be; [`arm`]: the
//!   servers
//! - [`status`]: what is reported
//!
//! Around them:
//! - [`controller`]: what triggers a reconcile, and when the next one is due
//! - [`monitor`]: looks after the servers between reconciles
//! - [`error`]: what can stop a reconcile

pub mod apply;
pub mod arm;
pub mod build;
pub mod conf;
pub mod controller;
pub mod decide;
pub mod error;
#[cfg(test)]
mod fixtures;
pub mod monitor;
pub mod resolve;
pub mod roll;
pub mod snapshot;
pub mod status;
pub mod validate;

pub use controller::run;
