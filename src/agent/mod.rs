//! `redlock agent`: a sidecar that elects a leader among pods, straight on the masters.
//!
//! It needs neither the operator nor the API server: elections go on while both are down.
//!
//! # Layout
//! - [`election`]: contends, leads until the lease is lost, contends again, releases at the end
//! - [`answer`]: what it answers to "who leads?", by its own monotonic clock
//! - [`http`]: how the application asks
//! - [`metrics`]: what is counted
//!
//! Where the masters are, and the login, come from the mounted Secret: [`crate::contract::client_secret`].

mod answer;
mod election;
mod http;
mod metrics;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use redlock_engine::{Client, LeaseOptions, LockKey, RedisMaster, Renewal};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::contract::client_secret::{MountedSecret, SecretError};
use election::Election;

/// The settings of the agent.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the lock within the Secret's namespace.
    pub lock: String,
    /// Identity of this pod: unique among the contenders.
    pub identity: String,
    /// Time to live of the lock.
    pub ttl: Duration,
    /// How often the lease is renewed; a third of the TTL by default.
    pub renew_every: Option<Duration>,
    /// Folder in which the Secret is mounted.
    pub secret_dir: PathBuf,
    /// Address of the HTTP server.
    pub listen: SocketAddr,
}

/// Why the agent ended, or did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The Secret is not mounted, or was not written by this operator.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The settings contradict each other, or what the cluster permits.
    #[error("{0}")]
    Options(String),
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
    /// A part of the process ended, which must not happen.
    #[error("{0} ended")]
    Ended(&'static str),
}

impl Error {
    /// Whether the configuration is at fault: the same start will fail again.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        matches!(self, Self::Secret(_) | Self::Options(_))
    }
}

/// Shortest time between renewals.
const MIN_RENEW_EVERY: Duration = Duration::from_millis(100);
/// Longest identity: the longest name of a pod.
const MAX_IDENTITY: usize = 253;

/// The terms of the lease. Refuses settings that contradict each other, or what the cluster permits.
fn lease_options(options: &Options, max_ttl: Duration) -> Result<LeaseOptions, Error> {
    let Options { identity, ttl, renew_every, .. } = options;
    let refuse = |message: String| Err(Error::Options(message));
    if identity.is_empty() || identity.len() > MAX_IDENTITY || identity.chars().any(|c| c.is_control() || c == ' ') {
        return refuse(format!("--identity (POD_NAME) must have 1 to {MAX_IDENTITY} characters and no space"));
    }
    if *ttl > max_ttl {
        return refuse(format!("--ttl {ttl:?} is above {max_ttl:?}, the maxTTL of the cluster"));
    }
    let renew_every = renew_every.unwrap_or(*ttl / 3);
    if renew_every < MIN_RENEW_EVERY || renew_every > *ttl / 2 {
        return refuse(format!(
            "a lease of {ttl:?} cannot be renewed every {renew_every:?}: from {MIN_RENEW_EVERY:?} to half of --ttl \
             (default a third), so that one failed renewal loses nothing"
        ));
    }
    Ok(LeaseOptions::new(identity, *ttl).renewal(Renewal::Every(renew_every)))
}

/// Runs the agent until SIGTERM or SIGINT.
pub async fn run(options: Options) -> Result<(), Error> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let on_signal = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => info!("SIGTERM: releasing"),
            _ = int.recv() => info!("SIGINT: releasing"),
        }
        on_signal.cancel();
    });
    let listener =
        TcpListener::bind(options.listen).await.map_err(|error| Error::Listen { address: options.listen, error })?;
    serve(options, listener, stop).await
}

/// Contends, and answers on `listener`, until `stop`; then releases.
pub async fn serve(options: Options, listener: TcpListener, stop: CancellationToken) -> Result<(), Error> {
    let secret = MountedSecret::read(&options.secret_dir)?;
    let key = LockKey::new(&secret.namespace, &options.lock).map_err(|e| Error::Options(format!("--lock: {e}")))?;
    let lease = lease_options(&options, secret.max_ttl)?;
    info!(%key, identity = lease.identity, ttl = ?lease.ttl, masters = secret.endpoints.len(), "contending");
    let client = Client::new(secret.endpoints.into_iter().map(RedisMaster::connect), secret.call_timeout)
        .map_err(|e| Error::Options(format!("the mounted Secret: {e}")))?;
    let election = Election::new(client, key, lease);
    let server = axum::serve(listener, http::router(election.clone()));
    tokio::select! {
        () = election.run(stop) => Ok(()),
        result = server.into_future() => { result?; Err(Error::Ended("the HTTP server")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(identity: &str, ttl: u64, renew_every: Option<u64>) -> Options {
        Options {
            lock: "web".to_owned(),
            identity: identity.to_owned(),
            ttl: Duration::from_millis(ttl),
            renew_every: renew_every.map(Duration::from_millis),
            secret_dir: PathBuf::new(),
            listen: ([127, 0, 0, 1], 0).into(),
        }
    }

    #[test]
    fn a_lease_is_renewed_each_third_of_its_ttl() {
        let max = Duration::from_secs(60);
        let lease = lease_options(&options("web-0", 15_000, None), max).unwrap();
        assert_eq!((lease.ttl, lease.renewal), (Duration::from_secs(15), Renewal::Every(Duration::from_secs(5))));
        let lease = lease_options(&options("web-0", 15_000, Some(7_500)), max).unwrap();
        assert_eq!(lease.renewal, Renewal::Every(Duration::from_millis(7_500)));
    }

    #[test]
    fn options_that_could_not_work_say_why() {
        for (options, word) in [
            (options("", 15_000, None), "--identity"),
            (options("a b", 15_000, None), "--identity"),
            (options("web-0", 60_001, None), "maxTTL"),
            (options("web-0", 15_000, Some(7_501)), "half of --ttl"),
            (options("web-0", 150, None), "from 100ms"),
        ] {
            let error = lease_options(&options, Duration::from_secs(60)).unwrap_err();
            assert!(error.to_string().contains(word) && error.is_configuration(), "{error}");
        }
    }
}
