//! The driver against a mocked API server: what is written, in which order, and when the next reconcile is due.

use std::collections::HashMap;
use std::sync::Mutex;

use futures::FutureExt as _;
use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::client::Body;
use kube::core::{DeserializeGuard, PartialObjectMetaExt as _};
use redlock_test_servers::server::{PATIENCE, eventually};
use serde_json::{Value, json};
use tower_test::mock::{self, Handle};

use super::*;
use crate::api::WatchedLock;
use crate::cluster::fixtures;
use crate::operator::leadership::Leadership;

mod claims;
mod triggers;

/// A write that the API server refuses: the object (`status`, or `<Kind> <name>`), code and reason of the refusal.
type RefusedWrite = (&'static str, u16, &'static str);

/// An API server with one cluster and nothing else. It stores the status and the Secret of that, and records the objects that are
/// written.
struct Scenario {
    cluster: Mutex<RedisLockCluster>,
    secret: Mutex<Option<Value>>,
    refusal: Option<RefusedWrite>,
    writes: Mutex<Vec<String>>,
    events: Mutex<Vec<String>>,
    /// Objects that it stores, by path; `None`: it stores none.
    stored: Option<Mutex<HashMap<String, Value>>>,
}

impl Scenario {
    fn new(masters: i32, refusal: Option<RefusedWrite>) -> Arc<Self> {
        let mut cluster = fixtures::cluster(masters);
        cluster.metadata.resource_version = Some("1".to_owned());
        Arc::new(Self {
            cluster: Mutex::new(cluster),
            secret: Mutex::default(),
            refusal,
            writes: Mutex::default(),
            events: Mutex::default(),
            stored: None,
        })
    }

    /// Somebody deletes the Secret with the root key.
    fn lose_secret(&self) -> Value {
        self.secret.lock().unwrap().take().expect("a Secret")
    }

    fn status(&self) -> RedisLockClusterStatus {
        self.cluster.lock().unwrap().status.clone().unwrap_or_default()
    }

    fn condition(&self, type_: &str) -> Condition {
        self.status().conditions.into_iter().find(|condition| condition.type_ == type_).expect(type_)
    }

    fn writes(&self) -> Vec<String> {
        self.writes.lock().unwrap().clone()
    }

    async fn answer(self: Arc<Self>, mut requests: Handle<Request<Body>, Response<Body>>) {
        let mut watches = Vec::new();
        while let Some((request, send)) = requests.next_request().await {
            let (parts, body) = request.into_parts();
            if parts.uri.query().is_some_and(|query| query.contains("watch=")) {
                // Nothing changes.
                watches.push(send);
                continue;
            }
            let body: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
            let (code, answer) = self.reply(&parts.method, parts.uri.path(), body);
            let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
            send.send_response(answer.unwrap());
        }
    }

