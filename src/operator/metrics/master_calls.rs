//! Calls to masters: how many, with which result, and how long they took. Each series goes with the last connection to its cluster.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::Count;

/// Upper bounds of the buckets of calls, in seconds. A call times out after 5 ms to 1 s.
const BUCKETS: [f64; 10] = [0.000_3, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];

/// What a master is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// To vote for a grant.
    Acquire,
    /// To renew a lease.
    Renew,
    /// To take up a lease that it lacks.
    Seed,
    /// To release a lease.
    Release,
    /// To say who holds a lock.
    Read,
    /// To enter a queue, or to leave it.
    Queue,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallResult {
    /// It did what it was asked to.
    Done,
    /// Another owner has the key, or nobody.
    NotOwner,
    /// It has seen a token as large.
    StaleToken,
    /// There is no connection.
    Unreachable,
    /// No answer in time.
    Timeout,
    /// It is not armed.
    Quarantined,
    /// It answered with another error.
    Refused,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByMaster {
    namespace: String,
    name: String,
    master: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByCall {
    namespace: String,
    name: String,
    master: String,
    operation: &'static str,
    result: &'static str,
}

#[derive(Clone)]
struct CallFamilies {
    calls: Family<ByCall, Count>,
    time: Family<ByMaster, Histogram, fn() -> Histogram>,
}

/// Which series are in use.
type InUse = Arc<Mutex<HashMap<ByMaster, Weak<MasterCalls>>>>;

/// The families, and which series are in use.
#[derive(Default)]
pub(super) struct MasterCallFamilies {
    families: CallFamilies,
    in_use: InUse,
}

/// The series of one master.
pub(crate) struct MasterCalls {
    families: CallFamilies,
    in_use: InUse,
    master: ByMaster,
    time: Histogram,
    /// By operation and result. Looked up once: a renewal is counted ten thousands of times.
    calls: [[OnceLock<Count>; CallResult::ALL.len()]; Operation::ALL.len()],
}

// === impl Operation ===

impl Operation {
    const ALL: [Self; 6] = [Self::Acquire, Self::Renew, Self::Seed, Self::Release, Self::Read, Self::Queue];

    fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Seed => "seed",
            Self::Release => "release",
            Self::Read => "read",
            Self::Queue => "queue",
        }
    }
}

// === impl CallResult ===

impl CallResult {
    const ALL: [Self; 7] = [
        Self::Done,
        Self::NotOwner,
        Self::StaleToken,
        Self::Unreachable,
        Self::Timeout,
        Self::Quarantined,
        Self::Refused,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::NotOwner => "not_owner",
            Self::StaleToken => "stale_token",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::Quarantined => "quarantined",
            Self::Refused => "refused",
        }
    }
}

// === impl MasterCallFamilies ===

impl Default for CallFamilies {
    fn default() -> Self {
        Self { calls: Family::default(), time: Family::new_with_constructor(|| Histogram::new(BUCKETS)) }
    }
}

impl MasterCallFamilies {
    pub(super) fn register(&self, registry: &mut Registry) {
        let CallFamilies { calls, time } = &self.families;
        registry.register("master_calls", "Calls to a master, by what was asked and how it ended", calls.clone());
        registry.register_with_unit(
            "master_call_duration",
            "How long a master took to answer",
            Unit::Seconds,
            time.clone(),
        );
    }

    /// The series of a master: those in use, or new ones.
    pub(super) fn of(&self, namespace: &str, cluster: &str, master: &str) -> Arc<MasterCalls> {
        let label = ByMaster { namespace: namespace.to_owned(), name: cluster.to_owned(), master: master.to_owned() };
        let mut in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(series) = in_use.get(&label).and_then(Weak::upgrade) {
            return series;
        }
        let series = Arc::new(MasterCalls {
            families: self.families.clone(),
            in_use: Arc::clone(&self.in_use),
            time: self.families.time.get_or_create(&label).clone(),
            master: label.clone(),
            calls: Default::default(),
        });
        in_use.insert(label, Arc::downgrade(&series));
        series
    }
}

// === impl MasterCalls ===

impl MasterCalls {
    /// Counts a call that ended after `took`.
    pub(crate) fn count(&self, operation: Operation, result: CallResult, took: Duration) {
        let counter = &self.calls[operation as usize][result as usize];
        counter.get_or_init(|| self.families.calls.get_or_create(&self.label(operation, result)).clone()).inc();
        // It was not asked.
        if result != CallResult::Unreachable {
            self.time.observe(took.as_secs_f64());
        }
    }

    fn label(&self, operation: Operation, result: CallResult) -> ByCall {
        let ByMaster { namespace, name, master } = self.master.clone();
        ByCall { namespace, name, master, operation: operation.as_str(), result: result.as_str() }
    }
}

impl Drop for MasterCalls {
    fn drop(&mut self) {
        let mut in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        if in_use.get(&self.master).is_some_and(|series| series.strong_count() > 0) {
            // Another connection has begun to count since the last clone of this was dropped.
            return;
        }
        in_use.remove(&self.master);
        self.families.time.remove(&self.master);
        for operation in Operation::ALL {
            for result in CallResult::ALL {
                self.families.calls.remove(&self.label(operation, result));
            }
        }
    }
}

impl fmt::Debug for MasterCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MasterCalls").field("master", &self.master).finish_non_exhaustive()
    }
}
