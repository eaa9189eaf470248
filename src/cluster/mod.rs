//! Controller of `RedisLockCluster`: keeps the masters, and keeps a crashed one out until it can do no harm.
//!
//! # Layout
//! - [`controller`]: what triggers a reconcile, and its steps, a file each: look up (IO) → decide → record (IO) → act (IO) →
//!   status (IO) → when next
//! - [`look_up`]: the objects, and what the servers say of themselves; [`observed`]: that, reduced to what decisions need
//! - [`decide`]: what to do. Pure. [`decide::master`] has **the four invariants**; there a crash time becomes `restartNotBefore`
//! - [`act`]: carries it out
//! - [`status`]: what is reported and recorded; [`events`]: what is worth an Event
//!
//! A deleted cluster takes another way: [`retire`] strips its masters, and [`tombstones`] say what it leaves for one of its name.
//!
//! What the steps stand on:
//! - [`build`]: the objects as they should be
//! - [`server`]: the operator's side of a Redis server: facts, arming, and **the ACL rules** ([`server::acl`])
//! - [`monitor`]: asks the servers between reconciles
//! - [`memory`]: what this process remembers besides the status; [`clock`]: the wall clock

mod act;
mod build;
mod clock;
mod controller;
mod decide;
mod events;
#[cfg(test)]
mod fixtures;
mod look_up;
mod memory;
mod monitor;
mod observed;
mod retire;
mod server;
mod status;
mod tombstones;

pub(crate) use controller::run;
pub(crate) use tombstones::note_unobserved;
