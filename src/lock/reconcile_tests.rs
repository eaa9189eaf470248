//! Reconciles against an API server that answers as each test says, and remembers what it was asked.

use std::collections::HashMap;
use std::sync::Mutex;

use futures::FutureExt as _;
use http::{Request, Response, StatusCode};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::client::Body;
use kube::core::Status;
use kube::runtime::{reflector, watcher};
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::*;
use crate::api::cluster::{AllowedNamespaces, NamespacesFrom};
use crate::api::lock::LeaseSpec;
use crate::contract::credentials::RootKey;
use crate::lock::fixtures;
use crate::lock::keeper::Shared;
use crate::operator::leadership::Leadership;

const LOCK: &str = "/apis/redlock.dev/v1alpha1/namespaces/billing/distributedlocks/nightly";
const STATUS: &str = "/apis/redlock.dev/v1alpha1/namespaces/billing/distributedlocks/nightly/status";
const AUTH: &str = "/api/v1/namespaces/locks/secrets/quintet-auth";
const SECRETS: &str = "/api/v1/namespaces/billing/secrets";
const SECRET: &str = "/api/v1/namespaces/billing/secrets/quintet-client";

/// What a request is answered with; `None` never.
type Answer = Option<(StatusCode, Value)>;
/// A method with a path, and the body.
type Asked = (String, Value);

struct Bench {
    reconciler: Arc<Reconciler>,
    asked: Arc<Mutex<Vec<Asked>>>,
    told: mpsc::Receiver<(ObjectReference, Notice)>,
    locks: reflector::store::Writer<Watched>,
    _clusters: reflector::store::Writer<WatchedCluster>,
    events: futures::stream::BoxStream<'static, ObjectRef<Watched>>,
}

#[expect(clippy::unnecessary_wraps, reason = "an answer, of which there may be none")]
fn refusal(code: StatusCode) -> Answer {
    let reason = match code {
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::FORBIDDEN => "Forbidden",
        _ => "InternalError",
    };
    Some((code, serde_json::to_value(Status::failure("no", reason).with_code(code.as_u16())).unwrap()))
}

#[expect(clippy::unnecessary_wraps, reason = "an answer, of which there may be none")]
fn found(object: impl serde::Serialize) -> Answer {
    Some((StatusCode::OK, serde_json::to_value(object).unwrap()))
}

fn auth() -> Answer {
    let data = [("key".to_owned(), ByteString(RootKey::generate().to_text().into_bytes()))].into();
    found(Secret { data: Some(data), ..Secret::default() })
}

/// What an API server answers that has nothing but what it is given.
fn default_answer(asked: &str, body: &Value) -> Answer {
    match asked.split_once(' ').unwrap() {
        ("GET", _) => refusal(StatusCode::NOT_FOUND),
        ("PATCH", LOCK) => found(json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "nightly"},
        })),
        ("PATCH", STATUS) => found(fixtures::lock()),
        ("POST" | "PATCH", _) => Some((StatusCode::OK, body.clone())),
        (method, path) => panic!("unexpected: {method} {path}"),
    }
}

