//! What two sides must agree on, written once: the operator with its clients, one controller with the other, and this
//! version with the one before.
//!
//! # Layout
//! - [`names`]: what the objects, labels, annotations and users of a cluster are called
//! - [`credentials`]: the root key of a cluster, and the passwords that follow from it
//! - [`client_secret`]: the Secret that the operator writes and clients read
//!
//! The patterns of Redis keys are the engine's: [`redlock_engine::key`]; so are the rights of a client on a master:
//! [`redlock_engine::permissions`].

pub(crate) mod client_secret;
pub(crate) mod credentials;
pub(crate) mod names;
