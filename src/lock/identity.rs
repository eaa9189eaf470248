//! In which name the operator holds a lock, and what is shown of the name that a key holds.

use crate::api::DistributedLock;
use redlock_engine::{Owner, Token};

/// Length of a UID as Kubernetes writes it.
const UID_LENGTH: usize = 36;

/// Who holds a key, as people want to read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The holder of a `DistributedLock`, the identity of an agent, or what another library wrote.
    pub name: String,
    /// Fencing token of the grant; another library has none.
    pub token: Option<Token>,
}

/// The identity with which the operator contends for `holder` of the `DistributedLock` with this UID. The UID makes it
/// unique: two resources with the same holder are two contenders.
#[must_use]
pub fn identity(holder: &str, uid: &str) -> String {
    format!("{holder}/{uid}")
}

/// What is shown of a key's `value`.
#[must_use]
pub fn shown(value: &str) -> Holder {
    match value.parse::<Owner>() {
        Ok(owner) => Holder { name: without_uid(owner.identity()).to_owned(), token: Some(owner.token()) },
        Err(_) => Holder { name: value.to_owned(), token: None },
    }
}

/// The grant that `status` shows as this resource's own, so that a process that did not make it can go on with it.
///
/// Only with phase `Held`: in another phase `status.holder` may be another resource's holder of the same name.
#[must_use]
pub fn recorded_owner(lock: &DistributedLock) -> Option<Owner> {
    let status = lock.status.as_ref()?;
    let (holder, uid) = (lock.spec.holder.as_deref()?, lock.metadata.uid.as_deref()?);
    if status.phase != Some(crate::api::lock::LockPhase::Held) || status.holder.as_deref() != Some(holder) {
        return None;
    }
    let token = u64::try_from(status.fencing_token?).ok().and_then(Token::new)?;
    Some(Owner::new(identity(holder, uid), token))
}

/// A token as the API shows it.
#[must_use]
pub fn api_token(token: Token) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

fn without_uid(identity: &str) -> &str {
    match identity.rsplit_once('/') {
        Some((holder, uid)) if is_uid(uid) => holder,
        _ => identity,
    }
}

fn is_uid(text: &str) -> bool {
    let in_place = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == UID_LENGTH && text.bytes().enumerate().all(in_place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::lock::LockPhase;
    use crate::lock::fixtures;

    #[test]
    fn the_holder_is_shown_without_what_makes_it_unique() {
        let ours = format!("{}@1796032462123456", identity("job/night", fixtures::UID));
        for (value, name, token) in [
            (ours.as_str(), "job/night", Some(1_796_032_462_123_456)),
            ("worker-6d9f@17", "worker-6d9f", Some(17)),
            ("a/b/not-a-uid-but-exactly-36-chars-long!@5", "a/b/not-a-uid-but-exactly-36-chars-long!", Some(5)),
            ("f3c1aa0e", "f3c1aa0e", None),
            ("mail@example.org", "mail@example.org", None),
        ] {
            let token = token.and_then(Token::new);
            assert_eq!(shown(value), Holder { name: name.to_owned(), token }, "{value}");
        }
    }

    #[test]
    fn only_a_grant_of_this_resource_is_gone_on_with() {
        let mut lock = fixtures::lock();
        assert_eq!(recorded_owner(&lock), None, "no status");
        lock.status = Some(fixtures::held_status(17));
        let owner = Owner::new(identity("job/night", fixtures::UID), Token::new(17).unwrap());
        assert_eq!(recorded_owner(&lock), Some(owner));

        let change = |f: fn(&mut crate::api::DistributedLockStatus)| {
            let mut lock = lock.clone();
            f(lock.status.as_mut().unwrap());
            recorded_owner(&lock)
        };
        assert_eq!(change(|s| s.phase = Some(LockPhase::Waiting)), None, "another resource of the same holder has it");
        assert_eq!(change(|s| s.holder = Some("other".to_owned())), None);
        assert_eq!(change(|s| s.fencing_token = None), None);
        assert_eq!(change(|s| s.fencing_token = Some(-1)), None);
    }
}
