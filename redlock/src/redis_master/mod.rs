//! A Redis server as a master: three plain commands to acquire, a script for the rest, one connection for all.
//!
//! # Connection
//! It is made in the background, within a second, and carries the calls of all locks and the messages about their
//! releases. It is closed when three calls in a row had no answer and nothing has arrived for three call timeouts. Calls
//! then fail at once with [`MasterError::Unreachable`], and the engine reconnects after a pause of 100 ms to 1 s, or
//! to 4 s where the server accepted connections and answered no call in time. Only the very first connection is waited
//! for, until the call times out.
//!
//! # What a server must be
//! Redis 6.2 or later (RESP3 and `ZADD GT`; the tests run on 7), or Valkey: a server on its own, without a replica that
//! takes over, with `maxmemory-policy noeviction`, and able to run scripts. At each connection, and once a minute on it,
//! the engine refuses replicas, sentinels, servers in cluster mode, servers that still load their data, servers with
//! another eviction policy, and, where a [`Marker`] is required, servers whose `INFO` shows no `run_id`. A server without
//! an eviction policy in its `INFO` (a proxy hides it) is believed to have the right one. What servers keep on disk, and
//! whether replicas follow them, is not checked. For a server that nobody arms, see [`Marker::Unused`].
//!
//! # Scripts
//! At each connection every script is run once without keys, which does nothing: so the server knows it, and a call by
//! `EVALSHA` is one round trip. After a `SCRIPT FLUSH` a call is answered `NOSCRIPT`, and `EVAL` follows within the same
//! call timeout. A server on which a client may not `EVAL` is used where an administrator has loaded the [`scripts`].
//!
//! # Permissions of a user
//! For the locks of a namespace `a`, in the words of `ACL SETUSER`: `~redlock:a/*`, `~redlock:a#fences`,
//! `~redlock:a#queue/*`, `%R~redlock:armed`, `&redlock:a/*`, and the commands `set get del pttl pexpire zadd zscore
//! zrank zrange zrem zpopmin time publish subscribe unsubscribe hello auth info eval evalsha`. Without the channels a
//! waiter hears of no release, and checks the lock once a second instead.

mod endpoint;
mod error;
mod fitness;
mod link;
mod script;
mod subscriptions;
mod url;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{RedisResult, Value};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::endpoint::{Address, ClientCertificate, Credentials, Endpoint, Marker, TlsFiles};
use self::error::master_error;
use self::link::{Link, LinkState, Membership};
pub use self::script::scripts;
use self::script::{ENQUEUE, READ, RELEASE, RENEW, SEED, Script};
use self::subscriptions::{Subscriptions, Waiter};
pub use self::url::InvalidEndpoint;
use crate::claim::Claim;
use crate::error::MasterError;
use crate::fence::Token;
use crate::key::{ARMED_KEY, LockKey};
use crate::marker;
use crate::master::{Extension, Heard, Master, Place, QUEUE_LIFETIME, Queued, Reading, ReleaseAnswer, Vote};
use crate::voters::Voters;

/// A call timeout that is noticed later than this shows that the process was not running.
const STALL: Duration = Duration::from_millis(5);

/// Whether the server is connected and fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The first connection is not made yet.
    Connecting,
    /// Connected to the server process with this `run_id`.
    Up {
        /// Name of the server process: another one after each restart.
        run_id: String,
    },
    /// Not connected, with the reason.
    Down(MasterError),
}

/// A Redis server as a master. All locks of the process share its one connection, which is made again in the background
/// whenever it breaks.
#[derive(Debug)]
pub struct RedisMaster {
    endpoint: Endpoint,
    membership: Arc<Membership>,
    state: Arc<watch::Sender<LinkState>>,
    subscriptions: Arc<Subscriptions>,
    /// SUBSCRIBE and UNSUBSCRIBE of a channel must reach the server in the order in which its waiters came and left.
    subscribing: Arc<tokio::sync::Mutex<()>>,
    _stop: DropGuard,
}

