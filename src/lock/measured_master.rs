//! A master whose calls are counted and timed.

use std::future::Future;
use std::sync::Arc;

use redlock_engine::claim::Claim;
use redlock_engine::master::{Extension, Heard, Master, Place, Queued, Reading, ReleaseAnswer, Vote};
use redlock_engine::redis_master::Health;
use redlock_engine::voters::Voters;
use redlock_engine::{LockKey, MasterError, RedisMaster, Token};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::operator::metrics::master_calls::{CallResult, MasterCalls, Operation};

/// A Redis master, and the series of its calls.
#[derive(Debug)]
pub(crate) struct MeasuredMaster {
    master: RedisMaster,
    calls: Arc<MasterCalls>,
}

/// How a call ended that was answered.
trait Answer {
    fn result(&self) -> CallResult;
}

// === impl Answer ===

impl Answer for Vote {
    fn result(&self) -> CallResult {
        match self {
            Self::Granted => CallResult::Done,
            Self::HeldByOther => CallResult::NotOwner,
            Self::StaleToken => CallResult::StaleToken,
        }
    }
}

impl Answer for Extension {
    fn result(&self) -> CallResult {
        match self {
            Self::Extended => CallResult::Done,
            Self::Missing | Self::HeldByOther => CallResult::NotOwner,
        }
    }
}

impl Answer for ReleaseAnswer {
    fn result(&self) -> CallResult {
        match self {
            Self::Deleted | Self::HandedOn => CallResult::Done,
            Self::NotOwner => CallResult::NotOwner,
        }
    }
}

impl Answer for Reading {
    fn result(&self) -> CallResult {
        CallResult::Done
    }
}

impl Answer for Queued {
    fn result(&self) -> CallResult {
        CallResult::Done
    }
}

impl Answer for () {
    fn result(&self) -> CallResult {
        CallResult::Done
    }
}

fn failure(error: &MasterError) -> CallResult {
    match error {
        MasterError::Unreachable(_) => CallResult::Unreachable,
        MasterError::Timeout => CallResult::Timeout,
        MasterError::Quarantined => CallResult::Quarantined,
        _ => CallResult::Refused,
    }
}

// === impl MeasuredMaster ===

impl MeasuredMaster {
    /// This master, counted in `calls`.
    pub(crate) fn new(master: RedisMaster, calls: Arc<MasterCalls>) -> Self {
        Self { master, calls }
    }

    /// Whether the server is connected, as of the last call or attempt to connect.
    pub(crate) fn health(&self) -> Health {
        self.master.health()
    }

    /// Counts a call. A call that is dropped is not counted: nobody knows how it would have ended.
    async fn measure<T: Answer>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, MasterError>>,
    ) -> Result<T, MasterError> {
        let began = Instant::now();
        let answer = call.await;
        let result = answer.as_ref().map_or_else(failure, Answer::result);
        self.calls.count(operation, result, began.elapsed());
        answer
    }
}

impl Master for MeasuredMaster {
    fn name(&self) -> &str {
        self.master.name()
    }

    fn join(&self, index: usize, voters: &Arc<Voters>) {
        self.master.join(index, voters);
    }

    fn reachable(&self) -> impl Future<Output = ()> + Send {
        self.master.reachable()
    }

    async fn acquire(&self, claim: &Claim, deadline: Instant) -> Result<Vote, MasterError> {
        self.measure(Operation::Acquire, self.master.acquire(claim, deadline)).await
    }

    async fn renew(&self, claim: &Claim, deadline: Instant) -> Result<Extension, MasterError> {
        self.measure(Operation::Renew, self.master.renew(claim, deadline)).await
    }

    async fn seed(&self, claim: &Claim, deadline: Instant) -> Result<Extension, MasterError> {
        self.measure(Operation::Seed, self.master.seed(claim, deadline)).await
    }

    async fn release(&self, claim: &Claim, wake: bool, deadline: Instant) -> Result<ReleaseAnswer, MasterError> {
        self.measure(Operation::Release, self.master.release(claim, wake, deadline)).await
    }

    async fn read(&self, key: &LockKey, deadline: Instant) -> Result<Reading, MasterError> {
        self.measure(Operation::Read, self.master.read(key, deadline)).await
    }

    async fn enqueue(&self, key: &LockKey, place: &Place, deadline: Instant) -> Result<Queued, MasterError> {
        self.measure(Operation::Queue, self.master.enqueue(key, place, deadline)).await
    }

    async fn dequeue(&self, key: &LockKey, place: &Place, deadline: Instant) -> Result<(), MasterError> {
        self.measure(Operation::Queue, self.master.dequeue(key, place, deadline)).await
    }

    async fn subscribe(
        &self,
        key: &LockKey,
        inbox: Token,
        index: usize,
        wake: mpsc::UnboundedSender<Heard>,
        deadline: Instant,
    ) -> Result<(), MasterError> {
        // Neither a vote nor an answer about a lock.
        self.master.subscribe(key, inbox, index, wake, deadline).await
    }
}
