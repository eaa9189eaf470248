//! Redis servers and links to them, for the tests of the engine and of the operator on real servers.

#![allow(clippy::expect_used, clippy::panic, missing_docs)] // What a test needs and does not get fails it.

pub mod proxy;
pub mod server;
