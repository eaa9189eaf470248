//! The engine on real Redis servers, which the tests start on loopback.

#![allow(clippy::expect_used, clippy::panic)] // Without what it needs a test fails.

mod acquire;
mod cancellation;
mod clocks;
mod connections;
mod dead_waiters;
mod endless;
mod faults;
mod fences;
mod fitness;
mod interruptions;
mod losses;
mod one_identity;
mod one_server_one_vote;
mod pending_releases;
mod queue;
mod reentrant;
mod renewal;
mod scripts;
mod server_errors;
mod several;
mod shutdown;
mod tls;
mod tokens;
mod told;
mod unpolled;
mod urls;
mod waiting;
mod watchdog;
