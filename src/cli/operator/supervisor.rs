//! Tasks that must not end. The first that does, by a return or a panic, ends the process.
//!
//! If a task could end unnoticed, the process would look healthy and do nothing.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use tokio::task::{Id, JoinSet};
use tokio::time::timeout;

/// A task that ended.
#[derive(Debug, thiserror::Error)]
#[error("{part} ended: {cause}")]
pub(crate) struct Ended {
    /// Its name.
    pub part: &'static str,
    /// Why it ended.
    pub cause: String,
}

/// The tasks. They are aborted when it is dropped.
#[derive(Debug, Default)]
pub(super) struct Supervisor {
    tasks: JoinSet<Result<(), String>>,
    parts: HashMap<Id, &'static str>,
}

impl Supervisor {
    /// Starts a task named `part`.
    pub(super) fn spawn<E: ToString>(
        &mut self,
        part: &'static str,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let handle = self.tasks.spawn(async move { task.await.map_err(|error| error.to_string()) });
        self.parts.insert(handle.id(), part);
    }

    /// The next task that ends. Waits for ever if there are no tasks.
    pub(super) async fn next_ended(&mut self) -> Ended {
        let Some(joined) = self.tasks.join_next_with_id().await else { return std::future::pending().await };
        let (id, cause) = match joined {
            Ok((id, Ok(()))) => (id, "returned".to_owned()),
            Ok((id, Err(error))) => (id, error),
            Err(error) => (error.id(), if error.is_panic() { "panicked".to_owned() } else { "aborted".to_owned() }),
        };
        Ended { part: self.parts.remove(&id).unwrap_or("a task"), cause }
    }

    /// Waits until the tasks `parts` have ended, at most for `limit`. Returns those that have not.
    pub(super) async fn wait_for(&mut self, parts: &[&'static str], limit: Duration) -> Vec<&'static str> {
        let pending = |running: &HashMap<Id, &'static str>| {
            parts.iter().copied().filter(|part| running.values().any(|p| p == part)).collect::<Vec<_>>()
        };
        let all = async {
            while !pending(&self.parts).is_empty() {
                self.next_ended().await;
            }
        };
        // After the limit, those that have not ended are returned.
        let _ = timeout(limit, all).await;
        pending(&self.parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never() -> std::future::Pending<Result<(), String>> {
        std::future::pending()
    }

    #[tokio::test]
    async fn a_panic_is_an_end() {
        let mut tasks = Supervisor::default();
        tasks.spawn("lock controller", never());
        tasks.spawn("cluster controller", async { if true { panic!("broken") } else { Ok::<_, String>(()) } });
        assert_eq!(tasks.next_ended().await.to_string(), "cluster controller ended: panicked");
    }

    #[tokio::test]
    async fn an_error_is_told() {
        let mut tasks = Supervisor::default();
        tasks.spawn("lease", async { Err("expired") });
        assert_eq!(tasks.next_ended().await.to_string(), "lease ended: expired");
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_an_end_has_a_limit() {
        let mut tasks = Supervisor::default();
        tasks.spawn("slow", async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            Ok::<_, String>(())
        });
        tasks.spawn("stuck", never());
        tasks.spawn("server", never());
        let before = tokio::time::Instant::now();
        assert_eq!(tasks.wait_for(&["slow", "stuck"], Duration::from_secs(10)).await, ["stuck"]);
        assert_eq!(before.elapsed().as_secs(), 10);
        assert!(tasks.wait_for(&["slow"], Duration::from_secs(10)).await.is_empty());
        assert_eq!(before.elapsed().as_secs(), 10);
    }
}
