//! Many locks of one namespace.

use std::collections::BTreeMap;

use futures::StreamExt as _;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use redlock_operator::api::DistributedLock;
use serde_json::json;
use tokio::time::{Duration, Instant, sleep};

use crate::harness::{Env, objects};

/// How many requests are on their way at a time.
const AT_A_TIME: usize = 32;
/// How often the locks are listed while something is waited for.
const POLL: Duration = Duration::from_millis(500);
/// How long is waited before the run fails.
const PATIENCE: Duration = Duration::from_secs(600);
/// How many objects a list returns at a time.
const PAGE: u32 = 2000;

/// Many locks.
pub(crate) struct Fleet<'a> {
    env: &'a Env,
    locks: Api<DistributedLock>,
    size: usize,
}

impl<'a> Fleet<'a> {
    /// So many locks, which do not exist yet.
    pub(crate) fn new(env: &'a Env, size: usize) -> Self {
        Self { env, locks: env.api(), size }
    }

    /// Creates all.
    pub(crate) async fn create(&self, ttl: &str) {
        let create = |number: usize| async move {
            let spec = json!({"clusterRef": {"name": "main"}, "holder": "scale", "lease": {"ttl": ttl}});
            let lock: DistributedLock =
                objects::object(self.env, "DistributedLock", &format!("lock-{number:05}"), &spec);
            self.locks.create(&PostParams::default(), &lock).await.expect("create a lock");
        };
        futures::stream::iter(0..self.size).for_each_concurrent(AT_A_TIME, create).await;
    }

    /// Waits until all are held, and returns their tokens.
    pub(crate) async fn all_held(&self) -> BTreeMap<String, i64> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let tokens = self.tokens().await;
            if tokens.len() == self.size {
                return tokens;
            }
            assert!(Instant::now() < deadline, "{} of {} are held", tokens.len(), self.size);
            sleep(POLL).await;
        }
    }

    /// The tokens of those that are held, by name.
    pub(crate) async fn tokens(&self) -> BTreeMap<String, i64> {
        let held = self.list().await.into_iter().filter(objects::is_held);
        held.map(|lock| (lock.name_any(), objects::token(&lock))).collect()
    }

    /// Deletes all, and waits until they are gone.
    pub(crate) async fn delete(&self) {
        // A namespace that is deleted, or `kubectl delete dlock --all`, asks for each by itself.
        let names = self.list().await.into_iter().map(|lock| lock.name_any());
        let delete = |name: String| async move {
            self.locks.delete(&name, &DeleteParams::default()).await.expect("delete a lock");
        };
        futures::stream::iter(names).for_each_concurrent(AT_A_TIME, delete).await;
        let deadline = Instant::now() + PATIENCE;
        while !self.list().await.is_empty() {
            assert!(Instant::now() < deadline, "locks are left");
            sleep(POLL).await;
        }
    }

    async fn list(&self) -> Vec<DistributedLock> {
        let mut params = ListParams::default().limit(PAGE);
        let mut all = Vec::new();
        loop {
            let page = self.locks.list(&params).await.expect("list the locks");
            all.extend(page.items);
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return all;
            }
        }
    }
}
