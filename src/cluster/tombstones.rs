//! Tombstones: what a deleted cluster leaves, so that one of the same name does not vote before the former leases have ended.
//!
//! They are in a `ConfigMap` in the operator's namespace, since the cluster's own may be deleted with it. A tombstone is a list of
//! records, one a master, with which a cluster of that name begins: quarantined since its server was stripped or seen to end, or
//! vanished where neither could be done.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::CustomResourceExt as _;
use kube::ResourceExt as _;
use serde_json::json;

use super::decide::master::later;
use crate::api::RedisLockCluster;
use crate::api::cluster::{MasterState, MasterStatus};
use crate::contract::names::{self, TOMBSTONES};
use crate::operator::Context;
use crate::operator::api_server::{ApiServer, Category, Error};

/// A store that is made later than this after the definition of the kind was created is one that was lost: clusters may have been
/// deleted before.
const FRESH: Duration = Duration::from_secs(600);
/// How long a tombstone is kept after its last delay is over.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// Annotation of the store: when it was made in place of one that was lost, or found to lack tombstones.
const LOST_AT: &str = "redlock.dev/lost-at";

/// Annotation of the store: since when clusters can be deleted without a tombstone, because the finalizers were taken off.
const UNOBSERVED_SINCE: &str = "redlock.dev/unobserved-since";

/// What is known of former clusters of a name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Former {
    /// The records with which a cluster of that name begins.
    pub(crate) rows: Vec<MasterStatus>,
    /// When the store of tombstones was found to be lost.
    pub(crate) lost_at: Option<Timestamp>,
}

// === impl Former ===

impl Former {
    /// The record with which the master of a new cluster begins; `None` if it was never started, as far as is known.
    pub(crate) fn row(&self, master: &str, restart_delay: Duration, now: Timestamp) -> Option<MasterStatus> {
        if let Some(row) = self.rows.iter().find(|row| row.name == master) {
            return Some(row.clone());
        }
        let lost_at = self.lost_at?;
        let until = later(lost_at, restart_delay);
        (now < until).then(|| MasterStatus {
            last_crash_time: Some(MicroTime(lost_at)),
            restart_not_before: Some(MicroTime(until)),
            message: Some(
                "the record of deleted clusters was lost: there may have been one of this name, whose leases may still be held"
                    .to_owned(),
            ),
            ..MasterStatus::new(master, MasterState::Quarantined)
        })
    }
}

/// Notes in the store, if there is one, that clusters can be deleted from now on without a tombstone.
pub(crate) async fn note_unobserved(api: &ApiServer, namespace: &str, now: Timestamp) -> Result<(), Error> {
    let Some(store) = api.get_metadata::<ConfigMap>(namespace, TOMBSTONES).await? else { return Ok(()) };
    let mut operations = Vec::new();
    if store.metadata.annotations.is_none() {
        operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
    }
    operations.push(json!({"op": "add", "path": path_of(UNOBSERVED_SINCE), "value": now.to_string()}));
    let uid = store.metadata.uid.unwrap_or_default();
    api.patch_metadata::<ConfigMap>(namespace, TOMBSTONES, &uid, &operations).await.map(drop)
}