impl Bench {
    fn new(leadership: Leadership, cluster: Option<RedisLockCluster>, answers: Vec<(String, Answer)>) -> Self {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let answers: HashMap<String, Answer> = answers.into_iter().collect();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Some((request, send)) = handle.next_request().await {
                let (parts, body) = request.into_parts();
                let body = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or(Value::Null);
                let asked = format!("{} {}", parts.method, parts.uri.path());
                let answer = answers.get(&asked).cloned().unwrap_or_else(|| default_answer(&asked, &body));
                log.lock().unwrap().push((asked, body));
                match answer {
                    Some((code, body)) => send.send_response(
                        Response::builder().status(code).body(Body::from(serde_json::to_vec(&body).unwrap())).unwrap(),
                    ),
                    None => std::mem::forget(send),
                }
            }
        });
        let client = kube::Client::new(service, "default");
        let (ctx, _) = Context::for_tests(client, leadership);
        let (notices, told) = Notices::channel();
        let (publisher, events) = Publisher::new(20);
        let publisher = Arc::new(publisher);
        let shared = Shared::new(ctx.leadership.clone(), ctx.metrics.clone(), notices.clone(), Arc::clone(&publisher));
        let (locks, mut locks_writer) = reflector::store();
        let (clusters, mut clusters_writer) = reflector::store();
        clusters_writer.apply_watcher_event(&watcher::Event::Init);
        if let Some(cluster) = cluster {
            clusters_writer.apply_watcher_event(&watcher::Event::InitApply(kube::core::DeserializeGuard(Ok(cluster))));
        }
        clusters_writer.apply_watcher_event(&watcher::Event::InitDone);
        let keeper = Keeper::new(Arc::new(shared));
        let reconciler =
            Arc::new(Reconciler::new(&ctx, notices, publisher, keeper, locks, clusters, watch::channel(true).1));
        locks_writer.apply_watcher_event(&watcher::Event::Init);
        locks_writer.apply_watcher_event(&watcher::Event::InitDone);
        let events = futures::StreamExt::boxed(events);
        Self { reconciler, asked, told, locks: locks_writer, _clusters: clusters_writer, events }
    }

    fn leading(cluster: Option<RedisLockCluster>, answers: Vec<(String, Answer)>) -> Self {
        Self::new(Leadership::always(), cluster, answers)
    }

    async fn look(&self, lock: &DistributedLock) -> Result<Action, Error> {
        self.reconciler.reconcile(&kube::core::DeserializeGuard(Ok(lock.clone()))).await
    }

    /// What was asked since the last time.
    fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    fn writes(&self) -> Vec<String> {
        self.asked().into_iter().map(|(asked, _)| asked).filter(|asked| !asked.starts_with("GET ")).collect()
    }

    fn notices(&mut self) -> Vec<Notice> {
        std::iter::from_fn(|| self.told.recv().now_or_never().flatten()).map(|(_, notice)| notice).collect()
    }
}

fn reason(body: &Value, type_: &str) -> String {
    let conditions = body["status"]["conditions"].as_array().unwrap();
    let condition = conditions.iter().find(|c| c["type"] == type_).unwrap();
    format!("{} {}", condition["status"].as_str().unwrap(), condition["reason"].as_str().unwrap())
}

fn deleted(mut lock: DistributedLock) -> DistributedLock {
    lock.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    lock.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    lock
}

fn removal() -> Value {
    json!([
        {"op": "test", "path": "/metadata/uid", "value": fixtures::UID},
        {"op": "test", "path": "/metadata/finalizers/0", "value": FINALIZER},
        {"op": "remove", "path": "/metadata/finalizers/0"},
    ])
}

#[tokio::test]
async fn what_status_shows_is_not_written_again() {
    let bench = Bench::leading(None, vec![]);
    let mut lock = fixtures::lock();
    bench.look(&lock).await.unwrap();
    let asked = bench.asked();
    assert_eq!(asked.len(), 1);
    let (request, body) = &asked[0];
    assert_eq!(*request, format!("PATCH {STATUS}"));
    assert_eq!(body["status"]["phase"], "Pending");
    assert_eq!(reason(body, "ClusterAvailable"), "False ClusterNotFound");
    assert_eq!(body["metadata"], json!({"name": "nightly", "uid": fixtures::UID}));

    bench.look(&lock).await.unwrap();
    assert_eq!(bench.writes(), [""; 0], "the cache does not show the write yet");
    lock.status = serde_json::from_value(body["status"].clone()).unwrap();
    lock.metadata.resource_version = Some("101".to_owned());
    bench.look(&lock).await.unwrap();
    assert_eq!(bench.writes(), [""; 0], "the cache shows the write");
}

