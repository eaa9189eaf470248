//! Redis servers and links to them, for the tests of the engine and of the operator on real servers.

#![allow(clippy::expect_used, clippy::panic)] // What a test needs and does not get fails it.
#![allow(missing_docs, clippy::missing_panics_doc, clippy::must_use_candidate)] // Tests, not a library to publish.

pub mod proxy;
pub mod server;
