//! Finalizers: added and removed by patches that lose nobody else's.
//!
//! # Layout
//! - [`add`], [`remove`]: the patches
//! - [`AddedFinalizers`]: what a cache does not show yet

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::api::ObjectMeta;
use kube::core::PartialObjectMeta;
use serde_json::json;

use super::api_server::{ApiServer, Category, Error, Object};
use super::own_write::OwnWrite;

/// The finalizers that this process added to objects, by uid of the object, until its cache shows them. Without it each reconcile
/// between the patch and the event of the watch would patch again, and be refused.
#[derive(Debug, Default)]
pub(crate) struct AddedFinalizers(Mutex<HashMap<String, OwnWrite>>);

// === impl AddedFinalizers ===

impl AddedFinalizers {
    /// Adds the finalizer to this very object, unless it has it: by `meta`, or by what this process did since.
    pub(crate) async fn add<K: Object>(
        &self,
        api: &ApiServer,
        meta: &ObjectMeta,
        finalizer: &str,
    ) -> Result<(), Error> {
        let uid = meta.uid.as_deref().unwrap_or_default();
        let version = meta.resource_version.as_deref();
        if self.writes().get(uid).is_some_and(|write| write.is_ahead_of(version)) {
            return Ok(());
        }
        // It shows, or somebody has taken it off again.
        self.forget(uid);
        if let Some(made) = add::<K>(api, meta, finalizer).await? {
            self.writes().insert(uid.to_owned(), OwnWrite::new(meta.resource_version.clone(), Some(made)));
        }
        Ok(())
    }

    /// Forgets an object that is gone.
    pub(crate) fn forget(&self, uid: &str) {
        self.writes().remove(uid);
    }

    fn writes(&self) -> MutexGuard<'_, HashMap<String, OwnWrite>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the object has this finalizer.
pub(crate) fn is_on(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().flatten().any(|known| known == finalizer)
}

/// Adds the finalizer to this very object, unless `meta` has it. Returns the version of the object that this made, if it did.
pub(crate) async fn add<K: Object>(
    api: &ApiServer,
    meta: &ObjectMeta,
    finalizer: &str,
) -> Result<Option<String>, Error> {
    if is_on(meta, finalizer) {
        return Ok(None);
    }
    let finalizers = meta.finalizers.clone().unwrap_or_default();
    // Tested, so that a finalizer that somebody else added meanwhile is not lost.
    let operations = if finalizers.is_empty() {
        [
            json!({"op": "test", "path": "/metadata/finalizers", "value": null}),
            json!({"op": "add", "path": "/metadata/finalizers", "value": [finalizer]}),
        ]
    } else {
        [
            json!({"op": "test", "path": "/metadata/finalizers", "value": finalizers}),
            json!({"op": "add", "path": "/metadata/finalizers/-", "value": finalizer}),
        ]
    };
    patch::<K>(api, meta, &operations).await.map(|patched| patched.metadata.resource_version)
}

/// Removes the finalizer from this very object. One that is gone has none.
pub(crate) async fn remove<K: Object>(api: &ApiServer, meta: &ObjectMeta, finalizer: &str) -> Result<(), Error> {
    let finalizers = meta.finalizers.as_deref().unwrap_or_default();
    let Some(index) = finalizers.iter().position(|known| known == finalizer) else { return Ok(()) };
    let path = format!("/metadata/finalizers/{index}");
    let operations = [json!({"op": "test", "path": path, "value": finalizer}), json!({"op": "remove", "path": path})];
    match patch::<K>(api, meta, &operations).await {
        Err(error) if error.category() == Category::NotFound => Ok(()),
        result => result.map(drop),
    }
}

async fn patch<K: Object>(
    api: &ApiServer,
    meta: &ObjectMeta,
    operations: &[serde_json::Value],
) -> Result<PartialObjectMeta<K>, Error> {
    let of = |text: &Option<String>| text.clone().unwrap_or_default();
    api.patch_metadata::<K>(&of(&meta.namespace), &of(&meta.name), &of(&meta.uid), operations).await
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Client;
    use kube::client::Body;

    use super::*;
    use crate::operator::leadership::Leadership;
    use crate::operator::metrics::Metrics;

    #[tokio::test]
    async fn a_finalizer_is_added_once_while_the_cache_does_not_show_it_and_again_when_it_was_taken_off() {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let api = ApiServer::new(Client::new(service, "shop"), Leadership::always(), Metrics::default());
        let server = tokio::spawn(async move {
            let mut patches = 0;
            while let Some((request, send)) = handle.next_request().await {
                assert_eq!(request.method(), "PATCH");
                patches += 1;
                let made = json!({
                    "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                    "metadata": {"name": "a", "uid": "u", "resourceVersion": format!("{}", 100 * patches + 2)},
                });
                send.send_response(Response::new(Body::from(made.to_string().into_bytes())));
            }
            patches
        });
        let added = AddedFinalizers::default();
        let cached = |version: &str| ObjectMeta {
            name: Some("a".to_owned()),
            uid: Some("u".to_owned()),
            resource_version: Some(version.to_owned()),
            ..ObjectMeta::default()
        };
        for version in ["100", "100", "101"] {
            added.add::<ConfigMap>(&api, &cached(version), "redlock.dev/lock").await.unwrap();
        }
        let shown = ObjectMeta { finalizers: Some(vec!["redlock.dev/lock".to_owned()]), ..cached("102") };
        added.add::<ConfigMap>(&api, &shown, "redlock.dev/lock").await.unwrap();
        added.add::<ConfigMap>(&api, &cached("110"), "redlock.dev/lock").await.unwrap();
        drop(api);
        assert_eq!(server.await.unwrap(), 2, "at first, and after somebody took it off");
    }
}