impl RedisMaster {
    /// Connects in the background of the current tokio runtime, until the value is dropped.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn connect(endpoint: Endpoint) -> Self {
        let state = Arc::new(watch::Sender::new(LinkState::Connecting));
        let (membership, subscriptions) = (Arc::<Membership>::default(), Arc::<Subscriptions>::default());
        let stop = CancellationToken::new();
        tokio::spawn(link::keep_connected(
            endpoint.clone(),
            Arc::clone(&subscriptions),
            Arc::clone(&membership),
            Arc::clone(&state),
            stop.clone(),
        ));
        Self { endpoint, membership, state, subscriptions, subscribing: Arc::default(), _stop: stop.drop_guard() }
    }

    /// Whether the server is connected, as of the last call or attempt to connect.
    #[must_use]
    pub fn health(&self) -> Health {
        match &*self.state.borrow() {
            LinkState::Connecting => Health::Connecting,
            LinkState::Up(link) => Health::Up { run_id: link.run_id.clone() },
            LinkState::Down(error) => Health::Down(error.clone()),
        }
    }

    /// The connection, at once. Only the very first is waited for, until `deadline`.
    async fn link(&self, deadline: Instant) -> Result<Arc<Link>, MasterError> {
        if let LinkState::Up(link) = &*self.state.borrow() {
            return Ok(Arc::clone(link));
        }
        let mut state = self.state.subscribe();
        let known = state.wait_for(|s| !matches!(s, LinkState::Connecting));
        match tokio::time::timeout_at(deadline, known).await {
            Ok(Ok(state)) => match &*state {
                LinkState::Up(link) => Ok(Arc::clone(link)),
                LinkState::Down(error) => Err(error.clone()),
                LinkState::Connecting => Err(MasterError::Timeout),
            },
            Ok(Err(_)) => Err(MasterError::Unreachable("the client was shut down".to_owned())),
            Err(_) => Err(MasterError::Timeout),
        }
    }

    /// Makes a call on the connection, until `deadline`. Longer only if this process itself was stopped meanwhile.
    async fn call<F, R, T>(&self, deadline: Instant, request: F) -> Result<T, MasterError>
    where
        F: FnOnce(MultiplexedConnection, Arc<Link>) -> R,
        R: Future<Output = RedisResult<T>>,
    {
        let link = self.link(deadline).await?;
        let sent_at = Instant::now();
        let timeout = deadline.saturating_duration_since(sent_at);
        let mut request = std::pin::pin!(request(link.connection.clone(), Arc::clone(&link)));
        let mut answer = tokio::time::timeout_at(deadline, &mut request).await;
        if answer.is_err() && deadline.elapsed() > STALL {
            // This process was stopped. The answer may be there, unread, and the master had no fair chance.
            answer = tokio::time::timeout(timeout, &mut request).await;
        }
        match answer {
            Ok(Ok(answer)) => {
                link.answered();
                Ok(answer)
            }
            Ok(Err(error)) => {
                if error.is_unrecoverable_error() {
                    link.break_off();
                } else {
                    // Whatever the error is, the server answers.
                    link.answered();
                }
                Err(master_error(&error))
            }
            Err(_) => {
                link.timed_out(sent_at, timeout);
                Err(MasterError::Timeout)
            }
        }
    }

    /// Runs a script that answers [`Extension`] as a number.
    async fn run_extension(
        &self,
        script: &'static Script,
        claim: &Claim,
        deadline: Instant,
    ) -> Result<Extension, MasterError> {
        let required = self.endpoint.marker == Marker::Required;
        let answer: i64 = self
            .call(deadline, async |connection, link| {
                let run_id = if required { link.run_id.as_str() } else { "" };
                let ttl = millis(claim.ttl()).to_string();
                let (key, token) = (claim.key(), claim.owner().token().to_string());
                let keys = [key.redis_key(), key.fences_key(), key.kept_key()];
                script.run(connection, &keys, &[claim.value(), &ttl, run_id, &token]).await
            })
            .await?;
        match answer {
            1 => Ok(Extension::Extended),
            0 => Ok(Extension::Missing),
            -1 => Ok(Extension::HeldByOther),
            -2 => Err(MasterError::Quarantined),
            -3 => Err(MasterError::TtlRefused),
            other => Err(MasterError::Protocol(format!("{} answered {other}", script.name()))),
        }
    }
}

