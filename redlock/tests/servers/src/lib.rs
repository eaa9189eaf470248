//! Redis servers and links to them, for tests of the engine and of the operator on real servers.

#![allow(clippy::expect_used, clippy::panic)] // Without what it needs a test fails.
#![allow(missing_docs, clippy::missing_panics_doc, clippy::must_use_candidate)] // Tests, not a library to publish.

pub mod environment;
pub mod faketime;
pub mod proxy;
pub mod server;
pub mod stamp;
