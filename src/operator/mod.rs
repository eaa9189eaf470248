//! Wiring of both controllers: leadership, health, metrics, events, shutdown.

pub mod events;
pub mod health;
pub mod http;
pub mod leadership;
pub mod lease;
pub mod metrics;
pub mod preflight;
pub mod supervisor;

use events::Events;
use leadership::Leadership;
use metrics::Metrics;

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
}
