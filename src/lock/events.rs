//! Events of locks: on transitions only, published in the background, so that they delay nothing.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::EventType;
use redlock_engine::{Loss, Token};
use tokio::sync::mpsc;
use tracing::warn;

use crate::operator::events::Events;
use crate::operator::leadership::Leadership;

/// How many Events may wait to be published. With more, the API server does not answer: then new Events are dropped
/// rather than kept in memory.
const BACKLOG: usize = 1024;

/// A transition of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LockEvent {
    /// The lock was granted to this holder, with this fencing token.
    Acquired(String, Token),
    /// The lease ended against the holder's will.
    Lost(Loss),
    /// The lock was released.
    Released,
    /// Another holder has the lock.
    Contended(String),
    /// This holder's key on the masters never expires, so the lock is never free by itself.
    NeverExpires(String, String),
    /// The masters could not be asked to release the lock, so its lease expires.
    LeftToExpire(String),
    /// The lock's actor panicked, and was restarted.
    KeeperRestarted,
    /// A reconcile of the lock panicked.
    Panicked,
    /// The object cannot be read as a `DistributedLock`.
    Unreadable(String),
}

/// Sends Events to the task that publishes them. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct EventSender {
    sender: mpsc::Sender<(ObjectReference, LockEvent)>,
}

// === impl LockEvent ===

impl LockEvent {
    /// Type, reason, action and note of the Event.
    fn describe(&self) -> (EventType, &'static str, &'static str, String) {
        match self {
            Self::Acquired(holder, token) => {
                (EventType::Normal, "Acquired", "Acquire", format!("held by {holder} with fencing token {token}"))
            }
            Self::Lost(loss) => (EventType::Warning, "Lost", "Renew", loss.to_string()),
            Self::Released => (EventType::Normal, "Released", "Release", "released on the masters".to_owned()),
            Self::Contended(holder) => {
                (EventType::Normal, "Contended", "Acquire", format!("waiting: held by {holder}"))
            }
            Self::NeverExpires(holder, key) => (
                EventType::Warning,
                "NeverExpires",
                "Acquire",
                format!("held by {holder}, whose key never expires: `DEL {key}` on the masters frees the lock"),
            ),
            Self::LeftToExpire(why) => (EventType::Warning, "LeftToExpire", "Release", why.clone()),
            Self::KeeperRestarted => (
                EventType::Warning,
                "KeeperRestarted",
                "Restart",
                "the keeper of this lock failed and was restarted; please report it with the operator's log".to_owned(),
            ),
            Self::Panicked => (
                EventType::Warning,
                "ReconcilePanicked",
                "Reconcile",
                "the operator panicked over this lock and tries again; please report it with the operator's log"
                    .to_owned(),
            ),
            Self::Unreadable(why) => (EventType::Warning, "Unreadable", "Read", why.clone()),
        }
    }
}

// === impl EventSender ===

impl EventSender {
    /// A sender, and the receiver for [`publish`].
    pub(crate) fn channel() -> (Self, mpsc::Receiver<(ObjectReference, LockEvent)>) {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        (Self { sender }, receiver)
    }

    /// Sends an Event about `object`. Returns at once.
    pub(crate) fn send(&self, object: &ObjectReference, event: LockEvent) {
        if let Err(error) = self.sender.try_send((object.clone(), event)) {
            let (mpsc::error::TrySendError::Full((_, event)) | mpsc::error::TrySendError::Closed((_, event))) = error;
            warn!(?event, "an Event is dropped: too many are waiting");
        }
    }
}

/// Publishes Events until all senders are dropped. Only the leader publishes: the other replicas see the same transitions.
pub(crate) async fn publish(
    mut receiver: mpsc::Receiver<(ObjectReference, LockEvent)>,
    events: Events,
    leadership: Leadership,
) {
    while let Some((object, event)) = receiver.recv().await {
        if leadership.is_leader() {
            let (kind, reason, action, note) = event.describe();
            events.publish(&object, kind, reason, action, note).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use redlock_engine::error::MasterFailure;
    use redlock_engine::{Error, MasterError};

    use super::*;

    #[test]
    fn the_event_of_a_loss_says_what_the_masters_said() {
        let failure = MasterFailure { master: "main-1".to_owned(), error: MasterError::Quarantined };
        let error = Error::NoQuorum { usable: 1, needed: 2, masters: 3, failures: vec![failure] };
        let (kind, reason, _, note) = LockEvent::Lost(Loss::Expired { last_failure: Some(Arc::new(error)) }).describe();
        assert_eq!((kind, reason), (EventType::Warning, "Lost"));
        let expected = "the lease could not be renewed before it ended: 1 of 3 masters usable, 2 needed (main-1: kept out (not \
                        armed))";
        assert_eq!(note, expected);
    }
}
