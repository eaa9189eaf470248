//! The identity with which the operator holds a lock, and the holder that people see.

use redlock_engine::{Owner, Token};

use crate::api::DistributedLock;
use crate::api::lock::LockPhase;

/// Length of a UID in its canonical form.
const UID_LENGTH: usize = 36;

/// The holder of a key, as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The holder of a `DistributedLock`, the identity of an agent, or the value of another library.
    pub(crate) name: String,
    /// Fencing token of the grant. Other libraries have none.
    pub(crate) token: Option<Token>,
}

impl Holder {
    /// The holder that owns a grant.
    pub(crate) fn of(owner: &Owner) -> Self {
        Self { name: without_uid(owner.identity()).to_owned(), token: Some(owner.token()) }
    }

    /// The holder that a key's `value` on the masters names.
    pub(crate) fn of_value(value: &str) -> Self {
        match value.parse() {
            Ok(owner) => Self::of(&owner),
            Err(_) => Self { name: value.to_owned(), token: None },
        }
    }
}

/// The identity with which the operator contends for `holder` of the `DistributedLock` with this UID. The UID makes it
/// unique: two resources with the same holder are two contenders.
pub(crate) fn identity(holder: &str, uid: &str) -> String {
    format!("{holder}/{uid}")
}

/// The grant that `status` records for this resource, so that another process can adopt or release it. Its holder may be an
/// earlier one: see [`is_of_holder`].
///
/// Only phase `Held` counts: in another phase `status.owner` may be another resource's.
pub(crate) fn recorded_owner(lock: &DistributedLock) -> Option<Owner> {
    let (status, uid) = (lock.status.as_ref()?, lock.metadata.uid.as_deref()?);
    if status.phase != Some(LockPhase::Held) {
        return None;
    }
    let is_own = |owner: &Owner| owner.identity().rsplit_once('/').is_some_and(|(_, of)| of == uid);
    status.owner.as_deref()?.parse::<Owner>().ok().filter(is_own)
}

/// Whether `owner` is the holder that the spec of `lock` names now.
pub(crate) fn is_of_holder(lock: &DistributedLock, owner: &Owner) -> bool {
    match (lock.spec.holder.as_deref(), lock.metadata.uid.as_deref()) {
        (Some(holder), Some(uid)) => owner.identity() == identity(holder, uid),
        _ => false,
    }
}

/// The token as a number of the API.
pub(crate) fn api_token(token: Token) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

/// The identity without the UID that [`identity`] adds.
fn without_uid(identity: &str) -> &str {
    match identity.rsplit_once('/') {
        Some((holder, uid)) if is_uid(uid) => holder,
        _ => identity,
    }
}

fn is_uid(text: &str) -> bool {
    let is_valid = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == UID_LENGTH && text.bytes().enumerate().all(is_valid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::fixtures;

    #[test]
    fn the_holder_is_shown_without_what_makes_it_unique() {
        let ours = format!("{}@1796032462123456.0123456789abcdef", identity("job/night", fixtures::UID));
        for (value, name, token) in [
            (ours.as_str(), "job/night", Some(1_796_032_462_123_456)),
            ("worker-6d9f@17.0123456789abcdef", "worker-6d9f", Some(17)),
            ("worker-6d9f@17", "worker-6d9f@17", None),
            (
                "a/b/not-a-uid-but-exactly-36-chars-long!@5.0123456789abcdef",
                "a/b/not-a-uid-but-exactly-36-chars-long!",
                Some(5),
            ),
            ("f3c1aa0e", "f3c1aa0e", None),
            ("mail@example.org", "mail@example.org", None),
        ] {
            let token = token.and_then(Token::new);
            assert_eq!(Holder::of_value(value), Holder { name: name.to_owned(), token }, "{value}");
        }
    }

    #[test]
    fn only_a_grant_of_this_resource_is_adopted() {
        let mut lock = fixtures::lock();
        assert_eq!(recorded_owner(&lock), None, "no status");
        lock.status = Some(fixtures::held_status(17));
        let owner = Owner::new(identity("job/night", fixtures::UID), Token::new(17).unwrap(), 1);
        assert_eq!(recorded_owner(&lock), Some(owner));

        let change = |f: fn(&mut crate::api::DistributedLockStatus)| {
            let mut lock = lock.clone();
            f(lock.status.as_mut().unwrap());
            recorded_owner(&lock)
        };
        assert_eq!(change(|s| s.phase = Some(LockPhase::Waiting)), None, "another resource of the same holder has it");
        assert_eq!(change(|s| s.owner = None), None);
        assert_eq!(change(|s| s.owner = Some("job/night@17.0000000000000001".to_owned())), None, "another identity");
        assert_eq!(change(|s| s.owner = Some("6f1c2a".to_owned())), None, "another library");
    }

    #[test]
    fn a_grant_of_an_earlier_holder_is_known_as_such() {
        let mut lock = fixtures::lock();
        lock.status = Some(fixtures::held_status(17));
        let owner = recorded_owner(&lock).unwrap();
        assert!(is_of_holder(&lock, &owner));
        lock.spec.holder = Some("job/morning".to_owned());
        assert_eq!(recorded_owner(&lock).as_ref(), Some(&owner), "it has to be released");
        assert!(!is_of_holder(&lock, &owner));
    }
}
