//! The engine on real Redis servers, which the tests start on loopback and end by their process.

#![allow(clippy::expect_used, clippy::panic)] // What a test needs and does not get fails it.

mod acquire;
mod cancellation;
mod clocks;
mod connections;
mod faults;
mod keep;
mod losses;
mod queue;
mod reentrant;
mod server_errors;
mod shutdown;
mod tls;
mod waiting;
mod watchdog;
