//! The waiters that subscribe to releases on one master.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc::UnboundedSender;

use crate::master::{Heard, News};
use crate::owner::Owner;

/// A waiter: where to send news, and the index of the master that they are from.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    pub(super) index: usize,
    pub(super) wake: UnboundedSender<Heard>,
}

/// Waiters by channel. A channel's entry lives as long as one of its waiters.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    waiters: Mutex<HashMap<String, Vec<Waiter>>>,
}

impl Subscriptions {
    // A panic in one of the short sections below cannot leave the map half changed.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<Waiter>>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a waiter. Returns whether it is the channel's first.
    pub(super) fn add(&self, channel: &str, waiter: Waiter) -> bool {
        let mut all = self.lock();
        let waiters = all.entry(channel.to_owned()).or_default();
        waiters.push(waiter);
        waiters.len() == 1
    }

    /// Removes a waiter. Returns whether the channel has none left.
    pub(super) fn remove(&self, channel: &str, wake: &UnboundedSender<Heard>) -> bool {
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

    /// Tells the waiters of the channel on which `push` is a message.
    pub(super) fn route(&self, push: &PushInfo) {
        if push.kind != PushKind::Message {
            return;
        }
        let [Value::BulkString(channel), Value::BulkString(message)] = &push.data[..] else { return };
        let (Ok(channel), Ok(message)) = (std::str::from_utf8(channel), std::str::from_utf8(message)) else { return };
        if let Some(waiters) = self.lock().get(channel) {
            // A message of another client is a hint to check the lock.
            let news = news(message).unwrap_or(News::Gap);
            tell(waiters, &news);
        }
    }

    /// Tells all waiters that messages may have been missed.
    pub(super) fn tell_gap(&self) {
        self.lock().values().for_each(|waiters| tell(waiters, &News::Gap));
    }
}

/// The message that a release publishes: `<owner> <place>`.
fn news(message: &str) -> Option<News> {
    let (owner, next) = message.split_once(' ')?;
    let token = owner.parse::<Owner>().ok()?.token();
    Some(News::Released { token, next: next.into() })
}

fn tell(waiters: &[Waiter], news: &News) {
    for waiter in waiters {
        // A waiter that has gone is removed by its own task.
        let _ = waiter.wake.send(Heard { master: waiter.index, news: news.clone() });
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::fence::Token;

    fn message(channel: &str, message: &str) -> PushInfo {
        let text = |s: &str| Value::BulkString(s.as_bytes().to_vec());
        PushInfo { kind: PushKind::Message, data: vec![text(channel), text(message)] }
    }

    #[test]
    fn a_release_wakes_the_waiters_of_its_lock_alone() {
        let subscriptions = Subscriptions::default();
        let (a, mut woken_a) = mpsc::unbounded_channel();
        let (b, mut woken_b) = mpsc::unbounded_channel();
        assert!(subscriptions.add("redlock:x/a", Waiter { index: 3, wake: a.clone() }));
        assert!(subscriptions.add("redlock:x/b", Waiter { index: 4, wake: b }));
        let token = Token::new(7).unwrap();
        for (text, news) in [
            ("job@7.000000000000000b other@9 5", News::Released { token, next: "other@9 5".into() }),
            ("released", News::Gap),
        ] {
            subscriptions.route(&message("redlock:x/a", text));
            assert_eq!(woken_a.try_recv(), Ok(Heard { master: 3, news }));
        }
        assert!(woken_b.try_recv().is_err());
        assert!(subscriptions.remove("redlock:x/a", &a));
        assert_eq!(subscriptions.channels(), ["redlock:x/b"]);
        subscriptions.tell_gap();
        assert_eq!(woken_b.try_recv(), Ok(Heard { master: 4, news: News::Gap }));
    }
}
