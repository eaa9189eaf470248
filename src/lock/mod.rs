//! Controller of `DistributedLock`, and the keeper of running leases.
//!
//! The keeper has one actor per lock, which talks to the masters; the controller talks to the API server. Neither waits for
//! the other: renewals go on while the API server is away, and reconciles do not wait for a grant.
//!
//! # Layout
//! - [`controller`]: wiring: what triggers a reconcile, and what ends the whole
//! - [`reconcile`]: the driver: look up (IO) → decide → act (IO) → status (IO)
//! - [`decide`]: what is to be done with a lock; [`status`]: what is shown of it. Both pure
//! - [`keeper`]: the actors; [`actor`]: takes and keeps one lock; [`observe`]: watches one that others hold;
//!   [`job`]: what an actor is told; [`state`]: what it knows
//! - [`connections`]: one engine client per cluster
//! - [`client_secret`]: the Secret with which pods reach the masters
//! - [`finalize`]: gives back what a deleted lock holds
//! - [`publisher`]: when status is refreshed, by a [`budget`] of writes; [`notices`]: Events
//! - [`identity`]: in which name a lock is held; [`error`]: why a reconcile failed

pub mod actor;
pub mod budget;
pub mod client_secret;
pub mod connections;
pub mod controller;
pub mod decide;
pub mod error;
pub mod finalize;
pub mod identity;
pub mod job;
pub mod keeper;
pub mod notices;
pub mod observe;
pub mod publisher;
pub mod reconcile;
pub mod state;
pub mod status;

#[cfg(test)]
mod fixtures;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};

pub use controller::run;

pub use crate::api::WatchedLock as Watched;

/// Which lock an actor, an Event or a metric is about.
#[derive(Clone, Debug)]
pub struct Subject {
    /// UID of the object: another lock of the same name is another subject.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// For Events.
    pub reference: ObjectReference,
}

impl Subject {
    /// The lock that this object is.
    #[must_use]
    pub fn of(object: &Watched) -> Self {
        Self {
            uid: object.uid().unwrap_or_default(),
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            reference: object.object_ref(&()),
        }
    }

    /// The lock in the controller's words.
    #[must_use]
    pub fn object(&self) -> ObjectRef<Watched> {
        ObjectRef::new(&self.name).within(&self.namespace)
    }
}