/// Makes the store, if there is none. One in which tombstones may be missing counts as lost.
pub(crate) async fn ensure_store(ctx: &Context, now: Timestamp) -> Result<ConfigMap, Error> {
    if let Some(store) = ctx.api.get::<ConfigMap>(&ctx.namespace, TOMBSTONES).await? {
        if !store.annotations().contains_key(UNOBSERVED_SINCE) {
            return Ok(store);
        }
        tracing::warn!(
            "no operator has seen which clusters were deleted: new clusters wait for one restart delay from now"
        );
        let lost = json!({"op": "add", "path": path_of(LOST_AT), "value": now.to_string()});
        let noticed = json!({"op": "remove", "path": path_of(UNOBSERVED_SINCE)});
        let uid = store.uid().unwrap_or_default();
        ctx.api.patch_metadata::<ConfigMap>(&ctx.namespace, TOMBSTONES, &uid, &[lost, noticed]).await?;
        let store = ctx.api.get::<ConfigMap>(&ctx.namespace, TOMBSTONES).await?;
        return store.ok_or(Error::Internal("a store that was just written can be read"));
    }
    let definition = match ctx.api.get_definition(RedisLockCluster::crd_name()).await {
        // Who may not read it cannot tell that no cluster was deleted before.
        Err(error) if error.category() == Category::Forbidden => None,
        result => result?,
    };
    let age =
        definition.and_then(|definition| definition.metadata.creation_timestamp).map(|made| now.duration_since(made.0));
    let is_fresh = age.is_some_and(|age| Duration::try_from(age).unwrap_or_default() < FRESH);
    let annotations = (!is_fresh).then(|| BTreeMap::from([(LOST_AT.to_owned(), now.to_string())]));
    if !is_fresh {
        tracing::warn!("the record of deleted clusters was lost: new clusters wait for one restart delay from now");
    }
    let store = ConfigMap { metadata: ObjectMeta { annotations, ..metadata(ctx) }, ..ConfigMap::default() };
    match ctx.api.create(&store).await {
        // Another operator was faster.
        Err(error) if error.category() == Category::Conflict => {
            let store = ctx.api.get::<ConfigMap>(&ctx.namespace, TOMBSTONES).await?;
            store.ok_or(Error::Internal("a store that exists already can be read"))
        }
        result => result,
    }
}

/// What is known of former clusters of this name.
pub(crate) async fn of(ctx: &Context, namespace: &str, name: &str, now: Timestamp) -> Result<Former, Error> {
    let store = ensure_store(ctx, now).await?;
    let text = store.data.as_ref().and_then(|data| data.get(&key(namespace, name)));
    // One that a person has broken is one that was lost.
    let rows = text.map(|text| serde_json::from_str(text));
    let is_broken = matches!(rows, Some(Err(_)));
    let lost_at = store.annotations().get(LOST_AT).and_then(|at| at.parse().ok());
    Ok(Former {
        rows: rows.and_then(Result::ok).unwrap_or_default(),
        lost_at: if is_broken { Some(now) } else { lost_at },
    })
}

/// Writes the tombstone of a cluster over a former one of the same name, or with `None` removes it. Drops those that are over.
///
/// Fails with an outdated write where another was written meanwhile.
pub(crate) async fn write(
    ctx: &Context,
    namespace: &str,
    name: &str,
    rows: Option<&[MasterStatus]>,
    now: Timestamp,
) -> Result<(), Error> {
    let store = ensure_store(ctx, now).await?;
    let before = store.data.clone().unwrap_or_default();
    let mut data = before.clone();
    data.retain(|_, text| !is_over(text, now));
    match rows {
        Some(rows) => {
            let text = serde_json::to_string(rows).map_err(|_| Error::Internal("a record can be written as JSON"))?;
            data.insert(key(namespace, name), text);
        }
        None => drop(data.remove(&key(namespace, name))),
    }
    if data == before {
        return Ok(());
    }
    let metadata = ObjectMeta {
        resource_version: store.resource_version(),
        annotations: store.metadata.annotations.clone(),
        ..metadata(ctx)
    };
    ctx.api.apply(&ConfigMap { metadata, data: Some(data), ..ConfigMap::default() }).await.map(drop)
}

/// Whether the delay of every master in a tombstone has been over for long.
fn is_over(text: &str, now: Timestamp) -> bool {
    let Ok(rows) = serde_json::from_str::<Vec<MasterStatus>>(text) else { return false };
    rows.iter().all(|row| {
        let is_known = row.state == MasterState::Quarantined;
        is_known && row.restart_not_before.as_ref().is_some_and(|until| later(until.0, KEPT) < now)
    })
}

/// The path of an annotation in a JSON patch.
fn path_of(annotation: &str) -> String {
    format!("/metadata/annotations/{}", annotation.replace('/', "~1"))
}

/// The key of a cluster's tombstone in the store. A namespace has no dot, so no two clusters share one.
fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}.{name}")
}

