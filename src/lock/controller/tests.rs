//! Reconciles, as the API server and the actors see them.

mod bench;
mod deletion;
mod silence;

use futures::FutureExt as _;
use http::StatusCode;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::*;
use crate::api::cluster::{AllowedNamespaces, NamespacesFrom};
use crate::api::lock::LeaseSpec;
use crate::api::{DistributedLock, RedisLockCluster};
use crate::contract::credentials::RootKey;
use crate::lock::client_secret::Binding;
use crate::lock::decide::FINALIZER;
use crate::lock::events::LockEvent;
use crate::lock::fixtures;
use crate::operator::leadership::Terms;
use bench::{AUTH, Bench, LOCK, SECRET, SECRETS, STATUS, auth, found, refusal};

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

/// A cluster to which no connection is attempted: resolving names takes seconds where there is no DNS.
fn with_masters(masters: i32) -> RedisLockCluster {
    let mut cluster = fixtures::cluster();
    cluster.spec.masters = masters;
    cluster
}

#[tokio::test]
async fn what_status_shows_is_not_written_again() {
    let bench = Bench::leading(None, vec![]);
    let mut lock = fixtures::lock();
    bench.reconcile(&lock).await.unwrap();
    let asked = bench.asked();
    assert_eq!(asked.len(), 1);
    let (request, body) = &asked[0];
    assert_eq!(*request, format!("PATCH {STATUS}"));
    assert_eq!(body["status"]["phase"], "Pending");
    assert_eq!(reason(body, "ClusterAvailable"), "False ClusterNotFound");
    assert_eq!(body["metadata"], json!({"name": "nightly", "uid": fixtures::UID}));

    bench.reconcile(&lock).await.unwrap();
    assert_eq!(bench.writes(), [""; 0], "the store does not show the write yet");
    lock.metadata.resource_version = Some("101".to_owned());
    bench.reconcile(&lock).await.unwrap();
    assert_eq!(bench.writes(), [""; 0], "nor does it when it shows the version before the write");
    lock.status = serde_json::from_value(body["status"].clone()).unwrap();
    lock.metadata.resource_version = Some("102".to_owned());
    bench.reconcile(&lock).await.unwrap();
    assert_eq!(bench.writes(), [""; 0], "the store shows the write");
}

#[tokio::test]
async fn each_obstacle_is_written_to_status() {
    let mut narrow = fixtures::cluster();
    narrow.spec.allowed_namespaces = Some(AllowedNamespaces { from: NamespacesFrom::Same, selector: None });
    let mut long = fixtures::lock();
    long.spec.lease = Some(LeaseSpec { ttl: Some(Duration::from_secs(90).into()), ..LeaseSpec::default() });
    let (empty, with_key) = (found(Secret::default()), auth());
    let (lock, cluster) = (fixtures::lock, fixtures::cluster);
    for (lock, cluster, auth, phase, type_, expected) in [
        (lock(), narrow, auth(), "Failed", "ConfigValid", "False NamespaceNotAllowed"),
        (long, cluster(), auth(), "Failed", "ConfigValid", "False TtlAboveMaximum"),
        (lock(), cluster(), refusal(StatusCode::NOT_FOUND), "Pending", "ClusterAvailable", "False AuthSecretNotFound"),
        (lock(), cluster(), empty, "Pending", "ClusterAvailable", "False AuthSecretInvalid"),
        (lock(), with_masters(0), with_key, "Pending", "ClusterAvailable", "False ClusterInvalid"),
    ] {
        let bench = Bench::leading(Some(cluster), vec![(format!("GET {AUTH}"), auth)]);
        bench.reconcile(&lock).await.unwrap();
        let (request, body) = bench.asked().pop().unwrap();
        assert_eq!(request, format!("PATCH {STATUS}"), "{expected}");
        assert_eq!(reason(&body, type_), expected);
        assert_eq!(body["status"]["phase"], phase, "{expected}");
    }
}

