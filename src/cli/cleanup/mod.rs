//! `redlock cleanup`: takes off the finalizers of an operator that was uninstalled, so that its objects can be deleted.
//!
//! # Invariant
//! No finalizer is taken off while an operator decides: it would rely on it, and add it again. So this process first holds the
//! Lease of the operators, as one of their candidates: it takes it when it was released, or was not seen to change for its duration
//! by this process's own monotonic clock, and each write asks for it. If this process dies, the Lease expires, and an operator that is
//! there after all goes on as if nothing had happened: it adds the finalizers again.
//!
//! # Layout
//! - [`mod@sweep`]: the objects of a kind, page by page

mod sweep;

use std::io;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, Config};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::operator::CONNECT_TIMEOUT;
use super::signals::Signals;
use crate::api::{DistributedLock, RedisLockCluster};
use crate::cluster;
use crate::contract::names::LEASE;
use crate::operator::api_server::{self, ApiServer};
use crate::operator::error_chain;
use crate::operator::leadership::Leadership;
use crate::operator::lease::{self, LeaseCandidate};
use crate::operator::metrics::Metrics;
use crate::operator::reach::Reach;
use sweep::{Swept, sweep};

/// The settings of the command.
#[derive(Clone, Debug)]
pub(super) struct Options {
    /// The namespace of the operator and its Lease; the kubeconfig's by default.
    pub namespace: Option<String>,
    /// Change nothing.
    pub dry_run: bool,
    /// How long to wait for the Lease.
    pub wait: Duration,
    /// Do without the Lease.
    pub without_lease: bool,
}

/// Why objects may have kept their finalizers.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// No configuration for an API server was found.
    #[error("no way to an API server: {0}")]
    Config(#[source] kube::config::InferConfigError),
    /// The configuration does not make a client.
    #[error("no client of the API server: {0}")]
    Client(#[source] kube::Error),
    /// The process cannot be set up, or its output cannot be written.
    #[error("failed to set up the process, or to write to standard output: {0}")]
    Process(#[from] io::Error),
    /// A request failed without which nothing can be done.
    #[error("{}", error_chain(.0))]
    Request(#[from] api_server::Error),
    /// There is no Lease to take.
    #[error(
        "no operator has ever led in the namespace {0}, since it has no Lease {LEASE}: name the operator's namespace by --namespace; \
         if its Lease or namespace was deleted and surely no operator runs, use --without-lease"
    )]
    NoLease(String),
    /// An operator holds the Lease.
    #[error(
        "an operator runs: {holder} holds the Lease {namespace}/{LEASE}, and did not release it within {wait:?}. Uninstall the operator, \
         or scale it to zero, and run this again"
    )]
    Held {
        /// Who holds it.
        holder: String,
        /// The namespace of the Lease.
        namespace: String,
        /// How long this process has waited.
        wait: Duration,
    },
    /// The Lease could not be kept.
    #[error("{0}: run this again")]
    Lost(String),
    /// It was asked to end.
    #[error("stopped by {0} before the end: run this again")]
    Stopped(&'static str),
    /// Some objects could not be changed.
    #[error("objects that have kept their finalizers, for the reasons above: {0}. Run this again")]
    Kept(usize),
}

/// Takes the finalizers off all objects of the operator.
pub(super) async fn run(options: Options) -> Result<(), Error> {
    let signals = Signals::new()?;
    let mut config = Config::infer().await.map_err(Error::Config)?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    let client = Client::try_from(config.clone()).map_err(Error::Client)?;
    // As in an operator: renewals must not wait for anything else.
    config.default_retry = false;
    let lease_client = Client::try_from(config).map_err(Error::Client)?;
    clean_up(client, lease_client, options, signals, &mut io::stdout()).await
}