    fn reply(&self, method: &Method, path: &str, mut body: Value) -> (u16, Value) {
        let failure = |code: u16, reason: &str| {
            let message = "unable to create new content in namespace keys because it is being terminated";
            let message = if reason == "Forbidden" { message } else { "" };
            let used = self.writes.lock().unwrap().len();
            // The numbers of a quota are those of all who use it.
            let (reason, message) = match reason {
                "ExceededQuota" => {
                    ("Forbidden", format!("exceeded quota: small, requested: pods=1, used: pods={used}"))
                }
                _ => (reason, message.to_owned()),
            };
            (
                code,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}),
            )
        };
        let mut cluster = self.cluster.lock().unwrap();
        match *method {
            Method::GET if path.ends_with("/redislockclusters/votes") => (200, json!(&*cluster)),
            Method::GET if path.ends_with("/pods") => {
                (200, json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}))
            }
            Method::GET if path.ends_with("/services") => (
                200,
                json!({"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}),
            ),
            Method::GET if path.ends_with("/secrets/votes-auth") => match &*self.secret.lock().unwrap() {
                Some(secret) => (200, secret.clone()),
                None => failure(404, "NotFound"),
            },
            Method::GET if path.ends_with("/configmaps/redlock-tombstones") => {
                (200, json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "redlock-tombstones"}}))
            }
            Method::GET if path.ends_with("/nodes") => (
                200,
                json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}),
            ),
            Method::GET => match self.stored.as_ref().and_then(|stored| stored.lock().unwrap().get(path).cloned()) {
                Some(object) => (200, object),
                None => failure(404, "NotFound"),
            },
            Method::POST if path.contains("/events.k8s.io/") => {
                self.events.lock().unwrap().push(body["reason"].as_str().unwrap_or_default().to_owned());
                (201, body)
            }
            Method::PATCH if body.is_array() => {
                self.writes.lock().unwrap().push("metadata".to_owned());
                (200, claims::patch(&mut cluster, &body))
            }
            Method::POST | Method::PATCH => {
                let object = match body["kind"].as_str() {
                    Some("RedisLockCluster") => "status".to_owned(),
                    kind => format!(
                        "{} {}",
                        kind.unwrap_or_default(),
                        body["metadata"]["name"].as_str().unwrap_or_default()
                    ),
                };
                self.writes.lock().unwrap().push(object.clone());
                if let Some((_, code, reason)) = self.refusal.filter(|(refused, ..)| *refused == object) {
                    return failure(code, reason);
                }
                if object == "Secret votes-auth" {
                    *self.secret.lock().unwrap() = Some(body.clone());
                    return (201, body);
                }
                if *method == Method::POST {
                    body["metadata"]["uid"] = json!(format!("uid of {object}"));
                    if let Some(stored) = &self.stored {
                        let name = body["metadata"]["name"].as_str().unwrap_or_default();
                        stored.lock().unwrap().insert(format!("{path}/{name}"), body.clone());
                    }
                    return (201, body);
                }
                let version = cluster.metadata.resource_version.clone().unwrap_or_default();
                assert_eq!(body["metadata"]["resourceVersion"], version, "only the version that was read is replaced");
                cluster.status = serde_json::from_value(body["status"].clone()).unwrap();
                cluster.metadata.resource_version = Some(format!("{version}1"));
                (200, json!(&*cluster))
            }
            _ => panic!("unexpected: {method} {path}"),
        }
    }
}

fn reconciler(client: kube::Client, cluster: &WatchedCluster) -> Arc<Reconciler> {
    let (ctx, mut feeds) = Context::for_tests(client, Leadership::always());
    feeds.clusters.list([cluster.clone()]);
    feeds.locks.list([]);
    feeds.namespaces.list([]);
    let (monitors, _findings) =
        Monitors::new(ctx.watches.clusters.clone(), ctx.metrics.clone(), ctx.leadership.clone());
    let default_image = "redis:7.4-alpine".to_owned();
    Arc::new(Reconciler { ctx, monitors, default_image, memories: Memories::default() })
}

/// One reconcile, as kube calls it: what it answers, or the error with what follows from it.
async fn reconcile_once(scenario: &Arc<Scenario>) -> Result<Action, (Error, Action)> {
    reconcile_with(scenario, &new_process(scenario)).await
}

/// A process of the operator that knows nothing yet.
fn new_process(scenario: &Arc<Scenario>) -> Arc<Reconciler> {
    let (service, requests) = mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(Arc::clone(scenario).answer(requests));
    let cluster = DeserializeGuard(Ok(scenario.cluster.lock().unwrap().clone()));
    reconciler(kube::Client::new(service, "keys"), &cluster)
}

async fn reconcile_with(scenario: &Arc<Scenario>, reconciler: &Arc<Reconciler>) -> Result<Action, (Error, Action)> {
    let cluster = Arc::new(DeserializeGuard(Ok(scenario.cluster.lock().unwrap().clone())));
    let reconciler = Arc::clone(reconciler);
    let result = reconcile(Arc::clone(&cluster), Arc::clone(&reconciler)).await;
    result.map_err(|error| {
        let next = error_policy(cluster, &error, reconciler);
        (error, next)
    })
}

