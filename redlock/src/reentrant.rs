//! Locks that their holder may take again: counted in the process, released with the last hold.
//!
//! The masters know of one grant, and a second hold of the same identity shares it. Counting on the masters instead would
//! count a command twice that is sent twice, and a lock could outlive its dead holder.
//!
//! Tasks that must exclude each other, also those of one process, therefore need identities of their own.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::client::Client;
use crate::error::Error;
use crate::key::LockKey;
use crate::lease::{Lease, LeaseOptions};
use crate::master::Master;
use crate::protocol::release::Released;
use crate::redis_master::RedisMaster;
use crate::wait::{Wait, until};

/// A client with reentrant locks: a holder may acquire its lock again under the same identity. Clones count together.
/// Another `Reentrant`, and the client itself, count apart, and wait for the lock like any other contender.
#[derive(Debug)]
pub struct Reentrant<M: Master = RedisMaster> {
    client: Client<M>,
    entries: Arc<Mutex<HoldEntries>>,
}

/// By lock and identity.
type HoldEntries = HashMap<(LockKey, String), Weak<HoldEntry>>;

/// The grant of one lock to one identity. Locked while it is being acquired: a second hold waits for the first.
type HoldEntry = tokio::sync::Mutex<Weak<SharedLease>>;

#[derive(Debug)]
struct SharedLease {
    lease: Lease,
    /// Keeps the entry for as long as the grant.
    _entry: Arc<HoldEntry>,
}

/// One of the holds of a lock. Dereferences to the [`Lease`] that all of them share. The lock is released when the last
/// hold is released or dropped.
#[derive(Debug)]
pub struct Hold(Arc<SharedLease>);

impl<M: Master> Clone for Reentrant<M> {
    fn clone(&self) -> Self {
        Self { client: self.client.clone(), entries: Arc::clone(&self.entries) }
    }
}

impl<M: Master> Reentrant<M> {
    /// Makes the locks of `client` reentrant, for this value and its clones.
    #[must_use]
    pub fn new(client: Client<M>) -> Self {
        Self { client, entries: Arc::default() }
    }

    /// Takes the lock, or takes it once more if it is held here for the same identity. A further hold shares the first
    /// hold's lease, and with it all options but `min_validity`: with less validity left it fails with
    /// [`Error::TooSlow`].
    pub async fn acquire(&self, key: &LockKey, options: &LeaseOptions, wait: Wait) -> Result<Hold, Error> {
        let entry = self.entry(key, &options.identity);
        let deadline = wait.deadline();
        let Some(mut held) = until(deadline, entry.lock()).await else {
            return Err(Error::Contended { holder: None, remaining: None });
        };
        // A lease that was lost, but is not dropped yet, is no hold.
        if let Some(shared) = held.upgrade().filter(|shared| shared.lease.is_held()) {
            let (left, needed) = (shared.lease.validity(), options.min_validity);
            return if left < needed { Err(Error::TooSlow { left, needed }) } else { Ok(Hold(shared)) };
        }
        let lease = self.client.acquire(key, options, Wait::until(deadline)).await?;
        let shared = Arc::new(SharedLease { lease, _entry: Arc::clone(&entry) });
        *held = Arc::downgrade(&shared);
        Ok(Hold(shared))
    }

    fn entry(&self, key: &LockKey, identity: &str) -> Arc<HoldEntry> {
        let name = (key.clone(), identity.to_owned());
        // The map is only read and added to: a panic cannot leave it half changed.
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get(&name).and_then(Weak::upgrade) {
            return entry;
        }
        entries.retain(|_, entry| entry.strong_count() > 0);
        let entry = Arc::default();
        entries.insert(name, Arc::downgrade(&entry));
        entry
    }
}

impl Deref for Hold {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.0.lease
    }
}

impl Hold {
    /// Ends this hold. The last one releases the lock and returns what the release found; the others return `None`.
    pub async fn release(self) -> Option<Released> {
        let SharedLease { lease, _entry } = Arc::into_inner(self.0)?;
        Some(lease.release().await)
    }
}
