//! What triggers a reconcile, and when the next one is due.

use super::*;

fn lock(spec: &Value) -> WatchedLock {
    let metadata = json!({"name": "a", "namespace": "billing", "uid": "u"});
    let body =
        json!({"apiVersion": "redlock.dev/v1alpha1", "kind": "DistributedLock", "metadata": metadata, "spec": spec});
    serde_json::from_value(body).unwrap()
}

fn on_votes() -> Value {
    json!({"clusterRef": {"name": "votes", "namespace": "keys"}})
}

#[tokio::test]
async fn a_cluster_is_reconciled_once_all_is_listed_and_again_when_another_namespace_has_a_lock_on_it() {
    let scenario = Scenario::new(1, None);
    let (service, requests) = mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(Arc::clone(&scenario).answer(requests));
    let (ctx, mut feeds) = Context::for_tests(kube::Client::new(service, "keys"), Leadership::always());
    let (health, shutdown) = (ctx.health.clone(), CancellationToken::new());
    health.awaits(CLUSTER_CONTROLLER, "the first list");
    let running = tokio::spawn(run(ctx, "redis:7.4-alpine".to_owned(), shutdown.clone()));
    let cluster = scenario.cluster.lock().unwrap().clone();
    feeds.clusters.list([DeserializeGuard(Ok(cluster))]);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(scenario.writes(), [""; 0], "without the list of locks all clients would be locked out");
    assert!(health.readiness().is_err());

    feeds.locks.list([]);
    feeds.namespaces.list([]);
    eventually("ready", async || health.readiness().ok()).await;
    let first = ["status", "Secret votes-auth", "Service votes-0", "Pod votes-0", "status"];
    eventually("the first reconcile", async || (scenario.writes().len() >= first.len()).then_some(())).await;
    assert_eq!(scenario.writes()[..first.len()], first);
    feeds.locks.take(watcher::Event::Apply(lock(&on_votes())));
    let again = async || (scenario.writes().iter().filter(|write| *write == "Pod votes-0").count() == 2).then_some(());
    eventually("another reconcile, which sees that the pod is gone", again).await;
    shutdown.cancel();
    timeout(PATIENCE, running).await.expect("the controller ends").unwrap();
}

#[tokio::test]
async fn a_lock_names_its_cluster_when_it_is_the_first_or_last_of_its_namespace_and_one_that_cannot_be_read_names_all()
{
    let other = || {
        let mut cluster = fixtures::cluster(3);
        cluster.metadata.name = Some("other".to_owned());
        cluster
    };
    let (watches, mut feeds) = Watches::new();
    feeds.clusters.list([fixtures::cluster(3), other()].map(|cluster| kube::core::DeserializeGuard(Ok(cluster))));
    let mut changed = Box::pin(clusters_of_changed_locks(&watches));
    let mut named = || {
        let names = std::iter::from_fn(|| changed.next().now_or_never().flatten()).map(|cluster| cluster.name);
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        names
    };
    feeds.locks.list([]);
    assert_eq!(named(), ["other", "votes"]);
    feeds.locks.take(watcher::Event::Apply(lock(&on_votes())));
    assert_eq!(named(), ["votes"]);
    feeds.locks.take(watcher::Event::Apply(lock(&on_votes())));
    assert_eq!(named(), [""; 0], "a status that was written, or a spec: the same namespaces have locks");
    feeds.locks.take(watcher::Event::Apply(lock(&json!({"clusterRef": 1}))));
    assert_eq!(named(), ["other"], "it may be on any, and on votes its namespace has one already");
    feeds.locks.take(watcher::Event::Apply(lock(&on_votes())));
    assert_eq!(named(), ["other"], "it can be read again");
    feeds.locks.take(watcher::Event::Delete(lock(&on_votes())));
    assert_eq!(named(), ["votes"]);
}

#[tokio::test]
async fn a_changed_namespace_names_the_clusters_that_it_uses() {
    let named_cluster = |name: &str| {
        let mut cluster = fixtures::cluster(3);
        cluster.metadata.name = Some(name.to_owned());
        DeserializeGuard(Ok(cluster))
    };
    let namespace = |name: &str| {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        metadata.into_response_partial::<Namespace>()
    };
    let (watches, mut feeds) = Watches::new();
    feeds.clusters.list(["other", "votes"].map(named_cluster));
    feeds.locks.list([lock(&on_votes())]);
    let mut changed = Box::pin(clusters_of_changed_namespaces(&watches));
    let mut named = || {
        let names = std::iter::from_fn(|| changed.next().now_or_never().flatten()).map(|cluster| cluster.name);
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        names
    };
    feeds.namespaces.list([namespace("billing")]);
    assert_eq!(named(), ["other", "votes"]);
    for event in [watcher::Event::Apply(namespace("billing")), watcher::Event::Delete(namespace("billing"))] {
        feeds.namespaces.take(event);
        assert_eq!(named(), ["votes"]);
    }
    feeds.namespaces.take(watcher::Event::Apply(namespace("shop")));
    assert_eq!(named(), [""; 0], "it uses none");
}

#[test]
fn the_next_reconcile_is_due_when_the_first_delay_is_over_or_soon_where_something_failed() {
    let rows = |state| [fixtures::row(MasterState::Armed), fixtures::row(state)];
    let second = Duration::from_secs(1);
    assert_eq!(requeue_after(&rows(MasterState::Armed), None, false), IDLE);
    assert_eq!(requeue_after(&rows(MasterState::Quarantined), None, false), UNHEALTHY);
    assert_eq!(requeue_after(&rows(MasterState::Quarantined), Some(second), true), second);
    assert_eq!(requeue_after(&rows(MasterState::Armed), Some(2 * IDLE), true), RETRY);
}
