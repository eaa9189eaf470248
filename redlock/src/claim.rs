//! A claim: which lock is asked for, renewed or released, by which owner, and for how long.

use std::time::Duration;

use crate::key::LockKey;
use crate::owner::Owner;

/// A claim to a lock: the lock, its owner and the TTL. It is asked for, renewed and released as a whole.
#[derive(Debug)]
pub struct Claim {
    key: LockKey,
    owner: Owner,
    value: String,
    ttl: Duration,
}

impl Claim {
    /// The claim of `owner` to the lock `key` for `ttl`.
    #[must_use]
    pub fn new(key: LockKey, owner: Owner, ttl: Duration) -> Self {
        let value = owner.to_string();
        Self { key, owner, value, ttl }
    }

    /// The lock.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// The owner.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The owner as text: the value of the key on a master.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }

    /// TTL of the key on each master.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.ttl
    }
}
