//! Our engine beside other RedLock libraries on the same locks: redsync (Go), and node-redlock in both its lines.
//!
//! Each contender is a process of its own (ours also a task of the test), takes the same lock on the same five real
//! Redis servers, and reports its sections. `make interop` builds the programs and runs this.

#![allow(clippy::expect_used, clippy::panic)] // What a test needs and does not get fails it.

mod arena;
mod checker;
#[path = "engine/contend.rs"]
mod contend;
mod contention;
mod exclusion;
mod protocol;