#[tokio::test]
async fn an_api_server_that_fails_says_nothing_about_the_lock() {
    let secret = (format!("GET {AUTH}"), refusal(StatusCode::INTERNAL_SERVER_ERROR));
    let bench = Bench::leading(Some(fixtures::cluster()), vec![secret]);
    let mut lock = fixtures::lock();
    lock.status = Some(fixtures::held_status(17));
    let error = bench.reconcile(&lock).await.unwrap_err();
    assert_eq!((error.category(), error.to_string().as_str()), (Category::Api, "failed to get Secret quintet-auth"));
    assert_eq!(bench.writes(), [""; 0], "the grant that status records may stand");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_never_answered_times_out() {
    let bench = Bench::leading(None, vec![(format!("PATCH {STATUS}"), None)]);
    let error = bench.reconcile(&fixtures::lock()).await.unwrap_err();
    assert_eq!(error.category(), Category::Timeout);
}

#[tokio::test]
async fn the_finalizer_is_added_before_anything_is_acquired_and_trouble_is_shown_by_its_reason() {
    let mut bench = Bench::leading(Some(fixtures::cluster()), vec![(format!("GET {AUTH}"), auth())]);
    let mut lock = fixtures::lock();
    bench.reconcile(&lock).await.unwrap();
    let asked = bench.asked();
    let (request, body) = asked.iter().find(|(asked, _)| !asked.starts_with("GET ")).unwrap();
    assert_eq!((request.as_str(), &body[2]["value"]), (format!("PATCH {LOCK}").as_str(), &json!([FINALIZER])));
    assert!(asked.iter().any(|(asked, _)| *asked == format!("POST {SECRETS}")), "{asked:?}");
    lock.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);

    bench.trouble().await;
    bench.reconcile(&lock).await.unwrap();
    let shown: Vec<_> =
        asked.into_iter().chain(bench.asked()).filter(|(a, _)| *a == format!("PATCH {STATUS}")).collect();
    let [(_, body)] = &shown[..] else { panic!("one write shows it all: {shown:?}") };
    assert_eq!(body["status"]["phase"], "Waiting");
    assert_eq!(reason(body, "Held"), "False NoQuorum");
    assert_eq!(reason(body, "ClusterAvailable"), "False NoQuorum");
    bench.reconcile(&lock).await.unwrap();
    assert_eq!(bench.writes(), [""; 0], "the Secret is written once");
}

#[tokio::test]
async fn a_foreign_secret_is_not_touched_and_reported() {
    let foreign = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "x"}});
    let answers = vec![(format!("GET {AUTH}"), auth()), (format!("GET {SECRET}"), found(foreign))];
    let mut bench = Bench::leading(Some(fixtures::cluster()), answers);
    let lock = fixtures::lock();
    bench.reconcile(&lock).await.unwrap();
    bench.trouble().await;
    bench.reconcile(&lock).await.unwrap();
    let asked = bench.asked();
    assert!(!asked.iter().any(|(asked, _)| asked.contains("secrets") && !asked.starts_with("GET ")), "{asked:?}");
    // The first reconcile may have shown all there is to show.
    let shown = asked.iter().rfind(|(asked, _)| *asked == format!("PATCH {STATUS}")).unwrap();
    assert_eq!(reason(&shown.1, "ConfigValid"), "False NameConflict");
}

