//! Finalizers: added and removed by patches that lose nobody else's.

use kube::api::ObjectMeta;
use serde_json::json;

use super::api_server::{ApiServer, Category, Error, Object};

/// Whether the object has this finalizer.
pub(crate) fn is_on(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().flatten().any(|known| known == finalizer)
}

/// Adds the finalizer to this very object, unless `meta` has it.
pub(crate) async fn add<K: Object>(api: &ApiServer, meta: &ObjectMeta, finalizer: &str) -> Result<(), Error> {
    if is_on(meta, finalizer) {
        return Ok(());
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
    patch::<K>(api, meta, &operations).await
}

/// Removes the finalizer from this very object. One that is gone has none.
pub(crate) async fn remove<K: Object>(api: &ApiServer, meta: &ObjectMeta, finalizer: &str) -> Result<(), Error> {
    let finalizers = meta.finalizers.as_deref().unwrap_or_default();
    let Some(index) = finalizers.iter().position(|known| known == finalizer) else { return Ok(()) };
    let path = format!("/metadata/finalizers/{index}");
    let operations = [json!({"op": "test", "path": path, "value": finalizer}), json!({"op": "remove", "path": path})];
    match patch::<K>(api, meta, &operations).await {
        Err(error) if error.category() == Category::NotFound => Ok(()),
        result => result,
    }
}

async fn patch<K: Object>(api: &ApiServer, meta: &ObjectMeta, operations: &[serde_json::Value]) -> Result<(), Error> {
    let of = |text: &Option<String>| text.clone().unwrap_or_default();
    api.patch_metadata::<K>(&of(&meta.namespace), &of(&meta.name), &of(&meta.uid), operations).await
}
