//! The sidecar on real Redis servers, which the tests start on loopback.

#![allow(clippy::expect_used, clippy::panic)] // Without what it needs a test fails.

mod agent;
mod unread_logs;
