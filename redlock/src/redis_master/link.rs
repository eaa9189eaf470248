//! The one connection to a server: made, checked, closed and made again in the background.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rand::RngExt as _;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushKind};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::endpoint::{Endpoint, Marker};
use super::error::master_error;
use super::subscriptions::Subscriptions;
use super::{fitness, script};
use crate::error::MasterError;
use crate::voters::{Admission, Voters};

/// Timeout of connecting, logging in and checking. Longer than a call timeout: nobody waits for it, since calls fail at
/// once meanwhile.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Calls that may wait to be written to the connection. Beyond it they wait for room until they time out: a master that
/// reads nothing costs no more memory than this.
const QUEUE_LENGTH: usize = 1024;
/// The connection is closed after this number of calls in a row without an answer, once the server has been silent for as
/// many call timeouts. The calls alone do not suffice: one short stall can fail hundreds that were under way together.
/// While the connection is made again calls fail at once: this is the circuit breaker, and the handshake is its probe.
const TIMEOUTS_UNTIL_BROKEN: u32 = 3;
/// Shortest and longest pause before a connection is tried again. The pause is drawn between the shortest and a bound
/// that doubles, so that the clients of a restarted server do not come back in step.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest where the server accepts connections and answers no call in time: each costs it a handshake.
const LONGEST_PAUSE_UNANSWERED: Duration = Duration::from_secs(4);
/// How often a connected server is checked again.
const CHECK_PERIOD: Duration = Duration::from_secs(60);

/// A live connection to one server process.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    /// Name of the server process, read after connecting. A restart always breaks the connection.
    pub(super) run_id: String,
    made_at: Instant,
    /// Whether a call was answered in time.
    has_answered: AtomicBool,
    /// Calls without an answer since the last one.
    timeouts: AtomicU32,
    /// When the first of them was sent, in microseconds since the connection was made.
    silent_since: AtomicU64,
    broken: CancellationToken,
    /// The server's vote, which this connection has while it lives.
    admission: OnceLock<Admission>,
}

/// Whether there is a connection.
#[derive(Clone, Debug)]
pub(super) enum LinkState {
    Connecting,
    Up(Arc<Link>),
    Down(MasterError),
}

impl Link {
    /// An answer came in time.
    pub(super) fn answered(&self) {
        // The common case writes nothing, so that callers on many cores do not compete for the cache line.
        if self.timeouts.load(Ordering::Relaxed) != 0 {
            self.timeouts.store(0, Ordering::Relaxed);
        }
        if !self.has_answered() {
            self.has_answered.store(true, Ordering::Relaxed);
        }
    }

    /// Whether calls were made, and none was answered in time.
    fn is_unanswered(&self) -> bool {
        self.timeouts.load(Ordering::Relaxed) > 0 && !self.has_answered()
    }

    fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed)
    }

    /// A call that was sent at `sent_at` timed out after `timeout`.
    pub(super) fn timed_out(&self, sent_at: Instant, timeout: Duration) {
        let sent = u64::try_from(sent_at.duration_since(self.made_at).as_micros()).unwrap_or(u64::MAX);
        let silent_since = if self.timeouts.fetch_add(1, Ordering::Relaxed) == 0 {
            self.silent_since.store(sent, Ordering::Relaxed);
            sent
        } else {
            self.silent_since.load(Ordering::Relaxed)
        };
        let silence = self.made_at.elapsed().saturating_sub(Duration::from_micros(silent_since));
        if self.timeouts.load(Ordering::Relaxed) >= TIMEOUTS_UNTIL_BROKEN
            && silence >= timeout.saturating_mul(TIMEOUTS_UNTIL_BROKEN)
        {
            self.broken.cancel();
        }
    }

    /// Asks the client, if it is known, for the server's vote.
    fn seek_admission(&self, member: Option<&(usize, Arc<Voters>)>, endpoint: &Endpoint) -> Result<(), MasterError> {
        // A server that does not name its process cannot be told from another.
        if let Some((index, voters)) = member
            && !self.run_id.is_empty()
        {
            let label = format!("{} ({})", endpoint.name, endpoint.address);
            // A connection is admitted once: when it is made, or when its master joins a client.
            let _ = self.admission.set(voters.admit(*index, &label, &self.run_id)?);
        }
        Ok(())
    }

    /// The connection cannot be used any more.
    pub(super) fn break_off(&self) {
        self.broken.cancel();
    }
}

