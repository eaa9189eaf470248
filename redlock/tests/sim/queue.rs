//! The queue of a lock on a server.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redlock_engine::master::{Place, QUEUE_LIFETIME};

/// The waiters' places, by priority, then by arrival on the server's clock.
#[derive(Default)]
pub struct Queue {
    places: BTreeSet<(Reverse<i16>, Duration, Arc<str>)>,
    ends: Duration,
}

impl Queue {
    /// Clears the queue if nobody has entered for its lifetime.
    pub fn expire(&mut self, clock: Duration) {
        if clock >= self.ends {
            self.places.clear();
        }
    }

    /// Adds a waiter, or keeps its place. Returns how many are before it.
    pub fn enter(&mut self, place: &Place, waited: Duration, clock: Duration) -> usize {
        self.ends = clock + QUEUE_LIFETIME;
        if let Some(ahead) = self.places.iter().position(|(_, _, waiter)| **waiter == *place.name()) {
            return ahead;
        }
        let entered = (Reverse(place.priority()), clock.saturating_sub(waited), place.name().into());
        let ahead = self.places.range(..&entered).count();
        self.places.insert(entered);
        ahead
    }

    pub fn leave(&mut self, waiter: &str) {
        self.places.retain(|(_, _, other)| **other != *waiter);
    }

    pub fn first(&self) -> Option<Arc<str>> {
        self.places.first().map(|(_, _, place)| Arc::clone(place))
    }

    pub fn take_first(&mut self) -> Option<Arc<str>> {
        self.places.pop_first().map(|(_, _, waiter)| waiter)
    }
}
