//! The engine on real Redis servers, which the tests start on loopback and end by their process.

#![allow(clippy::expect_used, clippy::panic)] // What a test needs and does not get fails it.

mod acquire;
mod cancellation;
mod clocks;
mod connections;
mod endless;
mod faults;
mod keep;
mod losses;
mod queue;
mod reentrant;
mod server_errors;
mod several;
mod shutdown;
mod tls;
mod told;
mod urls;
mod waiting;
mod watchdog;
