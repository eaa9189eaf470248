//! Locks that their holder may take again: counted in the process, released with the last hold.
//!
//! The masters know of one grant, and a second hold of the same identity shares it. Counting on the masters instead would
//! count a command twice that is sent twice, and a lock could outlive its dead holder.
//!
//! Tasks that must exclude each other, also those of one process, therefore need identities of their own.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

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
type HoldEntries = HashMap<HoldName, Weak<HoldEntry>>;

/// A lock and an identity.
type HoldName = (LockKey, String);

/// The grant of one lock to one identity. It exists while there is a grant, or while one is being acquired.
#[derive(Debug)]
struct HoldEntry {
    name: HoldName,
    /// Locked while it is being acquired: a second hold waits for the first.
    held: tokio::sync::Mutex<Weak<SharedLease>>,
    entries: Arc<Mutex<HoldEntries>>,
}

#[derive(Debug)]
struct SharedLease {
    lease: Lease,
    /// Keeps the entry for as long as the grant.
    _entry: Arc<HoldEntry>,
}

/// One of the holds of a lock. Dereferences to the [`Lease`] that all of them share. The lock is released when the last
/// hold is released or dropped.
#[derive(Debug)]
#[must_use = "a hold that is dropped is over: the last one releases the lock at once"]
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
        let Some(mut held) = until(deadline, entry.held.lock()).await else {
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
        let mut entries = lock(&self.entries);
        if let Some(entry) = entries.get(&name).and_then(Weak::upgrade) {
            return entry;
        }
        let (held, all) = (tokio::sync::Mutex::default(), Arc::clone(&self.entries));
        let entry = Arc::new(HoldEntry { name: name.clone(), held, entries: all });
        entries.insert(name, Arc::downgrade(&entry));
        entry
    }
}

fn lock(entries: &Mutex<HoldEntries>) -> MutexGuard<'_, HoldEntries> {
    // Each change is one call on the map: a panic cannot leave it half changed.
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for HoldEntry {
    fn drop(&mut self) {
        let mut entries = lock(&self.entries);
        // Another acquisition may have replaced it meanwhile, and that one lives.
        if entries.get(&self.name).is_some_and(|entry| entry.strong_count() == 0) {
            entries.remove(&self.name);
        }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::redis_master::{Address, Credentials, Endpoint, Marker};

    #[tokio::test]
    async fn an_entry_goes_with_its_last_user_so_that_none_has_to_be_searched_for() {
        // Port 1 is nobody's; nothing is asked of the master here.
        let address = Address::Tcp("127.0.0.1".to_owned(), 1);
        let master = Endpoint { name: "a".to_owned(), address, credentials: Credentials::None, marker: Marker::Unused };
        let client = Client::new([RedisMaster::connect(master)], Duration::from_millis(50)).expect("valid settings");
        let locks = Reentrant::new(client);
        let keys: Vec<_> = (0..9).map(|i| LockKey::new("a", &i.to_string()).expect("a name")).collect();
        let entries: Vec<_> = keys.iter().map(|key| locks.entry(key, "job")).collect();
        let again = locks.entry(&keys[0], "job");
        assert!(Arc::ptr_eq(&again, &entries[0]), "one entry for one lock and identity");
        drop(entries);
        assert_eq!(lock(&locks.entries).len(), 1, "one is in use");
        drop(again);
        assert_eq!(lock(&locks.entries).len(), 0);
    }

    #[tokio::test]
    async fn an_entry_that_was_replaced_leaves_the_next_one() {
        let entries = Arc::<Mutex<HoldEntries>>::default();
        let name = (LockKey::new("a", "b").expect("a name"), "job".to_owned());
        let entry = || {
            let (name, entries) = (name.clone(), Arc::clone(&entries));
            Arc::new(HoldEntry { name, held: tokio::sync::Mutex::default(), entries })
        };
        let (former, next) = (entry(), entry());
        lock(&entries).insert(name.clone(), Arc::downgrade(&next));
        drop(former);
        assert!(lock(&entries).contains_key(&name));
    }
}