#[tokio::test]
async fn a_follower_writes_nothing() {
    let follower = || Terms::new().1;
    let mut held = fixtures::lock();
    held.status = Some(fixtures::held_status(17));
    for lock in [fixtures::lock(), fixtures::observed_lock(), deleted(fixtures::lock()), held] {
        for cluster in [None, Some(fixtures::cluster())] {
            let bench = Bench::new(follower(), cluster, vec![(format!("GET {AUTH}"), auth())]);
            bench.reconcile(&lock).await.unwrap();
            assert_eq!(bench.writes(), [""; 0]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_term_ends_meanwhile_writes_no_status_and_does_not_fail() {
    let (terms, leadership) = Terms::new();
    terms.lead_until(Instant::now() + Duration::from_secs(5));
    let answers = vec![(format!("GET {AUTH}"), auth()), (format!("GET {SECRET}"), None)];
    let bench = Bench::new(leadership, Some(with_masters(1)), answers);
    // The request for the Secret times out after the term.
    assert_eq!(bench.reconcile(&fixtures::lock()).await.unwrap(), Action::await_change());
    assert_eq!(bench.writes(), [format!("PATCH {LOCK}")], "the finalizer, while it led");
}

#[tokio::test]
async fn a_changed_cluster_triggers_its_locks_and_a_list_of_clusters_triggers_all() {
    let mut bench = Bench::leading(Some(fixtures::cluster()), vec![]);
    let mut elsewhere = fixtures::lock();
    elsewhere.metadata.name = Some("elsewhere".to_owned());
    elsewhere.spec.cluster_ref.name = "other".to_owned();
    for lock in [fixtures::lock(), elsewhere] {
        bench.feeds.locks.take(watcher::Event::Apply(fixtures::watched(lock)));
    }
    let mut triggered = Box::pin(locks_of_changed_clusters(&bench.reconciler.ctx.watches));
    let mut names = || {
        let mut names: Vec<_> =
            std::iter::from_fn(|| triggered.next().now_or_never().flatten()).map(|lock| lock.name).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names(), ["elsewhere", "nightly"], "the first list");
    let cluster = || fixtures::watched_cluster(fixtures::cluster());
    for change in [watcher::Event::Apply(cluster()), watcher::Event::Delete(cluster())] {
        bench.feeds.clusters.take(change);
        assert_eq!(names(), ["nightly"]);
    }
    bench.feeds.clusters.list([cluster()]);
    assert_eq!(names(), ["elsewhere", "nightly"]);

    let mut take = |key: &str, value: &str| {
        let mut cluster = fixtures::cluster();
        cluster.metadata.annotations.as_mut().unwrap().insert(key.to_owned(), value.to_owned());
        bench.feeds.clusters.take(watcher::Event::Apply(fixtures::watched_cluster(cluster)));
    };
    take("redlock.dev/operator-renewed", "2026-12-01T00:00:00Z");
    assert_eq!(names(), ["nightly"], "the first that is seen of it since the list");
    take("redlock.dev/operator-renewed", "2026-12-01T00:00:45Z");
    assert_eq!(names(), [""; 0], "a renewed claim is nothing to locks");
    take(OPERATOR_ANNOTATION, "elsewhere/redlock-operator");
    assert_eq!(names(), ["nightly"]);
}

#[tokio::test]
async fn a_changed_namespace_triggers_its_locks() {
    let mut bench = Bench::leading(None, vec![]);
    let mut elsewhere = fixtures::lock();
    elsewhere.metadata.namespace = Some("shop".to_owned());
    elsewhere.metadata.name = Some("elsewhere".to_owned());
    bench.feeds.locks.list([fixtures::lock(), elsewhere].map(fixtures::watched));
    let mut triggered = Box::pin(locks_of_changed_namespaces(&bench.reconciler.ctx.watches));
    let mut names = || {
        let mut names: Vec<_> =
            std::iter::from_fn(|| triggered.next().now_or_never().flatten()).map(|lock| lock.name).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names(), ["elsewhere", "nightly"], "the first list");
    bench.feeds.namespaces.take(watcher::Event::Apply(fixtures::namespace()));
    assert_eq!(names(), ["nightly"]);
    bench.feeds.namespaces.take(watcher::Event::Delete(fixtures::namespace()));
    assert_eq!(names(), [""; 0], "its locks are gone as well");
}

#[tokio::test]
async fn the_secret_for_clients_has_the_password_that_masters_accept() {
    let mut cluster = with_masters(1);
    cluster.spec.credentials = Some(
        serde_json::from_value(json!({
            "generation": 5, "namespaces": [{"name": "billing", "generation": 3}],
        }))
        .unwrap(),
    );
    let record = json!({"credentials": {"generation": 4, "nextGeneration": 5}});
    cluster.status = Some(serde_json::from_value(record).unwrap());
    let key = RootKey::generate();
    let data = [("key".to_owned(), ByteString(key.to_text().into_bytes()))].into();
    let auth = found(Secret { data: Some(data), ..Secret::default() });
    let bench = Bench::leading(Some(cluster), vec![(format!("GET {AUTH}"), auth)]);
    bench.reconcile(&fixtures::lock()).await.unwrap();
    let written: Secret = serde_json::from_value(bench.until_asked(&format!("POST {SECRETS}")).await).unwrap();
    assert_eq!(written.metadata.name.as_deref(), Some("quintet.locks-client"));
    let password = key.client_password("uid of billing", 4, 3);
    assert_eq!(written.data.unwrap()["password"].0, password.expose().as_bytes());
}

#[tokio::test]
async fn what_is_listed_and_what_changes_is_reconciled_until_the_controller_is_shut_down() {
    let mut bench = Bench::leading(None, vec![]);
    let (ctx, stop) = (bench.reconciler.ctx.clone(), Stop::default());
    ctx.health.awaits(LOCK_CONTROLLER, "the first list");
    bench.feeds.locks.list([fixtures::watched(fixtures::lock())]);
    let running = tokio::spawn(run(ctx.clone(), 20, stop.clone()));
    let status = format!("PATCH {STATUS}");
    assert_eq!(reason(&bench.until_asked(&status).await, "ClusterAvailable"), "False ClusterNotFound");
    assert_eq!(ctx.health.readiness(), Ok(()));
    bench.feeds.clusters.take(watcher::Event::Apply(fixtures::watched_cluster(fixtures::cluster())));
    assert_eq!(reason(&bench.until_asked(&status).await, "ClusterAvailable"), "False AuthSecretNotFound");
    let mut other = fixtures::lock();
    other.metadata.resource_version = Some("101".to_owned());
    other.spec.cluster_ref.name = "other".to_owned();
    bench.feeds.locks.take(watcher::Event::Apply(fixtures::watched(other)));
    assert_eq!(reason(&bench.until_asked(&status).await, "ClusterAvailable"), "False ClusterNotFound");
    stop.deciding.cancel();
    stop.decided.cancelled().await;
    assert!(!running.is_finished(), "held locks are renewed until another process leads");
    stop.renewing.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn the_actor_of_a_lock_that_is_gone_is_ended() {
    let mut bench = Bench::leading(Some(with_masters(1)), vec![(format!("GET {AUTH}"), auth())]);
    let lock = fixtures::lock();
    bench.feeds.locks.take(watcher::Event::Apply(fixtures::watched(lock.clone())));
    bench.reconcile(&lock).await.unwrap();
    cleanup::clean_up(&bench.reconciler).await;
    assert!(bench.reconciler.keeper.state(fixtures::UID).is_some());
    bench.feeds.locks.take(watcher::Event::Delete(fixtures::watched(lock)));
    cleanup::clean_up(&bench.reconciler).await;
    assert_eq!(bench.reconciler.keeper.state(fixtures::UID), None);
}

#[tokio::test]
async fn a_panic_over_one_lock_is_told_and_counted_and_the_next_reconcile_of_any_goes_on() {
    let mut bench = Bench::leading(None, vec![]);
    bench.reconciler.broken.lock().unwrap().push("nightly".to_owned());
    let error = bench.reconcile(&fixtures::lock()).await.unwrap_err();
    assert_eq!(error.category().as_str(), "panic");
    assert_eq!(bench.sent_events(), [LockEvent::Panicked]);
    let counted = "redlock_reconciles_total{controller=\"lock\",result=\"panic\"} 1";
    assert!(bench.reconciler.ctx.metrics.render().contains(counted));
    let mut other = fixtures::lock();
    other.metadata.name = Some("sound".to_owned());
    other.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    bench.reconcile(&other).await.unwrap();
    bench.reconciler.broken.lock().unwrap().clear();
    bench.reconcile(&fixtures::lock()).await.unwrap();
    assert_eq!(bench.writes(), [format!("PATCH {STATUS}")]);
}
