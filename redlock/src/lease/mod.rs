//! A held lock, as its holder sees it.

mod grant;
mod leases;
mod options;
mod state;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

pub use self::grant::Grant;
pub use self::leases::Leases;
pub use self::options::{LeaseOptions, Renewal};
pub use self::state::LeaseState;
use crate::error::Loss;
use crate::key::LockKey;
use crate::owner::Owner;
use crate::protocol::release::Released;

/// Runs `work` until `ended`. What it returns counts only while `is_held`.
async fn run_until<T>(
    work: impl Future<Output = T>,
    ended: impl Future<Output = LeaseState>,
    is_held: impl Fn() -> bool,
) -> Result<T, Loss> {
    let (mut work, mut ended) = (pin!(work), pin!(ended));
    let state = tokio::select! {
        // A lease that is over starts no work.
        biased;
        state = &mut ended => state,
        output = &mut work => {
            if is_held() {
                return Ok(output);
            }
            ended.await
        }
    };
    Err(match state {
        LeaseState::Lost(loss) => loss,
        // Nobody else can release a lease that is borrowed here.
        LeaseState::Released | LeaseState::Held(_) => Loss::ShutDown,
    })
}

/// What a holder asks of the watchdog.
#[derive(Debug)]
pub(crate) enum Order {
    /// Stop, release the lock, and say what the release found.
    Release(oneshot::Sender<Released>),
    /// Stop, and leave the lock on the masters.
    Abandon,
}

/// A held lock. When dropped it is released in the background, unless it is [shared](LeaseOptions::is_shared).
///
/// Keep it in a variable for as long as the lock is needed. A lease that nobody binds is dropped at the end of its
/// statement, and the compiler warns of it:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # use redlock_engine::{Client, Error, LeaseOptions, LockKey, Wait};
/// # async fn work(client: Client, key: LockKey, options: LeaseOptions) -> Result<(), Error> {
/// client.acquire(&key, &options, Wait::Forever).await?; // Released here already.
/// # Ok(())
/// # }
/// ```
/// ```
/// #![deny(unused_must_use)]
/// # use redlock_engine::{Client, Error, LeaseOptions, LockKey, Wait};
/// # async fn work(client: Client, key: LockKey, options: LeaseOptions) -> Result<(), Error> {
/// let _lease = client.acquire(&key, &options, Wait::Forever).await?; // Held until the end of this scope.
/// # Ok(())
/// # }
/// ```
///
/// One that is leaked ([`std::mem::forget`]) is never dropped: its watchdog renews it until the client is
/// [shut down](crate::Client::shutdown), or until its runtime ends. ([`LeaseOptions::max_renewals`] limits that.)
#[derive(Debug)]
#[must_use = "a lease that is dropped is released at once: bind it, `let lease = ...`, for as long as the lock is needed"]
pub struct Lease {
    key: LockKey,
    owner: Owner,
    state: watch::Receiver<LeaseState>,
    order: oneshot::Sender<Order>,
    seeds: Arc<AtomicBool>,
}

impl Lease {
    pub(crate) fn new(
        key: LockKey,
        owner: Owner,
        state: watch::Receiver<LeaseState>,
        order: oneshot::Sender<Order>,
        seeds: Arc<AtomicBool>,
    ) -> Self {
        Self { key, owner, state, order, seeds }
    }

    /// The lock.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// The holder: identity, fencing token and nonce.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Whether it [seeds](LeaseOptions::seeds) masters that lack the key, from its next renewal on. A round of renewal that
    /// is under way may still do as before.
    pub fn set_seeds(&self, seeds: bool) {
        self.seeds.store(seeds, Ordering::Relaxed);
    }

    /// Its state, and changes of it: each renewal, the loss, the release. The last state is final, and stays. `Held` is
    /// true only until its [`Grant::valid_until`]: ask [`LeaseState::valid_at`].
    #[must_use]
    pub fn state(&self) -> watch::Receiver<LeaseState> {
        self.state.clone()
    }

    /// Whether it is valid right now, by the local monotonic clock alone: no network, and no waiting. Once false, it
    /// stays false.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.validity().is_zero()
    }

    /// What is left of its validity; zero once it is over.
    #[must_use]
    pub fn validity(&self) -> Duration {
        // The state is locked before the clock is read: see how the watchdog extends it.
        let state = self.state.borrow();
        let now = Instant::now();
        state.valid_at(now).map_or(Duration::ZERO, |grant| grant.validity_at(now))
    }

    /// Waits until the lease is lost or released, and says which. Never later than the end of validity, as far as the
    /// runtime's timer is in time. Before an act that needs the lock, ask [`Self::is_held`].
    pub async fn ended(&self) -> LeaseState {
        let mut state = self.state.clone();
        loop {
            let valid_until = match &*state.borrow_and_update() {
                LeaseState::Held(grant) => grant.valid_until,
                ended => return ended.clone(),
            };
            let over = tokio::time::sleep_until(valid_until);
            tokio::select! {
                biased;
                changed = state.changed() => if changed.is_err() {
                    // The watchdog ended without a final state (the runtime shuts down). The last grant stays valid.
                    tokio::time::sleep_until(valid_until).await;
                    return self.end_by_the_clock();
                },
                () = over => if !self.is_held() { return self.end_by_the_clock() },
            }
        }
    }

    /// Runs `work` for as long as the lease is held. Where the lease ends before, `work` is dropped at its present await,
    /// and the loss is returned. A `work` that blocks its thread is not cut off: it may go on after the loss until its
    /// next await, and what it returns then is dropped.
    ///
    /// The lease is not released by this.
    ///
    /// ```no_run
    /// # use redlock_engine::{Lease, Loss, Token};
    /// # async fn write_report(_fence: Token) {}
    /// # async fn work(lease: Lease) -> Result<(), Loss> {
    /// lease.run(write_report(lease.owner().token())).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Loss> {
        run_until(work, self.ended(), || self.is_held()).await
    }

    /// How it ended, once its validity is over. The watchdog may not have said so yet.
    fn end_by_the_clock(&self) -> LeaseState {
        match &*self.state.borrow() {
            LeaseState::Held(grant) => LeaseState::Lost(grant.expired()),
            ended => ended.clone(),
        }
    }

    /// Stops the watchdog, then releases the lock on all masters, as [`Client::release`](crate::Client::release) does.
    /// Where the lease had expired or was lost, this does not wait for the masters. The release goes on in the background
    /// if the future is dropped.
    pub async fn release(self) -> Released {
        let (done, released) = oneshot::channel();
        // The watchdog may have ended by itself, or end before it reads the order.
        if self.order.send(Order::Release(done)).is_ok()
            && let Ok(released) = released.await
        {
            return released;
        }
        match *self.state.borrow() {
            // What was left of it is being deleted.
            LeaseState::Lost(_) => Released::AlreadyExpired,
            // By a shutdown of the client or of the runtime.
            LeaseState::Released | LeaseState::Held(_) => Released::Unknown,
        }
    }

    /// Stops the watchdog and leaves the lock on the masters, for another process to [adopt](crate::Client::adopt). This
    /// process does not hold it any more.
    pub fn abandon(self) {
        // A watchdog that has ended has nothing to stop.
        let _ = self.order.send(Order::Abandon);
    }
}