fn metadata(ctx: &Context) -> ObjectMeta {
    ObjectMeta {
        name: Some(TOMBSTONES.to_owned()),
        namespace: Some(ctx.namespace.clone()),
        labels: Some(BTreeMap::from([("app.kubernetes.io/managed-by".to_owned(), names::MANAGER.to_owned())])),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::Value;

    use super::*;
    use crate::cluster::fixtures::{DELAY, at, quarantined, row};
    use crate::operator::leadership::Leadership;

    /// A context whose API server has this store, and does what a patch says.
    fn context(store: Value) -> (Context, Arc<Mutex<Value>>) {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let store = Arc::new(Mutex::new(store));
        let shown = Arc::clone(&store);
        tokio::spawn(async move {
            while let Some((request, send)) = handle.next_request().await {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                if parts.method == Method::PATCH {
                    let operations: Vec<Value> = serde_json::from_slice(&body).unwrap();
                    let store = &mut shown.lock().unwrap()["metadata"];
                    for operation in operations {
                        let path = operation["path"].as_str().unwrap().trim_start_matches("/metadata/");
                        let annotation = path.trim_start_matches("annotations/").replace("~1", "/");
                        match (operation["op"].as_str().unwrap(), path) {
                            ("add", "annotations") => store["annotations"] = json!({}),
                            ("add", _) => store["annotations"][annotation] = operation["value"].clone(),
                            ("remove", _) => drop(store["annotations"].as_object_mut().unwrap().remove(&annotation)),
                            _ => assert_eq!((path, &operation["value"]), ("uid", &store["uid"])),
                        }
                    }
                }
                let text = shown.lock().unwrap().to_string();
                send.send_response(Response::new(Body::from(text.into_bytes())));
            }
        });
        (Context::for_tests(Client::new(service, "redlock-system"), Leadership::always()).0, store)
    }

    #[tokio::test]
    async fn after_a_time_in_which_nobody_saw_what_was_deleted_each_new_cluster_waits() {
        let tombstone = serde_json::to_string(&[quarantined()]).unwrap();
        let (ctx, store) = context(json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": TOMBSTONES, "uid": "store"},
            "data": {"keys.votes": tombstone},
        }));
        note_unobserved(&ctx.api, &ctx.namespace, at(0)).await.unwrap();
        assert_eq!(store.lock().unwrap()["metadata"]["annotations"][UNOBSERVED_SINCE], at(0).to_string());
        // The operator is there again: from now on it sees every deletion.
        let other = of(&ctx, "keys", "other", at(5000)).await.unwrap();
        assert_eq!(other, Former { rows: Vec::new(), lost_at: Some(at(5000)) });
        let known = of(&ctx, "keys", "votes", at(5001)).await.unwrap();
        assert_eq!(
            known,
            Former { rows: vec![quarantined()], lost_at: Some(at(5000)) },
            "no tombstone is lost by that"
        );
    }

    #[test]
    fn a_cluster_begins_with_the_records_of_the_former_one() {
        let former = Former { rows: vec![quarantined()], lost_at: None };
        assert_eq!(former.row("votes-0", DELAY, at(1)), Some(quarantined()));
        assert_eq!(former.row("votes-1", DELAY, at(1)), None);
    }

    #[test]
    fn where_the_store_was_lost_each_new_cluster_waits_one_delay_from_then() {
        let former = Former { rows: Vec::new(), lost_at: Some(at(0)) };
        let row = former.row("votes-0", DELAY, at(64)).unwrap();
        assert_eq!((row.state, row.restart_not_before), (MasterState::Quarantined, Some(MicroTime(at(65)))));
        assert_eq!(former.row("votes-0", DELAY, at(65)), None);
    }

    #[test]
    fn a_tombstone_is_dropped_a_day_after_its_last_delay_and_never_while_a_server_may_run() {
        let text = |rows: &[MasterStatus]| serde_json::to_string(rows).unwrap();
        let day = 24 * 3600;
        assert!(!is_over(&text(&[quarantined()]), at(65 + day)));
        assert!(is_over(&text(&[quarantined()]), at(66 + day)));
        assert!(!is_over(&text(&[quarantined(), row(MasterState::Vanished)]), at(66 + day)));
        assert!(!is_over("broken", at(66 + day)));
    }
}