/// Whole milliseconds, rounded down: a key must not outlive what its holder asked for.
fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

impl Master for RedisMaster {
    fn name(&self) -> &str {
        &self.endpoint.name
    }

    fn join(&self, index: usize, voters: &Arc<Voters>) {
        self.membership.join(index, voters, &self.endpoint, &self.state);
    }

    async fn reachable(&self) {
        // It never fails: this value keeps the sender.
        let _ = self.state.subscribe().wait_for(|state| matches!(state, LinkState::Up(_))).await;
    }

    async fn acquire(&self, claim: &Claim, deadline: Instant) -> Result<Vote, MasterError> {
        let (key, ttl) = (claim.key(), millis(claim.ttl()));
        if ttl == 0 {
            return Err(MasterError::TtlRefused);
        }
        let required = self.endpoint.marker == Marker::Required;
        let count = if required { 3 } else { 2 };
        let mut commands = redis::Pipeline::with_capacity(count);
        let mut set = redis::Cmd::with_capacity(6, key.redis_key().len() + claim.value().len() + 32);
        set.arg("SET").arg(key.redis_key()).arg(claim.value()).arg("NX").arg("PX").arg(ttl);
        commands.add_command(set);
        let mut vote = redis::Cmd::with_capacity(6, key.fences_key().len() + key.redis_key().len() + 32);
        vote.arg("ZADD")
            .arg(key.fences_key())
            .arg("GT")
            .arg("CH")
            .arg(claim.owner().token().get())
            .arg(key.redis_key());
        commands.add_command(vote);
        if required {
            commands.cmd("GET").arg(ARMED_KEY);
        }
        let (answers, link) = self
            .call(deadline, async |mut connection, link| {
                Ok((connection.req_packed_commands(&commands, 0, count).await?, link))
            })
            .await?;
        // An error in any of the three is the master's answer, even where the key was set: the caller releases it.
        let mut answers = answers.into_iter().map(|a| a.extract_error().map_err(|e| master_error(&e)));
        let mut next =
            || answers.next().unwrap_or_else(|| Err(MasterError::Protocol("an answer is missing".to_owned())));
        let (set, fence) = (next()?, next()?);
        match set {
            Value::Okay => {}
            Value::Nil => return Ok(Vote::HeldByOther),
            other => return Err(MasterError::Protocol(format!("SET answered {other:?}"))),
        }
        if required {
            let armed = redis::from_redis_value::<Option<String>>(next()?).ok().flatten();
            marker::check(armed.as_deref(), &link.run_id, ttl)?;
        }
        match fence {
            Value::Int(1) => Ok(Vote::Granted),
            Value::Int(0) => Ok(Vote::StaleToken),
            other => Err(MasterError::Protocol(format!("ZADD answered {other:?}"))),
        }
    }

    async fn renew(&self, claim: &Claim, deadline: Instant) -> Result<Extension, MasterError> {
        self.run_extension(&RENEW, claim, deadline).await
    }

    async fn seed(&self, claim: &Claim, deadline: Instant) -> Result<Extension, MasterError> {
        self.run_extension(&SEED, claim, deadline).await
    }

    async fn release(&self, claim: &Claim, wake: bool, deadline: Instant) -> Result<ReleaseAnswer, MasterError> {
        let key = claim.key();
        let keys = [key.redis_key(), key.queue_key(), key.entered_key(), key.fences_key(), key.kept_key()];
        let (lifetime, ttl) = (millis(QUEUE_LIFETIME).to_string(), millis(claim.ttl()).to_string());
        let args = [claim.value(), if wake { "1" } else { "0" }, &lifetime, &ttl];
        match self.call(deadline, async |connection, _| RELEASE.run::<i64>(connection, &keys, &args).await).await? {
            0 => Ok(ReleaseAnswer::NotOwner),
            1 => Ok(ReleaseAnswer::Deleted),
            2 => Ok(ReleaseAnswer::HandedOn),
            other => Err(MasterError::Protocol(format!("release answered {other}"))),
        }
    }