#[tokio::test]
async fn what_is_about_to_be_done_is_on_record_before_it_is_done() {
    let scenario = Scenario::new(3, None);
    let next = reconcile_once(&scenario).await.unwrap();
    assert_eq!(
        scenario.writes(),
        [
            "status",
            "Secret votes-auth",
            "Service votes-0",
            "Service votes-1",
            "Service votes-2",
            "PodDisruptionBudget votes",
            "Pod votes-0",
            "Pod votes-1",
            "Pod votes-2",
            "status"
        ]
    );
    let rows = scenario.status().masters;
    assert_eq!(
        rows.iter().map(|row| row.pod_uid.as_deref()).collect::<Vec<_>>(),
        [Some("uid of Pod votes-0"), Some("uid of Pod votes-1"), Some("uid of Pod votes-2")]
    );
    assert!(rows.iter().all(|row| (row.state, row.crashes) == (MasterState::Starting, 0)));
    assert_eq!(next, Action::requeue(UNHEALTHY));
    // The API server shows none of these pods any more: they never voted, so they are made again at once.
    reconcile_once(&scenario).await.unwrap();
    assert_eq!(scenario.writes()[scenario.writes().len() - 3..], ["Pod votes-0", "Pod votes-1", "Pod votes-2"]);
    assert!(scenario.status().masters.iter().all(|row| (row.state, row.crashes) == (MasterState::Starting, 0)));
}

#[tokio::test]
async fn a_deleted_root_key_is_restored_by_the_process_that_knows_it() {
    let scenario = Scenario::new(3, None);
    let process = new_process(&scenario);
    reconcile_with(&scenario, &process).await.unwrap();
    let lost = scenario.lose_secret();
    reconcile_with(&scenario, &process).await.unwrap();
    assert_eq!(scenario.secret.lock().unwrap().as_ref().expect("restored")["data"]["key"], lost["data"]["key"]);
    assert_eq!(scenario.condition("ConfigValid").status, "True");
}

#[tokio::test]
async fn a_lost_root_key_is_never_replaced_by_another_and_the_condition_says_what_to_do() {
    let scenario = Scenario::new(3, None);
    reconcile_once(&scenario).await.unwrap();
    let lost = scenario.lose_secret();
    let written = scenario.writes().len();
    let process = new_process(&scenario);
    reconcile_with(&scenario, &process).await.unwrap();
    assert_eq!(scenario.writes()[written..], ["status"], "no Secret, and no pod with another key");
    let condition = scenario.condition("ConfigValid");
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "AuthSecretLost"));
    let remedy = "restore it from a backup, or delete the cluster and create it again";
    assert!(condition.message.contains(remedy), "{}", condition.message);
    // Somebody restores it.
    *scenario.secret.lock().unwrap() = Some(lost);
    reconcile_with(&scenario, &process).await.unwrap();
    assert_eq!(scenario.condition("ConfigValid").status, "True");
}

#[tokio::test]
async fn nothing_is_done_on_a_record_that_was_not_written() {
    let scenario = Scenario::new(3, Some(("status", 409, "Conflict")));
    let (_, next) = reconcile_once(&scenario).await.unwrap_err();
    assert_eq!(scenario.writes(), ["status"]);
    assert_eq!(next, Action::requeue(Duration::from_millis(500)));
}

