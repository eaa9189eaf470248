//! The engine on real Redis servers, which the tests start on loopback and end by their process.

#![allow(clippy::expect_used, clippy::panic)] // What a test needs and does not get fails it.

mod acquire;
mod cancellation;
mod clocks;
mod connections;
mod dead_waiters;
mod faults;
mod fences;
mod keep;
mod one_identity;
mod queue;
mod reentrant;
mod server_errors;
mod shutdown;
mod tls;
mod tokens;
mod unpolled;
mod waiting;
mod watchdog;