#[tokio::test]
async fn each_obstacle_is_written_to_status() {
    let mut narrow = fixtures::cluster();
    narrow.spec.allowed_namespaces = Some(AllowedNamespaces { from: NamespacesFrom::Same });
    let mut long = fixtures::lock();
    long.spec.lease = Some(LeaseSpec { ttl: Some(Duration::from_secs(90).into()), renew_every: None });
    let empty = found(Secret::default());
    let (lock, cluster) = (fixtures::lock, fixtures::cluster);
    for (lock, cluster, auth, phase, type_, expected) in [
        (lock(), narrow, auth(), "Failed", "ConfigValid", "False NamespaceNotAllowed"),
        (long, cluster(), auth(), "Failed", "ConfigValid", "False TtlAboveMaximum"),
        (lock(), cluster(), refusal(StatusCode::NOT_FOUND), "Pending", "ClusterAvailable", "False AuthSecretNotFound"),
        (lock(), cluster(), empty, "Pending", "ClusterAvailable", "False AuthSecretInvalid"),
    ] {
        let bench = Bench::leading(Some(cluster), vec![(format!("GET {AUTH}"), auth)]);
        bench.look(&lock).await.unwrap();
        let (request, body) = bench.asked().pop().unwrap();
        assert_eq!(request, format!("PATCH {STATUS}"), "{expected}");
        assert_eq!(reason(&body, type_), expected);
        assert_eq!(body["status"]["phase"], phase, "{expected}");
    }
}

#[tokio::test]
async fn an_api_server_that_fails_says_nothing_of_the_lock() {
    let secret = (format!("GET {AUTH}"), refusal(StatusCode::INTERNAL_SERVER_ERROR));
    let bench = Bench::leading(Some(fixtures::cluster()), vec![secret]);
    let mut lock = fixtures::lock();
    lock.status = Some(fixtures::held_status(17));
    let error = bench.look(&lock).await.unwrap_err();
    assert_eq!((error.category(), error.to_string().as_str()), ("api", "failed to read the cluster's Secret"));
    assert_eq!(bench.writes(), [""; 0], "the grant that status shows may stand");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_never_answered_ends() {
    let bench = Bench::leading(None, vec![(format!("PATCH {STATUS}"), None)]);
    let error = bench.look(&fixtures::lock()).await.unwrap_err();
    assert_eq!(error.category(), "timeout");
}

#[tokio::test]
async fn the_finalizer_is_there_before_anything_is_taken_and_trouble_is_shown_by_its_reason() {
    let mut bench = Bench::leading(Some(fixtures::cluster()), vec![(format!("GET {AUTH}"), auth())]);
    let mut lock = fixtures::lock();
    bench.look(&lock).await.unwrap();
    let asked = bench.asked();
    let (request, body) = asked.iter().find(|(asked, _)| !asked.starts_with("GET ")).unwrap();
    assert_eq!((request.as_str(), &body[2]["value"]), (format!("PATCH {LOCK}").as_str(), &json!([FINALIZER])));
    assert!(asked.iter().any(|(asked, _)| *asked == format!("POST {SECRETS}")), "{asked:?}");
    lock.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);

    // Nothing answers at the masters' addresses.
    while bench.reconciler.keeper.state(fixtures::UID).is_none_or(|state| state.trouble().is_none()) {
        futures::StreamExt::next(&mut bench.events).await;
    }
    bench.look(&lock).await.unwrap();
    let shown: Vec<_> =
        asked.into_iter().chain(bench.asked()).filter(|(a, _)| *a == format!("PATCH {STATUS}")).collect();
    let [(_, body)] = &shown[..] else { panic!("one write tells it all: {shown:?}") };
    assert_eq!(body["status"]["phase"], "Waiting");
    assert_eq!(reason(body, "Held"), "False NoQuorum");
    assert_eq!(reason(body, "ClusterAvailable"), "False NoQuorum");
    bench.look(&lock).await.unwrap();
    assert_eq!(bench.writes(), [""; 0], "the Secret is written once");
}

#[tokio::test]
async fn a_foreign_secret_is_not_touched_and_told() {
    let foreign = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "x"}});
    let answers = vec![(format!("GET {AUTH}"), auth()), (format!("GET {SECRET}"), found(foreign))];
    let mut bench = Bench::leading(Some(fixtures::cluster()), answers);
    let lock = fixtures::lock();
    bench.look(&lock).await.unwrap();
    while bench.reconciler.keeper.state(fixtures::UID).is_none_or(|state| state.trouble().is_none()) {
        futures::StreamExt::next(&mut bench.events).await;
    }
    bench.look(&lock).await.unwrap();
    let asked = bench.asked();
    assert!(!asked.iter().any(|(asked, _)| asked.contains("secrets") && !asked.starts_with("GET ")), "{asked:?}");
    assert_eq!(reason(&asked.last().unwrap().1, "ConfigValid"), "False NameConflict");
}

