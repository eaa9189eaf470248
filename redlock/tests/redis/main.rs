//! The engine on real Redis servers, which the tests start on loopback.

#![allow(clippy::expect_used, clippy::panic)] // Without what it needs a test fails.

mod acquire;
mod cancellation;
mod clocks;
mod connections;
mod faults;
mod queue;
mod reentrant;
mod renewal;
mod server_errors;
mod shutdown;
mod tls;
mod waiting;
mod watchdog;
