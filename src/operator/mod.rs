//! What both controllers stand on.
//!
//! # Layout
//! - [`watch`]: one watch and one store a kind
//! - [`api_server`]: the one way to the API server: timeouts, errors, no write without leadership
//! - [`lease`]: the `Lease` by which one of several operators decides; [`leadership`]: what the others ask of it
//! - [`claim`]: which operator serves a cluster
//! - [`contain`]: a panic over one object ends nothing else
//! - [`scope`]: which namespaces are watched
//! - [`reach`]: whether this process reaches masters: the Lease goes to one that does
//! - [`finalizer`]: finalizers, by patches that lose nobody else's; [`own_write`]: whether a cache shows what this process wrote
//! - [`events`]: Kubernetes Events; [`metrics`]: what is counted; [`health`]: what the probes are told

pub(crate) mod api_server;
pub(crate) mod claim;
pub(crate) mod contain;
pub(crate) mod events;
pub(crate) mod finalizer;
pub(crate) mod health;
pub(crate) mod leadership;
pub(crate) mod lease;
pub(crate) mod metrics;
pub(crate) mod own_write;
pub(crate) mod reach;
pub(crate) mod scope;
pub(crate) mod watch;

use std::time::Duration;

use kube::client::ClientBuilder;
use kube::runtime::{controller, watcher};

use api_server::ApiServer;
use claim::Claims;
use events::Events;
use health::Health;
use leadership::Leadership;
use metrics::Metrics;
use reach::Reach;
use scope::Scope;
use watch::Watches;
use watch::pulse::Pulses;

/// What both controllers share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Context {
    /// The API server.
    pub client: kube::Client,
    /// The one way to it.
    pub(crate) api: ApiServer,
    /// The operator's own namespace.
    pub(crate) namespace: String,
    /// Which namespaces are watched.
    pub(crate) scope: Scope,
    /// What it shows of both kinds.
    pub(crate) watches: Watches,
    /// Whether the watches are alive.
    pub(crate) pulses: Pulses,
    /// How long a process that does not lead renews held locks after the watch of locks has told it anything.
    pub(crate) renew_without_api_server: Duration,
    /// Publishes Events.
    pub events: Events,
    /// The metrics.
    pub metrics: Metrics,
    /// Whether this process leads: only a leader acquires, releases, creates, arms and writes status.
    pub leadership: Leadership,
    /// What the probes report.
    pub health: Health,
    /// Whether this process reaches masters.
    pub(crate) reach: Reach,
    /// Which clusters this operator serves.
    pub(crate) claims: Claims,
}

#[cfg(test)]
impl Context {
    /// A context over this client, and what feeds its watches.
    pub(crate) fn for_tests(client: kube::Client, leadership: Leadership) -> (Self, watch::Feeds) {
        let (watches, feeds) = Watches::new();
        let events = Events::new(client.clone(), "test".into());
        let (metrics, health) = (Metrics::new(true), Health::new());
        let api = ApiServer::new(client.clone(), leadership.clone(), metrics.clone());
        let namespace = "redlock-system".to_owned();
        let (pulses, reach) = (Pulses::default(), Reach::default());
        let renew_without_api_server = Duration::from_mins(10);
        let ctx = Self {
            client,
            api,
            namespace,
            scope: Scope::default(),
            watches,
            pulses,
            renew_without_api_server,
            events,
            metrics,
            leadership,
            health,
            reach,
            claims: Claims::new("redlock-system/redlock-operator".to_owned()),
        };
        (ctx, feeds)
    }
}

/// A client of the API server by which the watches are seen to be alive.
pub(crate) fn connect(config: kube::Config, pulses: &Pulses) -> Result<kube::Client, kube::Error> {
    Ok(ClientBuilder::try_from(config)?.with_layer(pulses).build())
}

/// The settings of each watch. It is restarted before load balancers silently drop an idle connection, after four minutes.
pub(crate) fn watch_config() -> watcher::Config {
    watcher::Config::default().timeout(200)
}

/// The settings of both controllers: a bound on reconciles at a time. (The default has none.)
pub(crate) fn controller_config() -> controller::Config {
    controller::Config::default().concurrency(16)
}

/// An error and its causes, in one line, for the log.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