#[tokio::test]
async fn a_deleted_lock_is_let_go_though_its_cluster_is_gone() {
    let mut bench = Bench::leading(None, vec![]);
    let mut lock = deleted(fixtures::lock());
    lock.status = Some(fixtures::held_status(17));
    bench.look(&lock).await.unwrap();
    assert_eq!(bench.asked().pop(), Some((format!("PATCH {LOCK}"), removal())));
    assert!(matches!(bench.notices()[..], [Notice::LeftToExpire(_)]));
}

#[tokio::test]
async fn a_deleted_lock_is_let_go_though_the_masters_its_secret_and_permissions_are_gone() {
    for code in [StatusCode::NOT_FOUND, StatusCode::INTERNAL_SERVER_ERROR] {
        let answers =
            vec![(format!("GET {AUTH}"), refusal(code)), (format!("GET {SECRET}"), refusal(StatusCode::FORBIDDEN))];
        let bench = Bench::leading(Some(fixtures::cluster()), answers);
        bench.look(&deleted(fixtures::lock())).await.unwrap();
        assert_eq!(bench.writes(), [format!("PATCH {LOCK}")], "{code}");
    }
}

#[tokio::test]
async fn an_object_that_is_gone_needs_no_finalizer_removed() {
    let bench = Bench::leading(None, vec![(format!("PATCH {LOCK}"), refusal(StatusCode::NOT_FOUND))]);
    assert_eq!(bench.look(&deleted(fixtures::lock())).await.unwrap(), Action::await_change());
}

#[tokio::test]
async fn the_last_lock_of_a_namespace_takes_the_secret_for_clients_with_it() {
    let own = Binding::of(&fixtures::lock())
        .secret(&fixtures::cluster(), &RootKey::generate().client_password("billing"))
        .metadata;
    let metadata = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": own});
    let done = found(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}));
    let answers = vec![(format!("GET {SECRET}"), found(metadata)), (format!("DELETE {SECRET}"), done)];
    let mut bench = Bench::leading(None, answers);
    let mut other = fixtures::observed_lock();
    other.metadata.name = Some("other".to_owned());
    other.metadata.uid = Some("another".to_owned());
    let stored = |lock: DistributedLock| watcher::Event::Apply(kube::core::DeserializeGuard(Ok(lock)));
    bench.locks.apply_watcher_event(&stored(other.clone()));
    bench.look(&deleted(fixtures::lock())).await.unwrap();
    assert_eq!(bench.writes(), [format!("PATCH {LOCK}")], "the other lock needs it");

    bench.locks.apply_watcher_event(&stored(deleted(other)));
    bench.look(&deleted(fixtures::lock())).await.unwrap();
    assert_eq!(bench.writes(), [format!("DELETE {SECRET}"), format!("PATCH {LOCK}")]);
}

#[tokio::test]
async fn an_object_that_cannot_be_read_can_be_deleted() {
    let mut bench = Bench::leading(None, vec![]);
    let metadata = deleted(fixtures::lock()).metadata;
    let object =
        json!({"apiVersion": "redlock.dev/v1alpha1", "kind": "DistributedLock", "metadata": metadata, "spec": {}});
    let object: Watched = serde_json::from_value(object).unwrap();
    assert!(object.0.is_err());
    bench.reconciler.reconcile(&object).await.unwrap();
    assert_eq!(bench.asked().pop(), Some((format!("PATCH {LOCK}"), removal())));
    assert!(matches!(bench.notices()[..], [Notice::LeftToExpire(_)]));
}

#[tokio::test]
async fn who_does_not_lead_writes_nothing() {
    let follower = || Leadership::new(watch::channel(None).1);
    let mut held = fixtures::lock();
    held.status = Some(fixtures::held_status(17));
    for lock in [fixtures::lock(), fixtures::observed_lock(), deleted(fixtures::lock()), held] {
        for cluster in [None, Some(fixtures::cluster())] {
            let bench = Bench::new(follower(), cluster, vec![(format!("GET {AUTH}"), auth())]);
            bench.look(&lock).await.unwrap();
            assert_eq!(bench.writes(), [""; 0]);
        }
    }
}
