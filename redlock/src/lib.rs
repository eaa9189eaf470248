//! The lock engine: leases on a majority of independent Redis masters, by the RedLock algorithm. It knows nothing of
//! Kubernetes.
//!
//! The holder of a lock has a *lease* on more than half of N *masters*: Redis servers that know nothing of each other. A
//! *watchdog* renews the lease until it is released or lost. The engine follows the [RedLock page] and adds what the
//! algorithm's critics ask for: a validity that the holder checks on its own clock, fencing tokens that the masters vote
//! on, masters that do not vote after a restart until they can do no harm, a queue, and a loss that the holder learns of
//! in time.
//!
//! This page says what users may rely on. `docs/algorithm.md` has the rules behind it, and what each rests on.
//! `docs/model.md` shows what goes wrong without any one of them, and `docs/benchmarks.md` compares the engine with other
//! libraries.
//!
//! [RedLock page]: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
//!
//! # In short
//! Everything runs on tokio, with its time and I/O drivers, on either of its schedulers.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use redlock_engine::{Client, Endpoint, LeaseOptions, LockKey, RedisMaster, Token, Wait};
//!
//! # async fn write_report(_fence: Token) {}
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Five independent servers: no replicas, no cluster.
//! let mut masters = Vec::new();
//! for i in 0..5 {
//!     let endpoint: Endpoint = format!("redis://redis-{i}.example.net").parse()?;
//!     masters.push(RedisMaster::connect(endpoint));
//! }
//! let client = Client::new(masters, Duration::from_millis(50))?;
//!
//! // Takes the lock for 30 s, renewed every 10 s. Waits up to a minute while another holds it.
//! let key = LockKey::new("billing", "nightly-report")?;
//! let options = LeaseOptions::new("worker-7", Duration::from_secs(30));
//! let lease = client.acquire(&key, &options, Wait::For(Duration::from_secs(60))).await?;
//!
//! // The store of the report refuses tokens smaller than the largest that it has seen. The work is cut off where this
//! // process is not the holder any more.
//! if let Err(loss) = lease.run(write_report(lease.owner().token())).await {
//!     eprintln!("stopped half way: {loss}");
//! }
//!
//! let released = lease.release().await;
//! println!("released the lock: {released:?}");
//! client.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # The grant: a majority
//! [`Client::try_acquire`] asks all masters at once. It waits for a master no longer than the client's call timeout, and
//! for none once the vote is decided. Where it lost the vote, it reads who holds the lock. What a failed attempt has set is released, also on masters that did not answer. The
//! majority is one of the *configured* masters ([`quorum`]): every client of a lock must be given the same masters, and
//! each master must be a server of its own. Where two addresses lead to one server, that server has one vote, and the
//! second master is [`MasterError::Misconfigured`] ([`voters`]). An odd number is best; one more, an even number,
//! tolerates no more failures.
//!
//! A master that does not answer costs its call timeout a few times, then nothing: its connection is closed, calls fail
//! at once, and the engine reconnects in the background ([`redis_master`]).
//!
//! # Validity: checked, not assumed
//! A lease is valid for its TTL, less 1 % and 2 ms, from *before* its question was sent ([`validity`]). [`Lease::is_held`]
//! and [`Lease::validity`] compare that with the monotonic clock at the moment of asking: no network, no timer, no
//! waiting. Once false it stays false. Ask directly before each act that needs the lock. If you need an uninterrupted
//! time, set [`LeaseOptions::min_validity`]: a grant with less left is released ([`Error::TooSlow`]).
//!
//! # Fencing: tokens that rise
//! Every grant has a [`Token`], larger than that of every earlier grant of the lock: masters vote on it together with the
//! lock ([`fence`]). Pass it on with each write, and let the guarded resource refuse tokens smaller than the largest that
//! it has seen (`docs/algorithm.md` has the SQL). This is what holds when clocks fail. Locks that another library took
//! have no token.
//!
//! A master keeps the token of a lock for ten minutes after the last renewal or release, or for twice the longest lease
//! where that is longer (twice the cap of its marker). Then it may be trimmed: renewals and releases do that now and then,
//! in the same call. Where tokens have run out, which only a broken or hostile client brings about, a wait ends with
//! [`Error::TokensRunOut`].
//!
//! # Waiting: who is next
//! [`Client::acquire`] waits in a queue that every master keeps for the lock, across processes: by
//! [`priority`](LeaseOptions::priority), then by time of waiting. A release tells the first contender, and the next one,
//! which gives the first a head start. Every contender also checks the lock at least once a second, in case a message was
//! missed or the holder has died.
//!
//! The order is a promise of fairness, never of safety, and it is not absolute. The first attempt of an
//! [`acquire`](Client::acquire), a [`try_acquire`](Client::try_acquire) and other libraries take a lock that is free, also
//! where contenders wait for it. Of the contenders of one client, one at a time waits on the masters, with its own
//! priority; the others wait in the local queue, in the same order. It passes its turn on to a higher priority that comes
//! later, and where its own options cannot be met now. Lower priorities wait for as long as higher ones come.
//!
//! A wait that nobody polls, in a `select!` that does something else, loses its turn at its deadline, and after about two
//! seconds in any case. It goes back to its rank when it is polled again, and is granted nothing meanwhile. A contender
//! that was killed holds nobody up either: its place in the masters' queues lapses after five seconds.
//!
//! # The watchdog: renewal
//! With [`Renewal::Every`] each lease has a task that renews it on all masters, back to the full TTL, and seeds masters
//! that lack it, so that the early expiry of one breaks nothing. A renewal has three outcomes. *Renewed* by a majority.
//! *Lost* when a majority does not have it any more. *Unknown* otherwise: then it is tried again after 50 to 150 ms, until
//! validity ends. A renewal never extends a lease that is over, and nothing is renewed once a release was asked for.
//!
//! [`LeaseOptions::max_renewals`] limits how long a holder can keep a lock. The holder is told ([`Loss::MaxRenewals`])
//! when the next renewal would be due, while the masters still have the lock. It has about the TTL less the period to undo
//! its work. With [`Renewal::None`] the lease ends after its TTL.
//!
//! # Loss: told in time
//! [`Lease::ended`] ends with a [`Loss`] when a majority does not have the lease, and at the latest when its validity is
//! over: by the clock alone, before another can be granted the lock. A lease that could not be renewed says what the masters
//! said the last time ([`Loss::Expired`]). [`Lease::state`] is the same as a `watch` channel, with every renewal, and
//! [`Lease::run`] runs a future that is dropped when the lease is lost. All of these need the runtime to poll them in time;
//! [`Lease::is_held`] does not.
//!
//! # Release
//! [`Lease::release`] stops the watchdog first, deletes the key where it still is this grant's, and returns what it found
//! as [`Released`]. A dropped lease is released in the background. A master that did not confirm it is sent it again as
//! soon as it can be reached, until the key has ended by its TTL: the lock is free within about a second of its masters
//! being back. At most 4096 releases are kept for a master. A lease that is bound to no variable is dropped in the same
//! statement; the compiler warns of that. One that is leaked ([`std::mem::forget`]) is renewed until the client is shut
//! down, or until the runtime ends. [`Lease::abandon`] leaves the lock on the masters,
//! for another process to [`adopt`](Client::adopt): same owner, same token. A grant that several processes renew is
//! [shared](LeaseOptions::is_shared).
//!
//! # Cancellation
//! Every future here may be dropped at any await. A dropped attempt is released, a dropped wait leaves its queue and its
//! channels, a dropped release continues. A dropped [`adopt`](Client::adopt) leaves the grant to end by itself. Tasks of
//! the runtime do all of that: what is lost when a runtime ends is left to its TTL.
//!
//! # Shutdown
//! Call [`Client::shutdown`] before the process ends. Waits end with [`Error::ShutDown`], leases are released, and calls
//! under way to the masters arrive, within three call timeouts. Masters that have not confirmed a release are sent it once
//! more. Without a shutdown, a lock that was released the moment before may stay on masters that had not answered yet.
//!
//! # Several locks
//! [`Client::acquire_all`] takes several locks in the order of their keys, so that two clients that ask for the same locks
//! do not wait for each other for ever. [`Leases`] are held while all of them are, and are released together. Where one is
//! not granted, those that were taken are released.
//!
//! # Reentrancy
//! [`Reentrant`] counts holds of the same identity in the process, and releases the lock with the last [`Hold`]. Tasks
//! that must exclude each other must not share an identity there.
//!
//! # Errors
//! An [`Error`] says why an operation failed, and where masters failed what each said ([`MasterError`]). Each error has a
//! [`Reason`], one of a few words, for metrics and conditions. A lock that another holds ([`Error::Contended`], by whom and
//! for how long) is told from one that nobody holds ([`Error::Split`]). A key that another program set without an expiry
//! is held without an end: a waiting contender logs a warning, and waits until somebody deletes the key.
//! [`Client::acquire`] tries again after all errors until its time is over, except for [`Error::Invalid`] and
//! [`Error::TokensRunOut`], which will not change, and [`Error::ShutDown`]. A lease that ends is no error but a [`Loss`].
//! Masters and timeouts with which no client works are refused when it is made ([`ClientError`]).
//!
//! # What it rests on
//! - **Clocks run alike:** the clocks of holder and masters differ by less than 1 % over a TTL. What they show does not
//!   matter.
//! - **Clocks do not stand still.** Linux does not count the time in which a machine is suspended on its monotonic clock,
//!   and many virtual machines do not count the time in which they are paused or moved. A holder that wakes up there
//!   still believes that it holds the lock, until its next renewal.
//! - **Master clocks do not jump, on a majority at once.** Redis counts expiry by its wall clock. A clock that jumps ahead
//!   ends leases early on its master. A minority of such masters harms nothing.
//! - **A master remembers, or stays away.** A master that lost its data while a lease runs must not vote until the longest
//!   lease is over. [`Marker::Required`] enforces that. With [`Marker::Unused`] the administrator of the server must ensure
//!   it, and also that the server does not fail over to a replica.
//! - **Tokens** need no clock while masters keep their data. Renewals give the holder's token to masters that lack it, so
//!   that masters that are restarted one after the other under a holder need none either. Where a master lost a token
//!   otherwise, the contenders' wall clocks must agree to within the time for which it stays away less the longest
//!   validity; where it was trimmed, to within the time for which it is kept.
//!
//! # What it does not protect from
//! A process that sleeps between [`Lease::is_held`] and its write cannot know that it has slept, as
//! [Kleppmann](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html) says: no lock with a time limit
//! stops that write. Only the guarded resource can, by the token, and it does from the *first write* of the next holder
//! on. Where nothing can check tokens, a lock makes double work rare, not impossible.
//!
//! # Tuning
//! - [`ttl`](LeaseOptions::ttl), usually 10 to 30 s: how long the lock outlasts a holder that died. A short TTL means many
//!   renewals, and losses on busy machines.
//! - The call timeout of [`Client::new`], usually 5 to 50 ms, at most a minute: above the slowest round trip to a healthy master, far below
//!   the TTL. A vote may take that long, and a grant loses what the vote took.
//! - The period of [`Renewal::Every`], a third of the TTL: how often a renewal may fail before the lease is lost. Each
//!   renewal costs a small script on every master.
//! - [`min_validity`](LeaseOptions::min_validity), zero: the longest piece of work that is done without another check.
//! - [`max_renewals`](LeaseOptions::max_renewals), no limit: against holders that hang while their watchdog lives.
//! - [`priority`](LeaseOptions::priority), 0: only where lower ones may starve.
//!
//! # Layout
//! Each module imports only modules below it.
//! - `client`: the [`Client`], which only composes; `acquire_all`: several locks, and `reentrant`: [`Reentrant`] locks, on
//!   top of it
//! - The operations, which send requests and act on verdicts: `acquire` (one vote), `wait` (for a lock that another
//!   holds), `adopt`, `watchdog` (renews a [`Lease`]), `release`, `read`
//! - `masters`: what the operations share: the masters, the call timeout, the background tasks; `pending_releases`:
//!   releases that a master has not confirmed; `hand_overs`: recent releases to a waiting contender; `local_queue`: the contenders of this client
//! - `lease`: a held lock as its holder sees it, its [`Grant`], its [`LeaseState`] and its [`LeaseOptions`]
//! - [`protocol`]: the decisions, as values without I/O or clock: the tallies of votes, renewals and releases, what
//!   readings and messages mean, and what a waiting contender does next
//! - [`redis_master`]: a Redis server as a master
//! - [`master`]: what the engine asks of a master, and the answers; [`claim`]: what is asked for
//! - [`voters`]: which server each master is, so that one server has one vote
//! - [`quorum`]: how many votes make a majority, and when it is decided
//! - [`validity`]: until when a grant is valid, on the holder's own monotonic clock
//! - [`fence`]: fencing tokens, and the clock that proposes them
//! - [`key`]: names of locks, and their keys on a master; [`owner`]: the value of a key
//! - [`permissions`]: the permissions that a user needs on a master; [`marker`]: which server process may vote
//! - [`error`]: what can go wrong, which master said so, and the bounded words for it
//! - [`environment`]: wall clock and randomness

// What nobody outside can use is closed, so that dead code shows.
#![warn(unreachable_pub)]

mod acquire;
mod acquire_all;
mod adopt;
pub mod claim;
mod client;
pub mod environment;
pub mod error;
pub mod fence;
mod hand_overs;
pub mod key;
mod lease;
mod local_queue;
pub mod marker;
pub mod master;
mod masters;
pub mod owner;
mod pending_releases;
pub mod permissions;
pub mod protocol;
pub mod quorum;
mod read;
pub mod redis_master;
mod reentrant;
mod release;
pub mod validity;
pub mod voters;
mod wait;
mod watchdog;

pub use client::Client;
pub use environment::{Environment, System};
pub use error::{ClientError, Error, Loss, MasterError, Reason};
pub use fence::Token;
pub use key::LockKey;
pub use lease::{Grant, Lease, LeaseOptions, LeaseState, Leases, Renewal};
pub use owner::Owner;
pub use protocol::reading::Observation;
pub use protocol::release::Released;
pub use redis_master::{
    Address, ClientCertificate, Credentials, Endpoint, Health, InvalidEndpoint, Marker, RedisMaster, TlsFiles,
};
pub use reentrant::{Hold, Reentrant};
pub use wait::Wait;
