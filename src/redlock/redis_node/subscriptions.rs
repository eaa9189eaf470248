//! Who waits for which releases on one node.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc::UnboundedSender;

/// A waiter: where to send which number.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    pub(super) index: usize,
    pub(super) wake: UnboundedSender<usize>,
}

/// Waiters by channel. The entry of a channel lives as long as one of its waiters.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    waiters: Mutex<HashMap<String, Vec<Waiter>>>,
}

impl Subscriptions {
    // A panic in one of the short sections below cannot leave the map half changed.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<Waiter>>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a waiter; answers whether it is the channel's first.
    pub(super) fn add(&self, channel: &str, waiter: Waiter) -> bool {
        let mut all = self.lock();
        let waiters = all.entry(channel.to_owned()).or_default();
        waiters.push(waiter);
        waiters.len() == 1
    }

    /// Removes a waiter; answers whether the channel has none left.
    pub(super) fn remove(&self, channel: &str, wake: &UnboundedSender<usize>) -> bool {
        let mut all = self.lock();
        let Some(waiters) = all.get_mut(channel) else { return false };
        waiters.retain(|w| !w.wake.same_channel(wake));
        if waiters.is_empty() {
            all.remove(channel);
            return true;
        }
        false
    }

    /// The channels that have waiters.
    pub(super) fn channels(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// Wakes the waiters of the channel that `push` is a message of.
    pub(super) fn route(&self, push: &PushInfo) {
        if push.kind != PushKind::Message {
            return;
        }
        let Some(Value::BulkString(channel)) = push.data.first() else { return };
        let Ok(channel) = std::str::from_utf8(channel) else { return };
        if let Some(waiters) = self.lock().get(channel) {
            wake(waiters);
        }
    }

    /// Wakes everybody: messages may have been missed.
    pub(super) fn wake_all(&self) {
        self.lock().values().for_each(|waiters| wake(waiters));
    }
}

fn wake(waiters: &[Waiter]) {
    for waiter in waiters {
        // A waiter that has gone takes itself off the list.
        let _ = waiter.wake.send(waiter.index);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    fn message(channel: &str) -> PushInfo {
        let text = |s: &str| Value::BulkString(s.as_bytes().to_vec());
        PushInfo { kind: PushKind::Message, data: vec![text(channel), text("released")] }
    }

    #[test]
    fn a_release_wakes_the_waiters_of_its_lock_alone() {
        let subscriptions = Subscriptions::default();
        let (a, mut woken_a) = mpsc::unbounded_channel();
        let (b, mut woken_b) = mpsc::unbounded_channel();
        assert!(subscriptions.add("redlock:x/a", Waiter { index: 3, wake: a.clone() }));
        assert!(subscriptions.add("redlock:x/b", Waiter { index: 4, wake: b }));
        subscriptions.route(&message("redlock:x/a"));
        assert_eq!(woken_a.try_recv(), Ok(3));
        assert!(woken_b.try_recv().is_err());
        assert!(subscriptions.remove("redlock:x/a", &a));
        assert_eq!(subscriptions.channels(), ["redlock:x/b"]);
    }
}
