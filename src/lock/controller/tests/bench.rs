//! A reconciler against an API server that answers as a test says, and that records the requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use http::{Request, Response, StatusCode};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use kube::client::Body;
use kube::core::Status;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

use super::super::reconcile;
use crate::api::{DistributedLock, RedisLockCluster, WatchedLock};
use crate::contract::credentials::RootKey;
use crate::lock::events::{EventSender, LockEvent};
use crate::lock::fixtures;
use crate::lock::reconciler::Reconciler;
use crate::lock::status::StatusSchedule;
use crate::operator::Context;
use crate::operator::api_server::Error;
use crate::operator::leadership::Leadership;
use crate::operator::watch::Feeds;

pub(super) const LOCK: &str = "/apis/redlock.dev/v1alpha1/namespaces/billing/distributedlocks/nightly";
pub(super) const STATUS: &str = "/apis/redlock.dev/v1alpha1/namespaces/billing/distributedlocks/nightly/status";
pub(super) const AUTH: &str = "/api/v1/namespaces/locks/secrets/quintet-auth";
pub(super) const SECRETS: &str = "/api/v1/namespaces/billing/secrets";
pub(super) const SECRET: &str = "/api/v1/namespaces/billing/secrets/quintet.locks-client";

/// The answer to a request; `None`: it is never answered.
pub(super) type Answer = Option<(StatusCode, Value)>;
/// A method with a path, and the body.
pub(super) type Asked = (String, Value);

/// A reconciler, and all that it talks to.
pub(super) struct Bench {
    pub(super) reconciler: Arc<Reconciler>,
    asked: Arc<Mutex<Vec<Asked>>>,
    is_asked: Arc<Notify>,
    pub(super) events: mpsc::Receiver<(ObjectReference, LockEvent)>,
    pub(super) feeds: Feeds,
    scheduled: BoxStream<'static, ObjectRef<WatchedLock>>,
}

#[expect(clippy::unnecessary_wraps, reason = "an answer, of which there may be none")]
pub(super) fn refusal(code: StatusCode) -> Answer {
    let reason = match code {
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::FORBIDDEN => "Forbidden",
        _ => "InternalError",
    };
    Some((code, serde_json::to_value(Status::failure("no", reason).with_code(code.as_u16())).unwrap()))
}

#[expect(clippy::unnecessary_wraps, reason = "an answer, of which there may be none")]
pub(super) fn found(object: impl serde::Serialize) -> Answer {
    Some((StatusCode::OK, serde_json::to_value(object).unwrap()))
}

pub(super) fn auth() -> Answer {
    let data = [("key".to_owned(), ByteString(RootKey::generate().to_text().into_bytes()))].into();
    found(Secret { data: Some(data), ..Secret::default() })
}

/// The answer of an API server that stores only what is written to it.
fn default_answer(asked: &str, body: &Value) -> Answer {
    match asked.split_once(' ').unwrap() {
        ("GET", _) => refusal(StatusCode::NOT_FOUND),
        ("PATCH", LOCK) => found(json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "nightly"},
        })),
        ("PATCH", STATUS) => {
            // A write makes a new version, after that of the finalizer.
            let mut written = fixtures::lock();
            written.metadata.resource_version = Some("102".to_owned());
            found(written)
        }
        ("POST" | "PATCH", _) => Some((StatusCode::OK, body.clone())),
        (method, path) => panic!("unexpected: {method} {path}"),
    }
}

impl Bench {
    pub(super) fn new(
        leadership: Leadership,
        cluster: Option<RedisLockCluster>,
        answers: Vec<(String, Answer)>,
    ) -> Self {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let answers: HashMap<String, Answer> = answers.into_iter().collect();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let is_asked = Arc::new(Notify::new());
        let (log, notify) = (Arc::clone(&asked), Arc::clone(&is_asked));
        tokio::spawn(async move {
            while let Some((request, send)) = handle.next_request().await {
                let (parts, body) = request.into_parts();
                let body = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or(Value::Null);
                let asked = format!("{} {}", parts.method, parts.uri.path());
                let answer = answers.get(&asked).cloned().unwrap_or_else(|| default_answer(&asked, &body));
                log.lock().unwrap().push((asked, body));
                notify.notify_one();
                match answer {
                    Some((code, body)) => send.send_response(
                        Response::builder().status(code).body(Body::from(serde_json::to_vec(&body).unwrap())).unwrap(),
                    ),
                    None => std::mem::forget(send),
                }
            }
        });
        let client = kube::Client::new(service, "default");
        let (ctx, mut feeds) = Context::for_tests(client, leadership);
        feeds.clusters.list(cluster.map(fixtures::watched_cluster));
        feeds.locks.list([]);
        feeds.namespaces.list([fixtures::namespace()]);
        let (sender, events) = EventSender::channel();
        let (schedule, scheduled) = StatusSchedule::new(20);
        let reconciler = Arc::new(Reconciler::new(&ctx, sender, Arc::new(schedule)));
        Self { reconciler, asked, is_asked, events, feeds, scheduled: scheduled.boxed() }
    }

    pub(super) fn leading(cluster: Option<RedisLockCluster>, answers: Vec<(String, Answer)>) -> Self {
        Self::new(Leadership::always(), cluster, answers)
    }

    pub(super) async fn reconcile(&self, lock: &DistributedLock) -> Result<Action, Error> {
        reconcile(Arc::new(fixtures::watched(lock.clone())), Arc::clone(&self.reconciler)).await
    }

    /// Waits until the actor has found that nothing answers at the masters' addresses.
    pub(super) async fn trouble(&mut self) {
        while self.reconciler.keeper.state(fixtures::UID).is_none_or(|state| state.trouble().is_none()) {
            self.scheduled.next().await;
        }
    }

    /// Waits for a request, and returns its body. Requests before it are dropped.
    pub(super) async fn until_asked(&self, wanted: &str) -> Value {
        loop {
            let request = self.asked().into_iter().find(|(asked, _)| asked == wanted);
            match request {
                Some((_, body)) => return body,
                None => self.is_asked.notified().await,
            }
        }
    }

    /// The requests since the last call.
    pub(super) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    pub(super) fn writes(&self) -> Vec<String> {
        self.asked().into_iter().map(|(asked, _)| asked).filter(|asked| !asked.starts_with("GET ")).collect()
    }

    pub(super) fn sent_events(&mut self) -> Vec<LockEvent> {
        std::iter::from_fn(|| self.events.recv().now_or_never().flatten()).map(|(_, event)| event).collect()
    }
}
