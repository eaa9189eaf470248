//! `redlock operator`: starts all parts, supervises them, and ends them.
//!
//! # Layout
//! - [`mod@preflight`]: whether the API server has and permits what the operator needs; [`permissions`]: which those are
//! - [`supervisor`]: no part ends unnoticed
//! - [`http`]: the probes and metrics

mod http;
mod permissions;
mod preflight;
mod supervisor;

use std::net::SocketAddr;
use std::time::Duration;

use kube::runtime::events::Reporter;
use kube::{Client, Config};
use tokio::net::TcpListener;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::signals::Signals;
use crate::contract::names::LEASE;
use crate::operator::api_server::ApiServer;
use crate::operator::claim::Claims;
use crate::operator::events::Events;
use crate::operator::health::{
    CLUSTER_CONTROLLER, CLUSTER_WATCH, Health, LOCK_CONTROLLER, LOCK_WATCH, NAMESPACE_WATCH,
};
use crate::operator::lease::{LeaseCandidate, REQUEST_TIMEOUT};
use crate::operator::metrics::Metrics;
use crate::operator::reach::Reach;
use crate::operator::scope::Scope;
use crate::operator::watch::pulse::Pulses;
use crate::operator::watch::{Feeds, Watches};
use crate::operator::{Context, connect};
use crate::{cluster, lock};
use http::{Sources, router};
use supervisor::{Ended, Supervisor};

/// Name of this program in Events.
const REPORTER: &str = "redlock-operator";
/// Timeout of connecting to the API server.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two heartbeats of the supervisor.
const BEAT: Duration = Duration::from_secs(1);
/// Pause after a failed preflight check.
const PREFLIGHT_PAUSE: Duration = Duration::from_secs(5);
/// How long the controllers may take to carry out their last decisions. Together with the release of the Lease and the end of
/// renewals it stays below the pod's `terminationGracePeriodSeconds`.
const GRACE: Duration = Duration::from_secs(8);

/// How long the keeper may take to leave its leases.
const LAST_RENEWALS: Duration = Duration::from_secs(5);

const LEASE_TASK: &str = "lease";
const HTTP: &str = "http server";
const API_SERVER: &str = "operator";

/// The settings of the operator.
#[derive(Clone, Debug)]
pub(super) struct Options {
    /// Image of masters whose cluster does not name one.
    pub redis_image: String,
    /// How many statuses of locks a second have their times refreshed.
    pub status_refreshes: u32,
    /// Whether each lock has a metric of its own.
    pub lock_metrics: bool,
    /// Address of the HTTP server.
    pub listen: SocketAddr,
    /// The namespace of the operator and its Lease; the kubeconfig's by default.
    pub namespace: Option<String>,
    /// Name of its pod.
    pub pod_name: Option<String>,
    /// UID of its pod.
    pub pod_uid: Option<String>,
    /// The namespaces to serve; none: all.
    pub watch_namespaces: Vec<String>,
    /// How long held locks are renewed without a word of the API server.
    pub renew_without_api_server: Duration,
}

