//! The client of N masters: all that a program does with locks begins here.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire;
use crate::acquire_all;
use crate::adopt;
use crate::claim::Claim;
use crate::environment::{Environment, System};
use crate::error::{ClientError, Error};
use crate::key::LockKey;
use crate::lease::{Lease, LeaseOptions, Leases};
use crate::local_queue::LocalQueues;
use crate::master::Master;
use crate::masters::Masters;
use crate::owner::Owner;
use crate::protocol::reading::Observation;
use crate::protocol::release::Released;
use crate::quorum::Quorum;
use crate::read;
use crate::redis_master::RedisMaster;
use crate::release;
use crate::wait::{self, Session, Wait};

/// A client of N independent masters. Cheap to clone: clones share connections and local queues.
#[derive(Debug)]
pub struct Client<M: Master = RedisMaster> {
    masters: Arc<Masters<M>>,
    local_queues: Arc<LocalQueues<Session>>,
}

/// The most masters that a client has. Each vote asks all of them.
const MOST_MASTERS: usize = 64;
/// Call timeouts that make sense: a timer counts in milliseconds, and a vote may take that long.
const CALL_TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);

/// Refuses masters and timeouts with which no client can work.
fn check<M>(masters: Arc<[M]>, call_timeout: Duration) -> Result<Arc<[M]>, ClientError> {
    if masters.is_empty() {
        Err(ClientError::NoMasters)
    } else if masters.len() > MOST_MASTERS {
        Err(ClientError::TooManyMasters { masters: masters.len(), most: MOST_MASTERS })
    } else if CALL_TIMEOUTS.contains(&call_timeout) {
        Ok(masters)
    } else {
        Err(ClientError::CallTimeout(call_timeout))
    }
}

impl<M: Master> Clone for Client<M> {
    fn clone(&self) -> Self {
        Self { masters: Arc::clone(&self.masters), local_queues: Arc::clone(&self.local_queues) }
    }
}

impl<M: Master> Client<M> {
    /// A client of these masters. Every client of a lock must be given the same N masters: majorities of different masters
    /// need not share one. Each must be a server of its own: of two that are one server, only one is used.
    ///
    /// `call_timeout` is the timeout of each call to one master: 50 ms unless masters are far away. It is at least 1 ms
    /// and at most a minute. There are 1 to 64 masters. Everything else is refused.
    pub fn new(masters: impl IntoIterator<Item = M>, call_timeout: Duration) -> Result<Self, ClientError> {
        let masters = check(masters.into_iter().collect(), call_timeout)?;
        Ok(Self::of(Masters::new(masters, call_timeout, Arc::new(System))))
    }

    /// The same with its own wall clock, randomness and tokens, as another process would have: for simulations.
    pub fn with_environment(
        masters: impl IntoIterator<Item = M>,
        call_timeout: Duration,
        environment: Arc<dyn Environment>,
    ) -> Result<Self, ClientError> {
        let masters = check(masters.into_iter().collect(), call_timeout)?;
        Ok(Self::of(Masters::with_tokens(masters, call_timeout, environment, Arc::default())))
    }

    fn of(masters: Masters<M>) -> Self {
        Self { masters: Arc::new(masters), local_queues: Arc::default() }
    }

    /// Its masters.
    #[must_use]
    pub fn masters(&self) -> &[M] {
        self.masters.all()
    }

    /// The majority of its masters.
    #[must_use]
    pub fn quorum(&self) -> Quorum {
        self.masters.quorum()
    }

    /// Takes the lock if it is free now, also where others wait for it. Ends within one call timeout, and reads within
    /// another who holds a lock that is not free. Where masters have seen larger tokens it reads these and votes again,
    /// in eight votes at most.
    pub async fn try_acquire(&self, key: &LockKey, options: &LeaseOptions) -> Result<Lease, Error> {
        match acquire::try_acquire(&self.masters, key, options).await {
            Err(Error::Contended { .. }) => Err(read::contended(&self.masters, key).await),
            granted => granted,
        }
    }

    /// Takes the lock, waiting while another holds it or too few masters answer. Contenders get it by priority, then in
    /// the order in which they began, across all processes as far as the masters' queues can be reached. The first
    /// attempt of each takes a lock that is free, as [`Self::try_acquire`] does.
    ///
    /// When the time is over, the error is what prevented the last attempt. Only [`Error::Invalid`] and
    /// [`Error::TokensRunOut`], which waiting does not change, and [`Error::ShutDown`] end the wait before.
    pub async fn acquire(&self, key: &LockKey, options: &LeaseOptions, wait: Wait) -> Result<Lease, Error> {
        wait::acquire(&self.masters, &self.local_queues, key, options, wait).await
    }

