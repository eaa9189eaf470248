//! A lock that is deleted: what is released, shown and removed, and that nothing holds it up.

use super::*;

fn removal() -> Value {
    json!([
        {"op": "test", "path": "/metadata/uid", "value": fixtures::UID},
        {"op": "test", "path": "/metadata/finalizers/0", "value": FINALIZER},
        {"op": "remove", "path": "/metadata/finalizers/0"},
    ])
}

#[tokio::test]
async fn a_deleted_lock_is_finalized_though_its_cluster_is_gone() {
    let mut bench = Bench::leading(None, vec![]);
    let mut lock = deleted(fixtures::lock());
    lock.status = Some(fixtures::held_status(17));
    bench.reconcile(&lock).await.unwrap();
    assert_eq!(bench.asked().pop(), Some((format!("PATCH {LOCK}"), removal())));
    assert!(matches!(bench.sent_events()[..], [LockEvent::LeftToExpire(_)]));
}

#[tokio::test]
async fn a_deleted_lock_is_finalized_though_the_masters_its_secret_and_permissions_are_gone() {
    for code in [StatusCode::NOT_FOUND, StatusCode::INTERNAL_SERVER_ERROR] {
        let answers =
            vec![(format!("GET {AUTH}"), refusal(code)), (format!("GET {SECRET}"), refusal(StatusCode::FORBIDDEN))];
        let bench = Bench::leading(Some(fixtures::cluster()), answers);
        bench.reconcile(&deleted(fixtures::lock())).await.unwrap();
        assert_eq!(bench.writes(), [format!("PATCH {LOCK}")], "{code}");
    }
}

#[tokio::test]
async fn a_lock_is_shown_as_not_held_before_it_is_released_and_nothing_else_holds_its_finalizer_up() {
    let own = Binding::of(&fixtures::lock())
        .secret(&fixtures::cluster(), &RootKey::generate().client_password("uid of billing", 1, 1))
        .metadata;
    let metadata = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": own});
    let mut lock = deleted(fixtures::lock());
    lock.status = Some(fixtures::held_status(17));
    for code in [StatusCode::BAD_REQUEST, StatusCode::FORBIDDEN, StatusCode::INTERNAL_SERVER_ERROR] {
        let answers = vec![(format!("GET {SECRET}"), found(&metadata)), (format!("DELETE {SECRET}"), refusal(code))];
        let bench = Bench::leading(None, answers);
        bench.reconcile(&lock).await.unwrap();
        let writes: Vec<_> = bench.asked().into_iter().filter(|(asked, _)| !asked.starts_with("GET ")).collect();
        let asked: Vec<_> = writes.iter().map(|(asked, _)| asked.as_str()).collect();
        assert_eq!(
            asked,
            [&*format!("PATCH {STATUS}"), &*format!("DELETE {SECRET}"), &*format!("PATCH {LOCK}")],
            "{code}"
        );
        let (_, status) = &writes[0];
        assert_eq!(reason(status, "Held"), "False Released");
        assert!(status["status"]["fencingToken"].is_null() && status["status"]["owner"].is_null(), "{status}");

        // What could not be deleted is tried again, unless only a person can help.
        cleanup::clean_up(&bench.reconciler).await;
        let again = bench.writes() == [format!("DELETE {SECRET}")];
        assert_eq!(again, code != StatusCode::FORBIDDEN, "{code}");
    }
    let bench = Bench::leading(None, vec![(format!("PATCH {STATUS}"), refusal(StatusCode::INTERNAL_SERVER_ERROR))]);
    bench.reconcile(&lock).await.unwrap();
    assert_eq!(bench.writes(), [format!("PATCH {STATUS}"), format!("PATCH {LOCK}")], "a status that is refused");
}

#[tokio::test]
async fn a_changed_holder_is_shown_as_not_held_before_it_is_released() {
    let bench = Bench::leading(Some(with_masters(1)), vec![(format!("GET {AUTH}"), auth())]);
    let mut lock = fixtures::lock();
    lock.status = Some(fixtures::held_status(17));
    lock.spec.holder = Some("job/morning".to_owned());
    bench.reconcile(&lock).await.unwrap();
    let writes: Vec<_> = bench.asked().into_iter().filter(|(asked, _)| !asked.starts_with("GET ")).collect();
    let (request, status) = &writes[0];
    assert_eq!((request.as_str(), reason(status, "Held").as_str()), (&*format!("PATCH {STATUS}"), "False Released"));
    assert!(status["status"]["holder"].is_null() && status["status"]["owner"].is_null(), "{status}");
    assert_eq!(writes[1].0, format!("PATCH {LOCK}"), "then it is assigned anew");
}

#[tokio::test]
async fn a_reference_that_makes_no_url_gets_into_no_request_and_holds_no_finalizer_up() {
    let bench = Bench::leading(None, vec![]);
    let mut lock = deleted(fixtures::lock());
    // Stored before the definition had a rule.
    lock.spec.cluster_ref.name = "../../etc".to_owned();
    lock.spec.cluster_ref.namespace = Some("a b".to_owned());
    bench.reconcile(&lock).await.unwrap();
    assert_eq!(bench.asked(), [(format!("PATCH {LOCK}"), removal())]);
}

#[tokio::test]
async fn an_object_that_is_gone_needs_no_finalizer_removed() {
    let bench = Bench::leading(None, vec![(format!("PATCH {LOCK}"), refusal(StatusCode::NOT_FOUND))]);
    assert_eq!(bench.reconcile(&deleted(fixtures::lock())).await.unwrap(), Action::await_change());
}

#[tokio::test]
async fn the_last_lock_of_a_namespace_takes_the_secret_for_clients_with_it() {
    let own = Binding::of(&fixtures::lock())
        .secret(&fixtures::cluster(), &RootKey::generate().client_password("uid of billing", 1, 1))
        .metadata;
    let metadata = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": own});
    let done = found(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}));
    let answers = vec![(format!("GET {SECRET}"), found(metadata)), (format!("DELETE {SECRET}"), done)];
    let mut bench = Bench::leading(None, answers);
    let mut other = fixtures::observed_lock();
    other.metadata.name = Some("other".to_owned());
    other.metadata.uid = Some("another".to_owned());
    bench.feeds.locks.take(watcher::Event::Apply(fixtures::watched(other.clone())));
    bench.reconcile(&deleted(fixtures::lock())).await.unwrap();
    assert_eq!(bench.writes(), [format!("PATCH {LOCK}")], "the other lock needs it");

    bench.feeds.locks.take(watcher::Event::Apply(fixtures::watched(deleted(other))));
    bench.reconcile(&deleted(fixtures::lock())).await.unwrap();
    assert_eq!(bench.writes(), [format!("DELETE {SECRET}"), format!("PATCH {LOCK}")]);
}

#[tokio::test]
async fn an_object_that_cannot_be_read_can_be_deleted() {
    let mut bench = Bench::leading(None, vec![]);
    let metadata = deleted(fixtures::lock()).metadata;
    let object =
        json!({"apiVersion": "redlock.dev/v1alpha1", "kind": "DistributedLock", "metadata": metadata, "spec": {}});
    let object: WatchedLock = serde_json::from_value(object).unwrap();
    assert!(object.0.is_err());
    reconcile(Arc::new(object), Arc::clone(&bench.reconciler)).await.unwrap();
    assert_eq!(bench.asked().pop(), Some((format!("PATCH {LOCK}"), removal())));
    assert!(matches!(bench.sent_events()[..], [LockEvent::LeftToExpire(_)]));
}