/// Why the operator ended, or did not start.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// No configuration for an API server was found.
    #[error("no way to an API server: {0}")]
    Config(#[source] kube::config::InferConfigError),
    /// The configuration does not make a client.
    #[error("no client of the API server: {0}")]
    Client(#[source] kube::Error),
    /// The address is taken, or is not one of this pod.
    #[error("failed to listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why it cannot be listened on.
        error: std::io::Error,
    },
    /// The process cannot be set up.
    #[error("failed to set up the process: {0}")]
    Process(#[from] std::io::Error),
    /// A part ended, which must not happen.
    #[error(transparent)]
    Ended(#[from] Ended),
}

/// The identity that contends for the Lease. Unique to the pod, also if a later pod has the same name.
fn identity(pod_name: Option<&str>, pod_uid: Option<&str>) -> String {
    let unique = pod_uid.map_or_else(|| format!("{:016x}", rand::random::<u64>()), str::to_owned);
    format!("{}_{unique}", pod_name.unwrap_or(REPORTER))
}

/// Runs the operator until SIGTERM or SIGINT, or until a part of it ends. The process must end afterwards.
pub(super) async fn run(options: Options) -> Result<(), Error> {
    let mut signals = Signals::new()?;
    let mut config = Config::infer().await.map_err(Error::Config)?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    let pulses = Pulses::default();
    let client = connect(config.clone(), &pulses).map_err(Error::Client)?;
    // The Lease has a client of its own, without hidden retries: its renewals must not wait for anything else.
    config.default_retry = false;
    let lease_client = Client::try_from(config).map_err(Error::Client)?;

    let namespace = options.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    let identity = identity(options.pod_name.as_deref(), options.pod_uid.as_deref());
    let reach = Reach::default();
    let (candidate, leadership) = LeaseCandidate::new(lease_client, &namespace, LEASE, identity, reach.clone());
    let reporter = Reporter { controller: REPORTER.to_owned(), instance: options.pod_name.clone() };
    let (watches, feeds) = Watches::new();
    let health = Health::of(pulses.clone());
    let metrics = Metrics::new(options.lock_metrics);
    let ctx = Context {
        events: Events::new(client.clone(), reporter),
        api: ApiServer::new(client.clone(), leadership.clone(), metrics.clone()),
        namespace: namespace.clone(),
        scope: Scope::of(options.watch_namespaces.clone()),
        watches,
        pulses,
        renew_without_api_server: options.renew_without_api_server,
        client,
        metrics,
        leadership,
        health,
        reach,
        claims: Claims::new(format!("{namespace}/{LEASE}")),
    };

    let mut tasks = Supervisor::default();
    let address = options.listen;
    let listener = TcpListener::bind(address).await.map_err(|error| Error::Listen { address, error })?;
    let sources =
        Sources { health: ctx.health.clone(), metrics: ctx.metrics.clone(), leadership: ctx.leadership.clone() };
    tasks.spawn(HTTP, axum::serve(listener, router(sources)).into_future());
    if crate::IS_UNSAFE {
        error!("built with the feature unsafe-for-chaos: masters come back at once, and two may hold a lock at once");
    }
    info!(version = env!("CARGO_PKG_VERSION"), %address, namespace, "the operator starts");

    ctx.health.awaits(API_SERVER, "the answer of the API server");
    let passed = preflight(&ctx, &namespace);
    if let Some(result) = tokio::select! {
        () = passed => None,
        result = supervise(&mut tasks, &mut signals, &ctx.health) => Some(result),
    } {
        return result;
    }

    let (stop, release) = (lock::Stop::default(), CancellationToken::new());
    start(&mut tasks, &ctx, &options, feeds, candidate, &stop, &release);
    let result = supervise(&mut tasks, &mut signals, &ctx.health).await;
    tokio::select! {
        () = end(&mut tasks, &stop, &release) => {}
        signal = signals.next() => warn!(signal, "ending at once, without releasing the Lease"),
    }
    result
}

/// Starts the watches, the controllers and the candidate.
fn start(
    tasks: &mut Supervisor,
    ctx: &Context,
    options: &Options,
    feeds: Feeds,
    candidate: LeaseCandidate,
    stop: &lock::Stop,
    release: &CancellationToken,
) {
    for controller in [CLUSTER_CONTROLLER, LOCK_CONTROLLER] {
        ctx.health.awaits(controller, "the first list of what it watches");
    }
    let Feeds { clusters, locks, namespaces } = feeds;
    let (sources, scope, metrics) = (ctx.scope.sources(&ctx.client), ctx.scope.clone(), ctx.metrics.clone());
    tasks.spawn(CLUSTER_WATCH, async move { returns(clusters.run(sources, scope.namespaces(), metrics)).await });
    let (sources, scope, metrics) = (ctx.scope.sources(&ctx.client), ctx.scope.clone(), ctx.metrics.clone());
    tasks.spawn(LOCK_WATCH, async move { returns(locks.run(sources, scope.namespaces(), metrics)).await });
    let (sources, scope, metrics) = (ctx.scope.namespace_sources(&ctx.client), ctx.scope.clone(), ctx.metrics.clone());
    tasks.spawn(NAMESPACE_WATCH, async move { returns(namespaces.run(sources, scope.namespaces(), metrics)).await });
    let cluster = cluster::run(ctx.clone(), options.redis_image.clone(), stop.deciding.clone());
    tasks.spawn(CLUSTER_CONTROLLER, returns(cluster));
    let lock = lock::run(ctx.clone(), options.status_refreshes, stop.clone());
    tasks.spawn(LOCK_CONTROLLER, returns(lock));
    tasks.spawn(LEASE_TASK, returns(candidate.run(stop.deciding.clone(), release.clone())));
}

async fn returns(task: impl Future<Output = ()>) -> Result<(), String> {
    task.await;
    Ok(())
}

/// Waits until the preflight check succeeds. The obstacle is logged and shown by the readiness probe. Ending the process
/// would not help: the next start would find the same.
async fn preflight(ctx: &Context, namespace: &str) {
    let mut logged = String::new();
    while let Err(obstacle) = preflight::check(&ctx.client, namespace, &ctx.scope, LEASE).await {
        let obstacle = obstacle.to_string();
        if obstacle != logged {
            error!("not started yet: {obstacle}");
        }
        ctx.health.awaits(API_SERVER, obstacle.as_str());
        logged = obstacle;
        sleep(PREFLIGHT_PAUSE).await;
    }
    ctx.health.arrived(API_SERVER);
}

/// Waits for a signal, or for the end of a part, which is an error.
async fn supervise(tasks: &mut Supervisor, signals: &mut Signals, health: &Health) -> Result<(), Error> {
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            ended = tasks.next_ended() => {
                error!("{ended}");
                health.ended(ended.part);
                return Err(ended.into());
            }
            signal = signals.next() => {
                info!(signal, "the operator ends");
                health.awaits(API_SERVER, "its end");
                return Ok(());
            }
            _ = beat.tick() => health.beat(),
        }
    }
}

/// Ends deciding, then releases the Lease: the next leader must not begin before this one has ended. Held locks are renewed to the
/// last, so that they do not depend on how soon that is.
async fn end(tasks: &mut Supervisor, stop: &lock::Stop, release: &CancellationToken) {
    stop.deciding.cancel();
    let deadline = Instant::now() + GRACE;
    for part in tasks.wait_for(&[CLUSTER_CONTROLLER], GRACE).await {
        warn!(part, "did not end within {GRACE:?}");
    }
    if timeout_at(deadline, stop.decided.cancelled()).await.is_err() {
        warn!(part = LOCK_CONTROLLER, "did not carry out its last decisions within {GRACE:?}");
    }
    release.cancel();
    for part in tasks.wait_for(&[LEASE_TASK], REQUEST_TIMEOUT + BEAT).await {
        warn!(part, "did not end");
    }
    stop.renewing.cancel();
    for part in tasks.wait_for(&[LOCK_CONTROLLER], LAST_RENEWALS).await {
        warn!(part, "did not end");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_pods_of_one_name_are_two_candidates() {
        assert_eq!(identity(Some("op-0"), Some("u-1")), "op-0_u-1");
        assert_ne!(identity(Some("op-0"), None), identity(Some("op-0"), None));
        assert!(identity(None, None).starts_with("redlock-operator_"));
    }
}
