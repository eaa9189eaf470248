//! The sidecar on real Redis servers, which the tests start on loopback and end by their process.

#![allow(clippy::expect_used, clippy::panic)] // What a test needs and does not get fails it.

mod agent;
