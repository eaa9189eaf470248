//! Several locks at once, without deadlock: everybody takes them in the same order.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::{Error, Loss};
use crate::key::LockKey;
use crate::lease::{LeaseOptions, Leases};
use crate::local_queue::LocalQueues;
use crate::master::Master;
use crate::masters::Masters;
use crate::validity::check_left;
use crate::wait::{Session, Wait, acquire, until};

/// Pause before all are taken anew, since one of them was lost or ran short while the next was waited for.
const PAUSE: Duration = Duration::from_millis(50);

/// Takes all locks in the order of their keys. Two contenders that each hold what the other waits for cannot exist then.
pub(crate) async fn acquire_all<M: Master>(
    masters: &Arc<Masters<M>>,
    local_queues: &Arc<LocalQueues<Session>>,
    keys: &[LockKey],
    options: &LeaseOptions,
    wait: Wait,
) -> Result<Leases, Error> {
    let mut keys: Vec<_> = keys.iter().collect();
    keys.sort_unstable();
    keys.dedup();
    if keys.is_empty() {
        return Err(Error::Invalid("no lock is named".to_owned()));
    }
    let deadline = wait.deadline();
    loop {
        let error = match take_all(masters, local_queues, &keys, options, deadline).await? {
            Ok(leases) => return Ok(leases),
            Err(error) => error,
        };
        // What was taken is being released.
        if until(deadline, sleep(PAUSE)).await.is_none() {
            return Err(error);
        }
    }
}

/// Takes all locks once. The inner error is one that another round may not meet: a lock that was taken was lost, or ran
/// short, before the last one was granted.
async fn take_all<M: Master>(
    masters: &Arc<Masters<M>>,
    local_queues: &Arc<LocalQueues<Session>>,
    keys: &[&LockKey],
    options: &LeaseOptions,
    deadline: Option<Instant>,
) -> Result<Result<Leases, Error>, Error> {
    // Dropped with all that it holds, where this fails or is dropped itself.
    let mut taken = Leases::none();
    for key in keys {
        let acquire = acquire(masters, local_queues, key, options, Wait::until(deadline));
        let lease = match taken.run(Box::pin(acquire)).await {
            Ok(acquired) => acquired?,
            Err(Loss::ShutDown) => return Err(Error::ShutDown),
            Err(loss) => return Ok(Err(Error::LostWhileWaiting(loss))),
        };
        taken.push(lease);
    }
    Ok(check_left(taken.validity(), options.min_validity).map(|()| taken))
}
