//! Wiring of both controllers: leadership, health, metrics, events, shutdown.
//!
//! # Layout
//! - [`mod@run`]: `redlock operator`: starts everything, ends everything
//! - [`preflight`]: whether the API server lets it work
//! - [`supervisor`]: no part ends unseen; [`health`] and [`http`]: what the probes are told
//! - [`lease`]: the `Lease` by which one of several operators decides; [`leadership`]: what the others ask of it
//! - [`events`]: Kubernetes Events; [`metrics`]: what is counted

pub mod events;
pub mod health;
pub mod http;
pub mod leadership;
pub mod lease;
pub mod metrics;
pub mod preflight;
pub mod run;
pub mod supervisor;

use kube::runtime::{controller, watcher};

use events::Events;
use health::Health;
use leadership::Leadership;
use metrics::Metrics;

pub use run::{Options, run};

/// What both controllers share. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// The API server.
    pub client: kube::Client,
    /// Publishes Events.
    pub events: Events,
    /// Counts what happens.
    pub metrics: Metrics,
    /// Whether this process may decide (acquire, release, create, arm, write status).
    pub leadership: Leadership,
    /// Told when a controller has listed what it watches.
    pub health: Health,
}

/// How both controllers watch: each watch ends before load balancers silently drop a connection that was idle for four
/// minutes.
pub(crate) fn watch_config() -> watcher::Config {
    watcher::Config::default().timeout(200)
}

/// How both controllers run: so many reconciles at a time, where the default is without a bound.
pub(crate) fn controller_config() -> controller::Config {
    controller::Config::default().concurrency(16)
}

/// An error with all that it was caused by, in one line, for the log.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