async fn clean_up(
    client: Client,
    lease_client: Client,
    options: Options,
    mut signals: Signals,
    out: &mut (impl io::Write + Send),
) -> Result<(), Error> {
    let namespace = options.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    let unguarded = ApiServer::new(client.clone(), Leadership::always(), Metrics::default());
    if options.dry_run || options.without_lease {
        return tokio::select! {
            swept = sweep_all(&unguarded, &namespace, options.dry_run, out) => swept,
            signal = signals.next() => Err(Error::Stopped(signal)),
        };
    }
    if unguarded.get::<Lease>(&namespace, LEASE).await?.is_none() {
        // Where there is nothing to do, it does not matter whether an operator runs.
        let mut nowhere = io::sink();
        return match count(&unguarded, &mut nowhere).await? {
            0 => sweep::tell(out, "nothing to clean up: no object has a finalizer of the operator"),
            _ => Err(Error::NoLease(namespace)),
        };
    }

    let identity = format!("redlock-cleanup_{:016x}", rand::random::<u64>());
    let (mut candidate, leadership) = LeaseCandidate::new(lease_client, &namespace, LEASE, identity, Reach::default());
    let (drain, release) = (CancellationToken::new(), CancellationToken::new());
    let released = release.clone();
    let mut candidate = tokio::spawn(async move { candidate.run_one_term(&drain, &released).await });
    let api = ApiServer::new(client, leadership.clone(), Metrics::default());
    let result = tokio::select! {
        result = when_leading(&api, &leadership, &namespace, &options, out) => result,
        ended = &mut candidate => return Err(Error::Lost(why_ended(ended))),
        signal = signals.next() => Err(Error::Stopped(signal)),
    };
    // An operator that is installed later need not wait until the Lease expires.
    release.cancel();
    let _ = timeout(lease::REQUEST_TIMEOUT, candidate).await;
    result
}

async fn when_leading(
    api: &ApiServer,
    leadership: &Leadership,
    namespace: &str,
    options: &Options,
    out: &mut (impl io::Write + Send),
) -> Result<(), Error> {
    info!(namespace, lease = LEASE, "waiting for the Lease, so that no operator decides meanwhile");
    if timeout(options.wait, leadership.wait_until_leader()).await.is_err() {
        let lease = api.get::<Lease>(namespace, LEASE).await?;
        let holder = lease.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity);
        let holder = holder.filter(|holder| !holder.is_empty()).unwrap_or_else(|| "nobody".to_owned());
        return Err(Error::Held { holder, namespace: namespace.to_owned(), wait: options.wait });
    }
    sweep_all(api, namespace, false, out).await
}

fn why_ended(ended: Result<Result<(), lease::Error>, tokio::task::JoinError>) -> String {
    match ended {
        Ok(Ok(())) => "the Lease was released".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    }
}

/// How many finalizers there are to take off.
async fn count(api: &ApiServer, out: &mut (impl io::Write + Send)) -> Result<usize, Error> {
    let found = [
        sweep::<Pod>(api, true, out).await?,
        sweep::<RedisLockCluster>(api, true, out).await?,
        sweep::<DistributedLock>(api, true, out).await?,
    ];
    Ok(found.iter().map(|swept| swept.off).sum())
}

/// Takes the finalizers off the objects of all kinds, and prints how many.
async fn sweep_all(
    api: &ApiServer,
    namespace: &str,
    dry_run: bool,
    out: &mut (impl io::Write + Send),
) -> Result<(), Error> {
    if !dry_run {
        // First: a cluster whose finalizer is off can be deleted at any time, and leaves no tombstone.
        cluster::note_unobserved(api, namespace, Timestamp::now()).await?;
    }
    let locks = sweep::<DistributedLock>(api, dry_run, out).await?;
    let clusters = sweep::<RedisLockCluster>(api, dry_run, out).await?;
    let pods = sweep::<Pod>(api, dry_run, out).await?;
    let summary = if dry_run { "finalizers that would be taken off" } else { "finalizers taken off" };
    let [Swept { off: locks, kept: l }, Swept { off: clusters, kept: c }, Swept { off: pods, kept: p }] =
        [locks, clusters, pods];
    sweep::tell(out, &format!("{summary}: {locks} of locks, {clusters} of clusters, {pods} of masters' pods"))?;
    match l + c + p {
        0 => Ok(()),
        kept => Err(Error::Kept(kept)),
    }
}

#[cfg(test)]
mod tests;