    /// Takes several locks, each as [`Self::acquire`] does, within one `wait`. They are taken in the order of their keys,
    /// whatever order they are given in: two contenders that ask for `[a, b]` and `[b, a]` do not wait for each other for
    /// ever. All who take several of these locks must take them this way. A key that is given twice is taken once.
    ///
    /// The leases are renewed from when each is taken, so `options` should renew them. Where one is lost, or less than
    /// [`min_validity`](LeaseOptions::min_validity) is left of it, while the next is waited for, all are released and
    /// taken anew ([`Error::LostWhileWaiting`] and [`Error::TooSlow`] when the time is over). Where it fails, or is dropped,
    /// everything that was taken is released.
    pub async fn acquire_all(&self, keys: &[LockKey], options: &LeaseOptions, wait: Wait) -> Result<Leases, Error> {
        acquire_all::acquire_all(&self.masters, &self.local_queues, keys, options, wait).await
    }

    /// Continues a grant that another process made: renews it once, and holds it if a majority still had it. Nothing is
    /// seeded: this process has no validity of its own yet that would permit it. The lease is
    /// [shared](LeaseOptions::is_shared), since the other process may live. The options' identity, priority and
    /// `min_validity` are not used.
    ///
    /// [`Error::Lost`] where a majority does not have the grant any more, [`Error::Expired`] where the answers came when
    /// its validity was over. [`Error::NoQuorum`] where too few masters answered to tell: then it may be tried again.
    pub async fn adopt(&self, key: &LockKey, owner: &Owner, options: &LeaseOptions) -> Result<Lease, Error> {
        adopt::adopt(&self.masters, key, owner, options).await
    }

    /// Reads who holds the lock. [`Error::NoQuorum`] where too few masters answer to tell whether anybody does.
    pub async fn read(&self, key: &LockKey) -> Result<Observation, Error> {
        read::read(&self.masters, key).await
    }

    /// Releases a grant on all masters, also one of another process, and lets them tell the first contender in the queue.
    /// Ends as soon as a majority has answered, at the latest after one call timeout. Calls that are still under way
    /// continue in the background. Masters that did not confirm it are sent it again, as soon as they can be
    /// reached, for five minutes: the TTL is not known here.
    pub async fn release(&self, key: &LockKey, owner: &Owner) -> Released {
        let claim = Arc::new(Claim::new(key.clone(), owner.clone(), Duration::ZERO));
        release::release(&self.masters, &claim, Vec::new()).await
    }

    /// Shuts the client down, with all its clones, before the process ends. Waits and attempts end with
    /// [`Error::ShutDown`]. Every lease that is still held is released as if it were dropped. What is on its way to the
    /// masters arrives, also at those that nobody waited for any more. (To leave a lease to another process that
    /// [adopts](Self::adopt) it, [abandon](Lease::abandon) it before.) Returns within three call timeouts.
    ///
    /// A [shared](LeaseOptions::is_shared) lease ends here, and stays on the masters. Masters that have
    /// not confirmed a release are sent it once more.
    pub async fn shutdown(&self) {
        self.masters.shut_down().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_and_timeouts_with_which_no_client_can_work_are_refused() {
        let (timeout, ms) = (Duration::from_millis(50), Duration::from_millis);
        let too_many = ClientError::TooManyMasters { masters: 65, most: 64 };
        for (masters, call_timeout, refused) in [
            (0, timeout, Some(ClientError::NoMasters)),
            (65, timeout, Some(too_many)),
            (3, Duration::ZERO, Some(ClientError::CallTimeout(Duration::ZERO))),
            (3, Duration::from_micros(999), Some(ClientError::CallTimeout(Duration::from_micros(999)))),
            (3, ms(60_001), Some(ClientError::CallTimeout(ms(60_001)))),
            (3, Duration::MAX, Some(ClientError::CallTimeout(Duration::MAX))),
            (1, ms(1), None),
            (64, ms(60_000), None),
        ] {
            let masters: Arc<[()]> = vec![(); masters].into();
            assert_eq!(check(masters, call_timeout).err(), refused, "{call_timeout:?}");
        }
    }
}
