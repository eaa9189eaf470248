//! The lock engine: leases on a majority of independent Redis masters, by the RedLock algorithm. Knows nothing of
//! Kubernetes.
//!
//! Who holds a lock has a *lease* on more than half of N *masters*, Redis masters that know nothing of each other; a
//! *watchdog* renews it until it is given back or lost. The engine keeps to the [RedLock page] and adds what the
//! algorithm's critics ask for: a validity that is looked up on the holder's own clock, fencing tokens that the masters
//! vote on, masters that give no vote after a restart until they can do no harm, a queue, and a loss that is told in
//! time.
//!
//! This page says what its users may rely on. The rules behind it, and what each rests on, are in `docs/algorithm.md`;
//! what goes wrong without any one of them in `docs/model.md`; how it compares with other libraries in
//! `docs/benchmarks.md`.
//!
//! [RedLock page]: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
//!
//! # In short
//! Everything runs on tokio: with its time and I/O drivers, on either of its schedulers.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use redlock_engine::{
//!     Address, Client, Credentials, Endpoint, LeaseOptions, LockKey, Marker, RedisMaster, Token, Wait,
//! };
//!
//! # async fn write_report(_fence: Token) {}
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Five servers of which each is on its own: no replicas, no cluster.
//! let masters = (0..5).map(|i| {
//!     RedisMaster::connect(Endpoint {
//!         name: format!("redis-{i}"),
//!         address: Address::Tcp(format!("redis-{i}.example.net"), 6379),
//!         credentials: Credentials::None,
//!         marker: Marker::Unused,
//!     })
//! });
//! let client = Client::new(masters, Duration::from_millis(50));
//!
//! // Takes the lock for 30 s, renewed each 10 s, and waits up to a minute for whoever holds it.
//! let key = LockKey::new("billing", "nightly-report")?;
//! let options = LeaseOptions::new("worker-7", Duration::from_secs(30));
//! let lease = client.acquire(&key, &options, Wait::For(Duration::from_secs(60))).await?;
//!
//! tokio::select! {
//!     // The report's store refuses tokens smaller than the largest that it has seen.
//!     () = write_report(lease.owner().token()) => {}
//!     // Whoever is cut off here is not the holder any more.
//!     end = lease.ended() => eprintln!("stopped half way: {end:?}"),
//! }
//!
//! let released = lease.release().await;
//! println!("gave the lock back: {released:?}");
//! client.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # The grant: a majority
//! [`Client::try_acquire`] asks all masters at once. A master is waited for no longer than the client's limit on a call,
//! and none once the vote is decided. What a failed attempt has set is taken back, also where the answer never came.
//! The majority is one of the *configured* masters ([`quorum`]): every client of a lock must be given the same masters, and
//! each master must be a server of its own. An odd number is best; an even one more tolerates no more failures.
//!
//! A master that does not answer costs its limit a few times, then nothing: its connection is given up, calls fail at
//! once, and it is tried again in the background ([`redis_master`]).
//!
//! # Validity: looked up, not assumed
//! A lease is proven for its TTL, less 1 % and 2 ms, from *before* its question was sent ([`validity`]).
//! [`Lease::is_held`] and [`Lease::validity`] compare that with the monotonic clock at the moment of asking: no
//! network, no timer, no waiting; once false it stays false. Ask directly before each act on what the lock guards. Who
//! needs an uninterrupted time says so by [`LeaseOptions::min_validity`]: a grant with less left is given back
//! ([`Error::TooSlow`]).
//!
//! # Fencing: tokens that rise
//! Every grant has a [`Token`], larger than that of every earlier grant of the lock: it is voted on together with the
//! lock ([`fence`]). Hand it on with each write, and let what is guarded refuse tokens smaller than the largest that it
//! has seen (`docs/algorithm.md` has the SQL). This is what holds when clocks do not. Locks that another library took
//! have none.
//!
//! # Waiting: who is next
//! [`Client::acquire`] waits in a queue that every master keeps for the lock, across processes: by
//! [`priority`](LeaseOptions::priority), then by who has waited longest. A release tells the first, and the next, who
//! gives it a head start. Everybody looks at least once a second all the same, in case a message was missed or the
//! holder has died.
//!
//! The order is a promise of fairness, never of safety, and it is not absolute. The first attempt of an
//! [`acquire`](Client::acquire), a [`try_acquire`](Client::try_acquire) and other libraries take a lock that they find
//! free, though somebody waits. Of the contenders of one client one at a time waits on the masters, by its own priority;
//! one that comes later does not displace it. Lower priorities wait for as long as higher ones come.
//!
//! # The watchdog: renewal
//! With [`Renewal::Every`] a task of the lease's own renews it on all masters, back to the full TTL, and gives it to
//! masters that lack it, so that the early expiry of one breaks nothing. A renewal has three outcomes. *Renewed* by a
//! majority. *Lost* when a majority does not have it any more. *Unknown* otherwise: then it is tried again after 50 to
//! 150 ms, until validity ends. It never extends what is over, and nothing is renewed once a release was asked for.
//!
//! [`LeaseOptions::max_renewals`] bounds how long somebody can hold a lock. The holder is told ([`Loss::MaxRenewals`])
//! when the next renewal would be due, while the masters still keep the lock: about the TTL less the period is left to
//! undo its work. With [`Renewal::None`] the lease ends after its TTL.
//!
//! # Loss: told in time
//! [`Lease::ended`] ends with a [`Loss`] when a majority is found not to have the lease, and at the latest when its
//! validity is over: by the clock alone, before another can be granted the lock. [`Lease::state`] is the same as a
//! `watch` channel, with every renewal. Both need the runtime to get to them in time; [`Lease::is_held`] does not.
//!
//! # Giving back
//! [`Lease::release`] stops the watchdog first, deletes the key where it still is this grant's, and says by
//! [`Released`] what it found. A dropped lease is released in the background. Masters that did not answer are asked again
//! up to three times; where none of that arrives, the key ends after its TTL. [`Lease::abandon`] leaves the lock on the
//! masters, for another process to [`adopt`](Client::adopt): same owner, same token. A grant that several processes keep
//! is [shared](LeaseOptions::is_shared).
//!
//! # Cancellation
//! Every future here may be dropped at any await. An attempt that is dropped is taken back, a wait leaves its queue and
//! its channels, a release goes on. An [`adopt`](Client::adopt) that is dropped leaves the grant to end by itself. All
//! of that is done by tasks of the runtime: what a runtime that ends takes along is left to its TTL.
//!
//! # Shutdown
//! [`Client::shutdown`] before the process ends: who waits gets [`Error::ShutDown`], leases are given back, and what is
//! under way to the masters arrives, within three limits on a call. Without it a lock that was released the moment before
//! may stay on the masters that had not answered yet.
//!
//! # Reentrancy
//! [`Reentrant`] counts holds of the same identity in the process, and gives the lock back with the last [`Hold`].
//! Tasks that shall exclude each other must not share an identity there.
//!
//! # Errors
//! An [`Error`] says what became of an operation, and where masters failed what each said ([`MasterError`]). Each has a
//! [`Reason`], one of a few words, for metrics and conditions. [`Client::acquire`] goes on through all of them until
//! its time is over, but for [`Error::Invalid`], which will not change, and [`Error::ShutDown`]. A lease that ends is
//! no error but a [`Loss`].
//!
//! # What it rests on
//! - **Clocks run alike:** those of holder and masters within 1 % of each other, over a TTL. What they show does not
//!   matter.
//! - **Clocks do not stand still.** Linux does not count the time in which a machine is suspended on its monotonic
//!   clock, nor do many virtual machines that in which they are paused or moved: a holder that wakes up there still
//!   takes itself for the holder, until its next renewal.
//! - **Master clocks do not jump, of a majority at once.** Redis counts expiry by its wall clock. One that jumps ahead
//!   ends leases early on its master; a minority of such harms nothing.
//! - **A master remembers, or stays away.** One that lost its data while a lease runs must give no vote until the longest
//!   lease is over. A server with [`Marker::Required`] is held to that; with [`Marker::Unused`] whoever runs it has to
//!   see to it, and that it evicts no keys and does not fail over to a replica.
//! - **Tokens** need no clock while masters keep their data. Where one lost it, contenders' wall clocks must agree to
//!   within the time for which it stays away less the longest validity.
//!
//! # What it does not protect from
//! A process that sleeps between its look at [`Lease::is_held`] and its write cannot know that it has slept, as
//! [Kleppmann](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html) says: no lock with a time
//! limit stops that write. Only what is guarded can, by the token; and it does from the *first write* of the next
//! holder on. Where nothing can check tokens, a lock makes double work rare, not impossible.
//!
//! # Tuning
//! - [`ttl`](LeaseOptions::ttl), usually 10 to 30 s: how long the lock outlasts a holder that died. A short one means
//!   many renewals, and losses on machines that are busy.
//! - The limit on a call, of [`Client::new`], usually 5 to 50 ms: above the slowest round trip to a healthy master, far
//!   below the TTL. A vote may take so long, and a grant loses what it took.
//! - Period of [`Renewal::Every`], a third of the TTL: how often a renewal may fail before the lease is lost. Each
//!   costs a small script on every master.
//! - [`min_validity`](LeaseOptions::min_validity), zero: the longest piece of work that is done without another look.
//! - [`max_renewals`](LeaseOptions::max_renewals), no limit: against holders that hang while their watchdog lives.
//! - [`priority`](LeaseOptions::priority), 0: only where lower ones may starve.
//!
//! # Layout
//! - [`client`]: asks the masters and decides by majority: acquire, adopt, shut down; [`release`]; [`read`]. Its private
//!   parts are `vote` (one vote on a grant), `wait` (for a lock that another holds), `look` (how that judges what it
//!   sees and hears) and `line` (of this client's contenders)
//! - [`lease`]: a held lock, as its holder sees it; its private part `watchdog` keeps it; [`reentrant`]: locks that
//!   their holder may take again
//! - [`master`]: what the engine asks of a master; [`redis_master`]: a Redis server as such
//! - [`quorum`]: how many votes make a majority, and when an outcome is decided
//! - [`validity`]: until when a grant is proven, on the holder's own monotonic clock
//! - [`fence`]: fencing tokens and the clock that proposes them
//! - [`key`]: names of locks and what they are called on a master; [`owner`]: who holds a key
//! - [`permissions`]: what a user of a master must be permitted
//! - [`error`]: what can go wrong, which master said so, and the bounded words for it
//! - [`environment`]: wall clock and randomness

mod acquire;
mod adopt;
mod claim;
mod client;
pub mod environment;
pub mod error;
pub mod fence;
mod hand_overs;
pub mod key;
mod lease;
mod local_queue;
pub mod master;
mod masters;
pub mod owner;
pub mod permissions;
pub mod protocol;
pub mod quorum;
mod read;
pub mod redis_master;
mod reentrant;
mod release;
pub mod validity;
mod wait;
mod watchdog;

pub use client::Client;
pub use environment::{Environment, System};
pub use error::{Error, MasterError, Reason};
pub use fence::Token;
pub use key::LockKey;
pub use lease::{Grant, Lease, LeaseOptions, LeaseState, Loss, Renewal};
pub use owner::Owner;
pub use protocol::reading::Observation;
pub use protocol::release::Released;
pub use redis_master::{Address, ClientCertificate, Credentials, Endpoint, Health, Marker, RedisMaster, TlsFiles};
pub use reentrant::{Hold, Reentrant};
pub use wait::Wait;
