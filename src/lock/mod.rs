//! Controller of `DistributedLock`, and the keeper of running leases.
//!
//! The keeper has one actor a lock, which talks to the masters. The controller talks to the API server. Neither waits for
//! the other: leases are renewed while the API server is down, and reconciles do not wait for a grant.
//!
//! # Layout
//! - [`controller`]: triggers, and the steps of a reconcile; [`reconciler`]: what reconciles share
//! - The steps: [`look_up`] (IO), [`decide`] (pure), [`act`] (IO), [`status`] (pure, then IO)
//! - [`keeper`]: the actors, which acquire, renew, observe and release locks
//! - [`connections`]: one engine client per cluster, whose calls are [measured](measured_master)
//! - [`client_secret`]: writes the Secret with which pods reach the masters
//! - [`finalize`]: the finalizer; [`cleanup`]: what is left of objects that are gone
//! - [`reach`]: whether this process reaches masters
//! - [`silence`]: how long leases are renewed while the API server says nothing
//! - [`events`]: Events on transitions
//! - [`clock`]: the present moment
//! - [`subject`]: which lock; [`identity`]: the name in which it is held
//!
//! Nothing here is public; the rest of the crate uses only [`run`].

mod act;
mod cleanup;
mod client_secret;
mod clock;
mod connections;
mod controller;
mod decide;
mod events;
mod finalize;
#[cfg(test)]
mod fixtures;
mod identity;
mod keeper;
mod look_up;
mod measured_master;
mod reach;
mod reconciler;
mod silence;
mod status;
mod subject;

pub(crate) use controller::{Stop, run};
