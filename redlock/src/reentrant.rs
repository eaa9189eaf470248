//! Locks that their holder may take again: counted in the process, given back by the last hold.
//!
//! Counting on the masters instead would make a command that is sent twice count twice, and a lock of a holder that has
//! died outlive it. Here the masters know of one grant, and a second hold of the same identity shares it.
//!
//! Whoever shall exclude each other, tasks of one process too, must therefore have identities of their own.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::client::{Client, Wait, until};
use super::error::Error;
use super::key::LockKey;
use super::lease::{Lease, LeaseOptions};
use super::master::Master;
use super::redis_master::RedisMaster;
use super::release::Released;

/// A client whose locks are reentrant: whoever holds one may acquire it again under the same identity. Its clones count
/// together; another `Reentrant`, and the client itself, count apart, and wait for the lock like any other.
#[derive(Debug)]
pub struct Reentrant<N: Master = RedisMaster> {
    client: Client<N>,
    slots: Arc<Mutex<Slots>>,
}

/// By lock and identity.
type Slots = HashMap<(LockKey, String), Weak<Slot>>;

/// The grant of one lock to one identity. Locked while it is being acquired: a second hold waits for the first.
type Slot = tokio::sync::Mutex<Weak<Shared>>;

#[derive(Debug)]
struct Shared {
    lease: Lease,
    /// Keeps the slot for as long as the grant.
    _slot: Arc<Slot>,
}

/// One of the holds of a lock. It is the [`Lease`] that all of them share; the lock is given back when the last is
/// released or dropped.
#[derive(Debug)]
pub struct Hold(Arc<Shared>);

impl<N: Master> Clone for Reentrant<N> {
    fn clone(&self) -> Self {
        Self { client: self.client.clone(), slots: Arc::clone(&self.slots) }
    }
}

impl<N: Master> Reentrant<N> {
    /// Makes the locks of `client` reentrant, for this value and its clones.
    #[must_use]
    pub fn new(client: Client<N>) -> Self {
        Self { client, slots: Arc::default() }
    }

    /// Takes the lock, or takes it once more if it is held here for the same identity. A further hold shares the first
    /// one's lease and with it all options but `min_validity`: with less left it fails with [`Error::TooSlow`].
    pub async fn acquire(&self, key: &LockKey, options: &LeaseOptions, wait: Wait) -> Result<Hold, Error> {
        let slot = self.slot(key, &options.identity);
        let deadline = wait.deadline();
        let Some(mut held) = until(deadline, slot.lock()).await else {
            return Err(Error::Contended { holder: None, remaining: None });
        };
        // A lease that was lost, but is not dropped yet, is no hold.
        if let Some(shared) = held.upgrade().filter(|shared| shared.lease.is_held()) {
            let (left, needed) = (shared.lease.validity(), options.min_validity);
            return if left < needed { Err(Error::TooSlow { left, needed }) } else { Ok(Hold(shared)) };
        }
        let lease = self.client.acquire(key, options, Wait::until(deadline)).await?;
        let shared = Arc::new(Shared { lease, _slot: Arc::clone(&slot) });
        *held = Arc::downgrade(&shared);
        Ok(Hold(shared))
    }

    fn slot(&self, key: &LockKey, identity: &str) -> Arc<Slot> {
        let name = (key.clone(), identity.to_owned());
        // The map is only looked up and added to: a panic cannot leave it half changed.
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(&name).and_then(Weak::upgrade) {
            return slot;
        }
        slots.retain(|_, slot| slot.strong_count() > 0);
        let slot = Arc::default();
        slots.insert(name, Arc::downgrade(&slot));
        slot
    }
}

impl Deref for Hold {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.0.lease
    }
}

impl Hold {
    /// Ends this hold. The last one gives the lock back, and says what came of that; before it there is `None`.
    pub async fn release(self) -> Option<Released> {
        let Shared { lease, _slot } = Arc::into_inner(self.0)?;
        Some(lease.release().await)
    }
}