/// Which master of which client this is: nobody's before it has joined one.
#[derive(Debug, Default)]
pub(super) struct Membership(Mutex<Option<(usize, Arc<Voters>)>>);

impl Membership {
    fn lock(&self) -> MutexGuard<'_, Option<(usize, Arc<Voters>)>> {
        // Only ever replaced: a panic cannot leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins a client. A connection to another master's server ends.
    pub(super) fn join(
        &self,
        index: usize,
        voters: &Arc<Voters>,
        endpoint: &Endpoint,
        state: &watch::Sender<LinkState>,
    ) {
        // Held until the connection is admitted: none is published meanwhile.
        let mut member = self.lock();
        *member = Some((index, Arc::clone(voters)));
        let LinkState::Up(link) = state.borrow().clone() else { return };
        if let Err(error) = link.seek_admission(member.as_ref(), endpoint) {
            state.send_replace(LinkState::Down(error));
            link.break_off();
        }
    }

    /// Publishes a connection, if the client admits it.
    fn publish(
        &self,
        link: Link,
        endpoint: &Endpoint,
        state: &watch::Sender<LinkState>,
    ) -> Result<Arc<Link>, MasterError> {
        let member = self.lock();
        link.seek_admission(member.as_ref(), endpoint)?;
        let link = Arc::new(link);
        state.send_replace(LinkState::Up(Arc::clone(&link)));
        Ok(link)
    }
}

/// Keeps a connection to `endpoint` until `stop`, and publishes by `state` whether there is one.
pub(super) async fn keep_connected(
    endpoint: Endpoint,
    subscriptions: Arc<Subscriptions>,
    membership: Arc<Membership>,
    state: Arc<watch::Sender<LinkState>>,
    stop: CancellationToken,
) {
    let mut failures = Failures::default();
    loop {
        let connected = tokio::select! {
            () = stop.cancelled() => return,
            done = tokio::time::timeout(CONNECT_TIMEOUT, connect(&endpoint, &subscriptions)) => done,
        };
        let published =
            connected.unwrap_or(Err(MasterError::Timeout)).and_then(|link| membership.publish(link, &endpoint, &state));
        let error = match published {
            Ok(link) => {
                tracing::debug!(master = endpoint.name, address = %endpoint.address, run_id = link.run_id, "connected");
                // Messages about releases were missed meanwhile.
                subscriptions.tell_gap();
                let error = tokio::select! {
                    () = stop.cancelled() => return,
                    error = until_broken(&link, endpoint.marker) => error,
                };
                failures.note_link(link.has_answered(), link.is_unanswered());
                error
            }
            Err(error) => error,
        };
        if failures.in_a_row == 0 {
            tracing::warn!(master = endpoint.name, address = %endpoint.address, %error, "master gives no votes");
        }
        state.send_replace(LinkState::Down(error));
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(failures.pause()) => {}
        }
        failures.in_a_row += 1;
    }
}

/// Waits until a connection cannot be used any more, and says why. Checks once a minute whether the server is still fit:
/// what was right when it connected may be configured otherwise.
async fn until_broken(link: &Link, marker: Marker) -> MasterError {
    let unfit = async {
        let mut connection = link.connection.clone();
        loop {
            tokio::time::sleep(CHECK_PERIOD).await;
            match tokio::time::timeout(CONNECT_TIMEOUT, fitness::check(&mut connection, marker)).await {
                Ok(Ok(_)) => link.answered(),
                Ok(Err(error @ (MasterError::Misconfigured(_) | MasterError::Auth(_)))) => return error,
                // The calls find out what this is.
                Ok(Err(_)) | Err(_) => {}
            }
        }
    };
    tokio::select! {
        () = link.broken.cancelled() => MasterError::Unreachable("connection lost".to_owned()),
        error = unfit => error,
    }
}

