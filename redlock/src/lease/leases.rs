//! Several locks that are held together.

use std::future::Future;
use std::time::Duration;

use futures::future::{join_all, pending, select_all};

use super::{Lease, LeaseState, run_until};
use crate::error::Loss;
use crate::key::LockKey;
use crate::protocol::release::Released;

/// The leases of [`Client::acquire_all`](crate::Client::acquire_all), in the order of their keys: held only while all of
/// them are. When dropped they are all released, as each [`Lease`] is.
#[derive(Debug)]
#[must_use = "leases that are dropped are released at once: bind them, `let leases = ...`, for as long as the locks are needed"]
pub struct Leases(Vec<Lease>);

impl Leases {
    /// None yet.
    pub(crate) fn none() -> Self {
        Self(Vec::new())
    }

    /// Adds a lease, whose key comes after all others.
    pub(crate) fn push(&mut self, lease: Lease) {
        self.0.push(lease);
    }

    /// Each of them, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.0.iter()
    }

    /// The lease of one lock; `None` for a lock that was not asked for.
    #[must_use]
    pub fn get(&self, key: &LockKey) -> Option<&Lease> {
        self.0.iter().find(|lease| lease.key() == key)
    }

    /// Whether all are valid right now: see [`Lease::is_held`].
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.iter().all(Lease::is_held)
    }

    /// What is left of the shortest validity; zero once one is over.
    #[must_use]
    pub fn validity(&self) -> Duration {
        self.0.iter().map(Lease::validity).min().unwrap_or_default()
    }

    /// Waits until one of them is lost or released, and says which, and how. The others are held until they are released
    /// or dropped. See [`Lease::ended`].
    pub async fn ended(&self) -> (&LockKey, LeaseState) {
        if self.0.is_empty() {
            // While none is taken yet, none can end.
            return pending().await;
        }
        let ends = self.0.iter().map(|lease| Box::pin(async move { (lease.key(), lease.ended().await) }));
        select_all(ends).await.0
    }

    /// Runs `work` for as long as all are held: see [`Lease::run`].
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Loss> {
        run_until(work, async { self.ended().await.1 }, || self.is_held()).await
    }

    /// Releases all of them at once, and returns what each release found: see [`Lease::release`].
    pub async fn release(self) -> Vec<(LockKey, Released)> {
        join_all(self.0.into_iter().map(|lease| async { (lease.key().clone(), lease.release().await) })).await
    }
}
