//! Events of locks: on transitions only, told in the background so that they hold up nothing.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::EventType;
use tokio::sync::mpsc;
use tracing::warn;

use crate::operator::events::Events;
use crate::operator::leadership::Leadership;
use redlock_engine::{Loss, Token};

/// How many transitions may wait to be told. More than that means an API server that does not answer; the oldest news
/// is worth more than the memory.
const BACKLOG: usize = 1024;

/// A transition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Granted to this holder.
    Acquired(String, Token),
    /// Ended against the holder's will.
    Lost(Loss),
    /// Given back.
    Released,
    /// Another holds it.
    Contended(String),
    /// Not to be reached: what there is of it ends by itself.
    LeftToExpire(String),
    /// The lock's keeper failed, and goes on.
    KeeperRestarted,
    /// The object cannot be read as a `DistributedLock`.
    Unreadable(String),
}

/// Takes notices. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Notices {
    sender: mpsc::Sender<(ObjectReference, Notice)>,
}

impl Notice {
    /// Kind of Event, reason, action and note.
    fn describe(&self) -> (EventType, &'static str, &'static str, String) {
        match self {
            Self::Acquired(holder, token) => {
                (EventType::Normal, "Acquired", "Acquire", format!("held by {holder} with fencing token {token}"))
            }
            Self::Lost(loss) => (EventType::Warning, "Lost", "Renew", loss.to_string()),
            Self::Released => (EventType::Normal, "Released", "Release", "given back on the masters".to_owned()),
            Self::Contended(holder) => {
                (EventType::Normal, "Contended", "Acquire", format!("waiting: held by {holder}"))
            }
            Self::LeftToExpire(why) => (EventType::Warning, "LeftToExpire", "Release", why.clone()),
            Self::KeeperRestarted => (
                EventType::Warning,
                "KeeperRestarted",
                "Restart",
                "the keeper of this lock failed and was restarted; please report it with the operator's log".to_owned(),
            ),
            Self::Unreadable(why) => (EventType::Warning, "Unreadable", "Read", why.clone()),
        }
    }
}

impl Notices {
    /// A way to tell, and what takes it.
    #[must_use]
    pub fn channel() -> (Self, mpsc::Receiver<(ObjectReference, Notice)>) {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        (Self { sender }, receiver)
    }

    /// Tells of a transition of `object`. Returns at once.
    pub fn tell(&self, object: &ObjectReference, notice: Notice) {
        if let Err(error) = self.sender.try_send((object.clone(), notice)) {
            let (mpsc::error::TrySendError::Full((_, notice)) | mpsc::error::TrySendError::Closed((_, notice))) = error;
            warn!(?notice, "a transition is told in no Event: too many are waiting");
        }
    }
}

/// Publishes what is told, until nobody can tell anything any more. A process that does not lead is silent: the leader
/// tells of the same lock.
pub async fn publish(mut notices: mpsc::Receiver<(ObjectReference, Notice)>, events: Events, leadership: Leadership) {
    while let Some((object, notice)) = notices.recv().await {
        if leadership.is_leader() {
            let (kind, reason, action, note) = notice.describe();
            events.publish(&object, kind, reason, action, note).await;
        }
    }
}
