//! Names of locks, and their keys on a master.

use std::fmt;
use std::sync::Arc;

use crate::fence::Token;

/// A lock's name: a namespace and a name within it.
///
/// On a master the key `redlock:<namespace>/<name>` holds the [owner](crate::owner), `<identity>@<token>.<nonce>`, and channels with that prefix carry messages about
/// releases. The sorted set `redlock:<namespace>#fences` holds the last fencing token of each lock of the namespace. The
/// sorted set `redlock:<namespace>#queue/<name>` is the queue of this lock, and `redlock:<namespace>#queue/<name> entered`
/// says when each place was entered last. `redlock:<namespace>#queue/ kept` says until when each fence is kept. A
/// namespace has neither `/` nor `#`, and a name no white space, so the key of a lock is never that of another lock, nor a
/// set of any namespace.
///
/// Cheap to clone: its names on a master are made once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockKey(Arc<Names>);

#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Names {
    key: String,
    fences: String,
    queue: String,
    entered: String,
    kept: String,
    namespace_end: usize,
}

/// A name that is not permitted for a lock.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidKey {
    /// The namespace is empty, too long, or has a character other than letters, digits, `.`, `_` and `-`.
    #[error("namespace {0:?} must have 1 to 63 letters, digits or . _ -")]
    Namespace(String),
    /// The name is empty, too long, or has a white-space or control character.
    #[error("lock name {0:?} must have 1 to 128 printable characters without spaces")]
    Name(String),
}

/// Prefix of all keys of this project.
pub const PREFIX: &str = "redlock:";
/// The key of a master's armed marker. Its value is the `run_id` of the server process that may vote, a space, and the
/// longest TTL that it grants, in milliseconds. It has no `/`, so it is no lock's key.
pub const ARMED_KEY: &str = "redlock:armed";

impl LockKey {
    /// The lock `name` of `namespace`: 1 to 128 bytes of text without white space, and 1 to 63 letters, digits, `.`,
    /// `_` or `-`.
    pub fn new(namespace: &str, name: &str) -> Result<Self, InvalidKey> {
        let in_namespace = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if namespace.is_empty() || namespace.len() > 63 || !namespace.chars().all(in_namespace) {
            return Err(InvalidKey::Namespace(namespace.to_owned()));
        }
        if name.is_empty() || name.len() > 128 || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(InvalidKey::Name(name.to_owned()));
        }
        Ok(Self(Arc::new(Names {
            key: format!("{PREFIX}{namespace}/{name}"),
            fences: format!("{PREFIX}{namespace}#fences"),
            queue: format!("{PREFIX}{namespace}#queue/{name}"),
            entered: format!("{PREFIX}{namespace}#queue/{name} entered"),
            kept: format!("{PREFIX}{namespace}#queue/ kept"),
            namespace_end: PREFIX.len() + namespace.len(),
        })))
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.0.key[PREFIX.len()..self.0.namespace_end]
    }

    /// The name within the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.key[self.0.namespace_end + 1..]
    }

    /// The key that holds the owner.
    #[must_use]
    pub fn redis_key(&self) -> &str {
        &self.0.key
    }

    /// The sorted set of the namespace's last fencing tokens.
    #[must_use]
    pub fn fences_key(&self) -> &str {
        &self.0.fences
    }

    /// The channel on which the waiter with this inbox hears of releases.
    #[must_use]
    pub fn channel(&self, inbox: Token) -> String {
        format!("{}#{inbox}", self.0.key)
    }

    /// The sorted set that is the lock's queue.
    #[must_use]
    pub fn queue_key(&self) -> &str {
        &self.0.queue
    }

    /// The sorted set of when each place in the queue was entered last, on the master's clock.
    #[must_use]
    pub fn entered_key(&self) -> &str {
        &self.0.entered
    }

    /// The sorted set of until when each fence of the namespace is kept, on the master's clock.
    #[must_use]
    pub fn kept_key(&self) -> &str {
        &self.0.kept
    }
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace(), self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_plain_names_on_a_master() {
        let key = LockKey::new("billing", "reports/nightly").unwrap();
        assert_eq!(key.redis_key(), "redlock:billing/reports/nightly");
        assert_eq!(key.fences_key(), "redlock:billing#fences");
        assert_eq!(key.queue_key(), "redlock:billing#queue/reports/nightly");
        assert_eq!(key.entered_key(), "redlock:billing#queue/reports/nightly entered");
        assert_eq!(key.kept_key(), "redlock:billing#queue/ kept");
        assert_eq!(key.channel(Token::new(7).unwrap()), "redlock:billing/reports/nightly#7");
        assert_eq!((key.namespace(), key.name()), ("billing", "reports/nightly"));
        assert_eq!(key.to_string(), "billing/reports/nightly");
    }

    #[test]
    fn names_that_could_be_mistaken_are_refused() {
        for (namespace, name) in [("", "a"), ("a/b", "c"), ("a#", "c"), ("a", ""), ("a", "b c"), ("a", "b\n")] {
            assert!(LockKey::new(namespace, name).is_err(), "{namespace:?} {name:?}");
        }
        assert!(LockKey::new("a", &"x".repeat(129)).is_err());
    }
}
