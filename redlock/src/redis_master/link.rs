//! The one connection to a server: made, checked, closed and made again in the background.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rand::RngExt as _;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, PushKind, RedisError, ServerErrorKind};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::endpoint::{Endpoint, tls_error};
use super::subscriptions::Subscriptions;
use crate::error::MasterError;

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
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// A live connection to one server process.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    /// Name of the server process, read after connecting. A restart always breaks the connection.
    pub(super) run_id: String,
    made_at: Instant,
    /// Calls without an answer since the last one.
    timeouts: AtomicU32,
    /// When the first of them was sent, in microseconds since the connection was made.
    silent_since: AtomicU64,
    broken: CancellationToken,
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

    /// The connection cannot be used any more.
    pub(super) fn break_off(&self) {
        self.broken.cancel();
    }
}

/// Keeps a connection to `endpoint` until `stop`, and publishes by `state` whether there is one.
pub(super) async fn keep_connected(
    endpoint: Endpoint,
    subscriptions: Arc<Subscriptions>,
    state: watch::Sender<LinkState>,
    stop: CancellationToken,
) {
    let mut failures = 0;
    loop {
        let connected = tokio::select! {
            () = stop.cancelled() => return,
            done = tokio::time::timeout(CONNECT_TIMEOUT, connect(&endpoint, &subscriptions)) => done,
        };
        let error = match connected.unwrap_or(Err(MasterError::Timeout)) {
            Ok(link) => {
                let broken = link.broken.clone();
                tracing::debug!(master = endpoint.name, address = %endpoint.address, run_id = link.run_id, "connected");
                state.send_replace(LinkState::Up(Arc::new(link)));
                // Messages about releases were missed meanwhile.
                subscriptions.tell_gap();
                failures = 0;
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = broken.cancelled() => MasterError::Unreachable("connection lost".to_owned()),
                }
            }
            Err(error) => error,
        };
        if failures == 0 {
            tracing::warn!(master = endpoint.name, address = %endpoint.address, %error, "master gives no votes");
        }
        state.send_replace(LinkState::Down(error));
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(backoff(failures)) => {}
        }
        failures += 1;
    }
}

fn backoff(failures: u32) -> Duration {
    let (shortest, longest) = BACKOFF;
    let bound = longest.min(shortest * 2_u32.saturating_pow(failures.min(16) + 1));
    rand::rng().random_range(shortest..=bound)
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
    let info: redis::InfoDict = redis::cmd("INFO").query_async(&mut connection).await.map_err(|e| master_error(&e))?;
    let field = |name: &str| info.get::<String>(name).unwrap_or_default();
    if field("role") == "slave" {
        return Err(MasterError::Misconfigured("a replica, not a master".to_owned()));
    }
    if field("loading") == "1" {
        return Err(MasterError::Misconfigured("still loading its data".to_owned()));
    }
    // Any other policy would evict a lock that somebody holds once memory is short.
    let policy = field("maxmemory_policy");
    if !matches!(policy.as_str(), "noeviction" | "") {
        return Err(MasterError::Misconfigured(format!("its maxmemory-policy is {policy}, and has to be noeviction")));
    }
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
        run_id: field("run_id"),
        made_at: Instant::now(),
        timeouts: AtomicU32::new(0),
        silent_since: AtomicU64::new(0),
        broken,
    })
}

/// The error of a master, from an error of the Redis library.
pub(super) fn master_error(error: &RedisError) -> MasterError {
    // The text of an I/O or server error carries no password: the library keeps credentials out of its errors.
    match error.kind() {
        ErrorKind::Io => tls_error(error).unwrap_or_else(|| MasterError::Unreachable(error.to_string())),
        ErrorKind::AuthenticationFailed | ErrorKind::Server(ServerErrorKind::NoPerm) => {
            MasterError::Auth(error.to_string())
        }
        ErrorKind::Server(ServerErrorKind::BusyLoading) => {
            MasterError::Misconfigured("still loading its data".to_owned())
        }
        ErrorKind::Server(ServerErrorKind::ReadOnly) => {
            MasterError::Misconfigured("a replica, not a master".to_owned())
        }
        ErrorKind::RESP3NotSupported => MasterError::Misconfigured("Redis 6 or later is needed (RESP3)".to_owned()),
        _ => match error.code() {
            Some("NOAUTH" | "WRONGPASS") => MasterError::Auth(error.to_string()),
            Some("MISCONF" | "NOREPLICAS") => MasterError::Misconfigured(error.to_string()),
            Some("OOM") => MasterError::OutOfMemory,
            _ => MasterError::Protocol(error.to_string()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_before_a_reconnect_grows_to_two_seconds() {
        for failures in 0..40 {
            let pause = backoff(failures);
            assert!(pause >= Duration::from_millis(100), "{pause:?}");
            let bound = Duration::from_secs(2).min(Duration::from_millis(200) * 2_u32.pow(failures.min(10)));
            assert!(pause <= bound, "{pause:?} after {failures} failures");
        }
    }
}
