//! Whether this process is alive, and whether it is ready.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::watch::pulse::Pulses;

/// Longest time between two heartbeats of the supervisor. It beats once a second: a longer pause means that the runtime
/// does not run its tasks.
const PATIENCE: Duration = Duration::from_secs(10);

/// The controller of `RedisLockCluster`, as a part of the process.
pub(crate) const CLUSTER_CONTROLLER: &str = "cluster controller";
/// The controller of `DistributedLock`, as a part of the process.
pub(crate) const LOCK_CONTROLLER: &str = "lock controller";
/// The watch of `RedisLockCluster`, as a part of the process.
pub(crate) const CLUSTER_WATCH: &str = "cluster watch";
/// The watch of `DistributedLock`, as a part of the process.
pub(crate) const LOCK_WATCH: &str = "lock watch";

/// The watch of namespaces, as a part of the process.
pub(crate) const NAMESPACE_WATCH: &str = "namespace watch";

/// What the probes report. Cheap to clone; clones share the state.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    state: Arc<Mutex<State>>,
    pulses: Pulses,
}

#[derive(Debug)]
struct State {
    last_beat: Instant,
    /// A part of the process that has ended, which must not happen.
    ended: Option<String>,
    /// What each part still waits for until it is ready.
    awaited: BTreeMap<&'static str, String>,
}

impl Health {
    /// Alive and ready, without watches.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self::of(Pulses::default())
    }

    /// Alive, and ready as long as these watches are alive.
    pub(crate) fn of(pulses: Pulses) -> Self {
        let state = State { last_beat: Instant::now(), ended: None, awaited: BTreeMap::new() };
        Self { state: Arc::new(Mutex::new(state)), pulses }
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        // A panic while the lock was held leaves a consistent state: each act is one assignment.
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A heartbeat of the supervisor.
    pub(crate) fn beat(&self) {
        self.with(|state| state.last_beat = Instant::now());
    }

    /// A part of the process has ended, which must not happen: the process is not alive any more.
    pub(crate) fn ended(&self, part: &str) {
        self.with(|state| state.ended = Some(part.to_owned()));
    }

    /// The process is not ready: `part` waits for `what`.
    pub(crate) fn awaits(&self, part: &'static str, what: impl Into<String>) {
        self.with(|state| drop(state.awaited.insert(part, what.into())));
    }

    /// `part` is ready.
    pub(crate) fn arrived(&self, part: &'static str) {
        self.with(|state| drop(state.awaited.remove(part)));
    }

    /// Reports `part` as ready when `lists` ends. Never ends itself, so that it can run beside a part that must not end.
    pub(crate) async fn arrive_with(&self, part: &'static str, lists: impl Future<Output = ()>) {
        lists.await;
        self.arrived(part);
        std::future::pending::<()>().await;
    }

    /// Whether the process is alive; if not, why not.
    pub(crate) fn liveness(&self) -> Result<(), String> {
        self.with(|state| {
            if let Some(part) = &state.ended {
                return Err(format!("{part} has ended"));
            }
            let silence = state.last_beat.elapsed();
            if silence > PATIENCE { Err(format!("the supervisor is silent for {silence:.1?}")) } else { Ok(()) }
        })
    }

    /// Whether the process is ready; if not, why not.
    pub(crate) fn readiness(&self) -> Result<(), String> {
        self.with(|state| {
            let awaited = state.awaited.iter().map(|(part, what)| format!("{part} awaits {what}"));
            let awaited: Vec<_> = awaited.chain(self.pulses.trouble()).collect();
            if awaited.is_empty() { Ok(()) } else { Err(awaited.join("; ")) }
        })
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_silent_supervisor_is_not_alive() {
        let health = Health::new();
        tokio::time::advance(PATIENCE).await;
        assert_eq!(health.liveness(), Ok(()));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(health.liveness(), Err("the supervisor is silent for 11.0s".to_owned()));
        health.beat();
        assert_eq!(health.liveness(), Ok(()));
    }

    #[tokio::test]
    async fn a_part_that_ended_is_named_and_stays_ended() {
        let health = Health::new();
        health.ended("lock controller");
        health.beat();
        assert_eq!(health.liveness(), Err("lock controller has ended".to_owned()));
    }

    #[tokio::test]
    async fn readiness_says_what_it_waits_for() {
        let health = Health::new();
        health.awaits("lock controller", "the first list");
        health.awaits("cluster controller", "the first list");
        health.arrived("lock controller");
        assert_eq!(health.readiness(), Err("cluster controller awaits the first list".to_owned()));
        health.arrived("cluster controller");
        assert_eq!(health.readiness(), Ok(()));
    }
}