#[tokio::test]
async fn a_pod_that_is_refused_is_retried_and_the_other_masters_go_on() {
    for (code, reason) in [(409, "AlreadyExists"), (422, "Invalid")] {
        let scenario = Scenario::new(3, Some(("Pod votes-1", code, reason)));
        let next = reconcile_once(&scenario).await.unwrap();
        assert_eq!(scenario.writes()[6..], ["Pod votes-0", "Pod votes-1", "Pod votes-2", "status"]);
        let rows = scenario.status().masters;
        assert!(rows[1].message.as_ref().unwrap().starts_with("its pod cannot be created: "), "{:?}", rows[1]);
        assert_eq!((&rows[1].pod_uid, rows[2].pod_uid.is_some()), (&None, true));
        let due = next.clone();
        assert!(due != Action::requeue(RETRY) && due != Action::await_change(), "{due:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_refused_for_long_is_told_once_and_tried_ever_more_rarely() {
    let scenario = Scenario::new(1, Some(("Pod votes-0", 403, "ExceededQuota")));
    let scenario = Arc::new(Scenario { stored: Some(Mutex::default()), ..Arc::into_inner(scenario).unwrap() });
    let (service, requests) = mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(Arc::clone(&scenario).answer(requests));
    let watched = || Arc::new(DeserializeGuard(Ok(scenario.cluster.lock().unwrap().clone())));
    let reconciler = reconciler(kube::Client::new(service, "keys"), &watched());
    let began = Instant::now();
    let mut passes = 0;
    // Each write of the status triggers another pass at once, and so do the pods of others with our labels.
    while began.elapsed() < Duration::from_secs(1200) {
        reconcile(watched(), Arc::clone(&reconciler)).await.unwrap();
        passes += 1;
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!(passes > 1000, "{passes}");
    let writes = scenario.writes();
    let of = |object: &str| writes.iter().filter(|write| *write == object).count();
    // 2, 4, … and 64 s after each other, and then 120 s.
    let attempts = of("Pod votes-0");
    assert!((13..=16).contains(&attempts), "{attempts}");
    assert_eq!(of("status"), 2, "the start, and the refusal: {writes:?}");
    // About one each 45 s.
    let claims = of("metadata");
    assert!((20..=27).contains(&claims), "{claims}");
    assert_eq!(writes.len(), attempts + claims + 4, "besides, its Secret and its Service: {writes:?}");
    assert_eq!(*scenario.events.lock().unwrap(), ["ConfigInvalid"]);
    let status = scenario.status();
    let condition = status.conditions.iter().find(|condition| condition.type_ == "ConfigValid").unwrap();
    assert_eq!((&*condition.status, &*condition.reason), ("False", "PodRefused"));
    assert!(condition.message.contains("votes-0: exceeded quota: small, requested: pods=1"), "{condition:?}");

    // Another spec, which may be accepted, is tried at once.
    scenario.cluster.lock().unwrap().metadata.generation = Some(2);
    reconcile(watched(), Arc::clone(&reconciler)).await.unwrap();
    let now = scenario.writes().iter().filter(|write| *write == "Pod votes-0").count();
    assert_eq!(now, attempts + 1);
}

#[tokio::test]
async fn a_budget_that_is_refused_holds_no_master_up() {
    let scenario = Scenario::new(3, Some(("PodDisruptionBudget votes", 403, "ExceededQuota")));
    reconcile_once(&scenario).await.unwrap();
    assert_eq!(scenario.writes()[6..], ["Pod votes-0", "Pod votes-1", "Pod votes-2", "status"]);
}

#[tokio::test]
async fn a_service_that_exists_already_stops_the_reconcile_but_is_no_outdated_decision() {
    let scenario = Scenario::new(1, Some(("Service votes-0", 409, "AlreadyExists")));
    let (error, next) = reconcile_once(&scenario).await.unwrap_err();
    assert_eq!(scenario.writes(), ["status", "Secret votes-auth", "Service votes-0"], "no pod without its Service");
    assert!(!error.is_outdated_write());
    assert_ne!(next, Action::requeue(OUTDATED_RETRY));
}

#[tokio::test]
async fn a_namespace_that_is_being_deleted_is_no_error() {
    let scenario = Scenario::new(1, Some(("Pod votes-0", 403, "Forbidden")));
    assert_eq!(reconcile_once(&scenario).await.unwrap(), Action::await_change());
}
