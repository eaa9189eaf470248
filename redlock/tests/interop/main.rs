//! Our engine beside other RedLock libraries on the same locks: redsync (Go), and both versions of node-redlock.
//!
//! Each contender is a process (ours also a task of the test), acquires the same lock on the same five real Redis
//! servers, and reports its sections. `make interop` builds the programs and runs this.

#![allow(clippy::expect_used, clippy::panic)] // Without what it needs a test fails.

mod arena;
mod checker;
#[path = "engine/contend.rs"]
mod contend;
mod contention;
mod exclusion;
mod protocol;