/// Failures to connect, or to be answered on a connection, in a row.
#[derive(Debug, Default)]
struct Failures {
    in_a_row: u32,
    /// Whether the last connection had calls and no answers.
    is_unanswered: bool,
}

impl Failures {
    /// A connection has ended. Only an answered call shows that the server can do its work: a handshake has more time.
    fn note_link(&mut self, has_answered: bool, is_unanswered: bool) {
        self.is_unanswered = is_unanswered;
        if has_answered {
            self.in_a_row = 0;
        }
    }

    /// A random pause before the next connection.
    fn pause(&self) -> Duration {
        let longest = if self.is_unanswered { LONGEST_PAUSE_UNANSWERED } else { LONGEST_PAUSE };
        let bound = longest.min(SHORTEST_PAUSE * 2_u32.saturating_pow(self.in_a_row.min(16) + 1));
        rand::rng().random_range(SHORTEST_PAUSE..=bound)
    }
}

async fn connect(endpoint: &Endpoint, subscriptions: &Arc<Subscriptions>) -> Result<Link, MasterError> {
    let broken = CancellationToken::new();
    let on_push = {
        let (broken, subscriptions) = (broken.clone(), Arc::clone(subscriptions));
        move |push: redis::PushInfo| {
            if push.kind == PushKind::Disconnection {
                broken.cancel();
            }
            subscriptions.route(&push);
            Ok::<_, std::convert::Infallible>(())
        }
    };
    // The timeouts are the engine's: one for the whole handshake, and a deadline for each call.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(QUEUE_LENGTH)
        .set_push_sender(on_push);
    let client = endpoint.client().await?;
    let mut connection =
        client.get_multiplexed_async_connection_with_config(&config).await.map_err(|e| master_error(&e))?;
    let run_id = fitness::check(&mut connection, endpoint.marker).await?;
    script::load(&mut connection).await?;
    let channels = subscriptions.channels();
    if !channels.is_empty() {
        match connection.subscribe(channels).await.map_err(|e| master_error(&e)) {
            // Without permission to a channel its waiters hear nothing, and check the lock instead. All else works.
            Err(MasterError::Auth(why)) => {
                tracing::warn!(master = endpoint.name, why, "waits without news of releases");
            }
            subscribed => subscribed?,
        }
    }
    Ok(Link {
        connection,
        run_id,
        made_at: Instant::now(),
        has_answered: AtomicBool::new(false),
        timeouts: AtomicU32::new(0),
        silent_since: AtomicU64::new(0),
        broken,
        admission: OnceLock::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_before_a_connection_grows_to_a_second_and_to_four_where_calls_stay_unanswered() {
        for (is_unanswered, longest) in [(false, 1), (true, 4)] {
            for in_a_row in 0..40 {
                let pause = Failures { in_a_row, is_unanswered }.pause();
                assert!(pause >= Duration::from_millis(100), "{pause:?}");
                let bound = Duration::from_secs(longest).min(Duration::from_millis(200) * 2_u32.pow(in_a_row.min(10)));
                assert!(pause <= bound, "{pause:?} after {in_a_row} failures");
            }
        }
    }

    #[test]
    fn only_an_answered_call_ends_a_row_of_failures() {
        let mut failures = Failures { in_a_row: 3, is_unanswered: false };
        for (has_answered, is_unanswered, expected) in
            [(false, true, (3, true)), (false, false, (3, false)), (true, false, (0, false))]
        {
            failures.note_link(has_answered, is_unanswered);
            assert_eq!((failures.in_a_row, failures.is_unanswered), expected);
        }
    }
}
