//! The queue of a lock on a server.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use redlock_engine::master::{Place, QUEUE_LIFETIME};

/// The waiters' places, by priority, then by arrival on the server's clock.
#[derive(Default)]
pub struct Queue {
    places: BTreeSet<(Reverse<i16>, Duration, Arc<str>)>,
    /// When each was entered last.
    entered: BTreeMap<Arc<str>, Duration>,
}

impl Queue {
    /// Removes waiters that were not entered for too long, or in the future of a clock that was set back.
    pub fn lapse(&mut self, clock: Duration) {
        self.entered.retain(|_, entered| *entered + QUEUE_LIFETIME >= clock && *entered <= clock);
        self.places.retain(|(_, _, waiter)| self.entered.contains_key(waiter));
    }

    /// Adds a waiter, or keeps its place. Returns how many are before it.
    pub fn enter(&mut self, place: &Place, waited: Duration, clock: Duration) -> usize {
        let name: Arc<str> = place.name().into();
        let is_new = self.entered.insert(Arc::clone(&name), clock).is_none();
        if is_new {
            self.places.insert((Reverse(place.priority()), clock.saturating_sub(waited), Arc::clone(&name)));
        }
        self.lapse(clock);
        self.places.iter().position(|(_, _, waiter)| *waiter == name).expect("it was entered")
    }

    pub fn leave(&mut self, waiter: &str) {
        self.entered.remove(waiter);
        self.places.retain(|(_, _, other)| **other != *waiter);
    }

    pub fn first(&self) -> Option<Arc<str>> {
        self.places.first().map(|(_, _, place)| Arc::clone(place))
    }

    pub fn take_first(&mut self) -> Option<Arc<str>> {
        let (_, _, waiter) = self.places.pop_first()?;
        self.entered.remove(&waiter);
        Some(waiter)
    }
}
