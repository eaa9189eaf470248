//! Why a reconcile of a lock did not come to its end.

use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;

/// How long a request to the API server may take. A request without a limit would hold up its lock for ever.
const API_LIMIT: Duration = Duration::from_secs(10);

/// Why a reconcile did not come to its end. It is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused or failed.
    #[error("failed to {action}")]
    Api {
        /// What was to be done.
        action: &'static str,
        /// What it said.
        source: Box<kube::Error>,
    },
    /// The API server did not answer in time.
    #[error("failed to {action}: no answer from the API server within {API_LIMIT:?}")]
    Timeout {
        /// What was to be done.
        action: &'static str,
    },
    /// A promise within this program does not hold.
    #[error("internal error: {0}")]
    Internal(&'static str),
}

impl Error {
    /// The bounded word for it: a label of metrics.
    #[must_use]
    pub fn category(&self) -> &'static str {
        match self {
            Self::Api { source, .. } => match &**source {
                kube::Error::Api(status) if status.is_forbidden() => "forbidden",
                kube::Error::Api(status) if status.is_conflict() || status.is_already_exists() => "conflict",
                kube::Error::Api(status) if status.is_not_found() => "not_found",
                kube::Error::Api(status) if status.is_invalid() => "invalid",
                kube::Error::Api(_) => "api",
                _ => "connection",
            },
            Self::Timeout { .. } => "timeout",
            Self::Internal(_) => "internal",
        }
    }

    /// When to try again. Somebody else's write is over at once; what a person has to repair is not worth many requests.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        match self.category() {
            "conflict" | "not_found" => Duration::from_secs(1),
            "forbidden" | "invalid" | "internal" => Duration::from_secs(30),
            _ => Duration::from_secs(5),
        }
    }

    /// Whether the API server said that there is no such object.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.category() == "not_found"
    }
}

/// The answer to `request`, or an error that says what it was to do.
pub async fn within<T>(
    action: &'static str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    match timeout(API_LIMIT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(Error::Api { action, source: Box::new(source) }),
        Err(_) => Err(Error::Timeout { action }),
    }
}
