//! The finalizer: added before anything is acquired, removed when that is released or certain to expire.

use kube::Resource as _;
use redlock_engine::Released;

use super::decide::FINALIZER;
use super::events::LockEvent;
use super::keeper::state::Ending;
use crate::api::{DistributedLock, WatchedLock};
use crate::operator::api_server::{ApiServer, Error};
use crate::operator::finalizer;

/// Removes the finalizer. An object that is gone has none.
pub(crate) async fn remove(api: &ApiServer, object: &WatchedLock) -> Result<(), Error> {
    finalizer::remove::<DistributedLock>(api, object.meta(), FINALIZER).await
}

/// The Event about the end of a lock, if there is one to publish. `may_be_held`: without an answer of the masters, a grant
/// may be left on them.
pub(crate) fn event(ending: Option<Ending>, may_be_held: bool) -> Option<LockEvent> {
    let may_be_left = match ending {
        Some(Ending::Released(Released::Freed)) => return Some(LockEvent::Released),
        Some(Ending::Released(Released::AlreadyExpired) | Ending::Nothing) => false,
        Some(Ending::Released(Released::Unknown)) => true,
        Some(Ending::Abandoned) | None => may_be_held,
    };
    let why = "too few masters answered: what they hold of the lock expires after its ttl";
    may_be_left.then(|| LockEvent::LeftToExpire(why.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_released_is_reported_and_nothing_else() {
        let released = |r| Some(Ending::Released(r));
        assert_eq!(event(released(Released::Freed), true), Some(LockEvent::Released));
        assert_eq!(event(released(Released::AlreadyExpired), true), None);
        assert_eq!(event(None, false), None);
        assert_eq!(event(Some(Ending::Nothing), false), None, "a contender has nothing to release");
        for (ending, held) in [(released(Released::Unknown), false), (None, true)] {
            assert!(matches!(event(ending, held), Some(LockEvent::LeftToExpire(_))), "{ending:?}");
        }
    }
}
