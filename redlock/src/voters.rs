//! Which server each master of a client is connected to: one server has one vote.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::MasterError;

/// The servers that vote for one client, each as one of its masters. Two addresses may lead to one server, by a
/// re-used address or a wrong Service: counted twice, it could renew a lease that another holder has as well.
#[derive(Debug)]
pub struct Voters {
    call_timeout: Duration,
    seats: Mutex<HashMap<String, Seat>>,
}

/// A server's only seat.
#[derive(Debug)]
struct Seat {
    master: usize,
    /// The master's name and address.
    label: String,
    connections: usize,
    /// When the last of them ended.
    left_at: Instant,
}

/// The right of a connection to vote, as long as it lives.
#[derive(Debug)]
pub struct Admission {
    voters: Arc<Voters>,
    server: String,
}

impl Voters {
    /// No servers yet, for a client with this call timeout.
    #[must_use]
    pub fn new(call_timeout: Duration) -> Self {
        Self { call_timeout, seats: Mutex::default() }
    }

    /// Admits a connection of `master`, the index of a master that is called `label`, to `server`, the name of a server
    /// process.
    ///
    /// # Errors
    /// [`MasterError::Misconfigured`] where another master has that server, or had it less than a call timeout ago: its
    /// vote in the present round may be counted.
    pub fn admit(self: &Arc<Self>, master: usize, label: &str, server: &str) -> Result<Admission, MasterError> {
        let now = Instant::now();
        let mut seats = self.lock();
        let is_over = |seat: &Seat| now.saturating_duration_since(seat.left_at) > self.call_timeout;
        seats.retain(|_, seat| seat.connections > 0 || !is_over(seat));
        let seat = seats.entry(server.to_owned()).or_insert_with(|| Seat {
            master,
            label: label.to_owned(),
            connections: 0,
            left_at: now,
        });
        if seat.master != master {
            return Err(MasterError::Misconfigured(format!(
                "the same server as another master: {} and {label} must lead to a server each",
                seat.label
            )));
        }
        seat.connections += 1;
        Ok(Admission { voters: Arc::clone(self), server: server.to_owned() })
    }

    // A panic in one of the short sections above and below cannot leave the map half changed.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Seat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(seat) = self.voters.lock().get_mut(&self.server) {
            seat.connections = seat.connections.saturating_sub(1);
            seat.left_at = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL_TIMEOUT: Duration = Duration::from_millis(50);

    #[tokio::test(start_paused = true)]
    async fn a_server_votes_as_one_master_until_that_has_left_it_for_a_call_timeout() {
        let voters = Arc::new(Voters::new(CALL_TIMEOUT));
        let first = voters.admit(0, "m0 (a:1)", "s2").unwrap();
        let again = voters.admit(0, "m0 (a:1)", "s2").unwrap();
        let _other = voters.admit(1, "m1 (b:1)", "s1").unwrap();
        drop(first);
        for pause in [Duration::ZERO, 2 * CALL_TIMEOUT] {
            tokio::time::advance(pause).await;
            let MasterError::Misconfigured(why) = voters.admit(2, "m2 (c:1)", "s2").unwrap_err() else { panic!() };
            assert!(why.contains("m0 (a:1) and m2 (c:1)"), "{why}");
        }
        drop(again);
        tokio::time::advance(CALL_TIMEOUT).await;
        voters.admit(2, "m2 (c:1)", "s2").unwrap_err();
        tokio::time::advance(Duration::from_millis(1)).await;
        let _moved = voters.admit(2, "m2 (c:1)", "s2").unwrap();
        voters.admit(0, "m0 (a:1)", "s2").unwrap_err();
    }

    #[test]
    fn clients_do_not_know_of_each_other() {
        let [one, other] = [(); 2].map(|()| Arc::new(Voters::new(CALL_TIMEOUT)));
        let _one = one.admit(0, "m0", "s0").unwrap();
        other.admit(1, "m1", "s0").unwrap();
    }
}