    async fn read(&self, key: &LockKey, deadline: Instant) -> Result<Reading, MasterError> {
        let keys = [key.redis_key(), key.fences_key()];
        let (owner, remaining, fence) =
            self.call(deadline, async |connection, _| READ.run(connection, &keys, &[]).await).await?;
        Ok(reading(owner, remaining, fence))
    }

    async fn enqueue(&self, key: &LockKey, place: &Place, deadline: Instant) -> Result<Queued, MasterError> {
        let keys = [key.redis_key(), key.queue_key(), key.entered_key()];
        let (priority, waited) = (place.priority().to_string(), place.waited().as_micros().to_string());
        let lifetime = millis(QUEUE_LIFETIME).to_string();
        let args = [place.name(), &priority, &waited, &lifetime];
        let (owner, remaining, ahead) =
            self.call(deadline, async |connection, _| ENQUEUE.run(connection, &keys, &args).await).await?;
        Ok(Queued { reading: reading(owner, remaining, None), ahead })
    }

    async fn dequeue(&self, key: &LockKey, place: &Place, deadline: Instant) -> Result<(), MasterError> {
        let mut commands = redis::pipe();
        for set in [key.queue_key(), key.entered_key()] {
            commands.cmd("ZREM").arg(set).arg(place.name()).ignore();
        }
        self.call(deadline, async |mut connection, _| commands.exec_async(&mut connection).await).await
    }

    async fn subscribe(
        &self,
        key: &LockKey,
        inbox: Token,
        index: usize,
        wake: mpsc::UnboundedSender<Heard>,
        deadline: Instant,
    ) -> Result<(), MasterError> {
        let channel = key.channel(inbox);
        let Ok(turn) = tokio::time::timeout_at(deadline, Arc::clone(&self.subscribing).lock_owned()).await else {
            return Err(MasterError::Timeout);
        };
        // Added to the list before the server is asked: a connection made meanwhile subscribes to the whole list.
        let first = self.subscriptions.add(&channel, Waiter { index, wake: wake.clone() });
        tokio::spawn(unsubscribe_when_closed(
            Arc::clone(&self.subscriptions),
            Arc::clone(&self.subscribing),
            self.state.subscribe(),
            channel.clone(),
            wake,
        ));
        let subscribed = if first {
            self.call(deadline, async |mut connection, _| connection.subscribe(channel).await).await
        } else {
            Ok(())
        };
        drop(turn);
        subscribed
    }
}

async fn unsubscribe_when_closed(
    subscriptions: Arc<Subscriptions>,
    subscribing: Arc<tokio::sync::Mutex<()>>,
    state: watch::Receiver<LinkState>,
    channel: String,
    wake: mpsc::UnboundedSender<Heard>,
) {
    wake.closed().await;
    let _turn = subscribing.lock().await;
    if subscriptions.remove(&channel, &wake) {
        let link = match &*state.borrow() {
            LinkState::Up(link) => Arc::clone(link),
            // A connection made later does not subscribe to it.
            LinkState::Connecting | LinkState::Down(_) => return,
        };
        let mut connection = link.connection.clone();
        // The answer is not needed, but a dead connection must not block the next subscriptions.
        let _ = tokio::time::timeout(Duration::from_secs(1), connection.unsubscribe(channel)).await;
    }
}

/// What a script read of a lock: owner, time to live in milliseconds (negative without an end), fence.
fn reading(owner: Option<Vec<u8>>, remaining: i64, fence: Option<f64>) -> Reading {
    // Scores are whole numbers up to 2^53, exact in a double. A larger one leaves no token: it counts as the largest.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let fence = fence.and_then(|f| Token::new((f as u64).min(Token::MAX)));
    // Some libraries write random bytes, which are no text: these are shown escaped.
    let text = |value: Vec<u8>| String::from_utf8(value).unwrap_or_else(|e| e.as_bytes().escape_ascii().to_string());
    Reading { owner: owner.map(text), remaining: u64::try_from(remaining).ok().map(Duration::from_millis), fence }
}
