//! Waits until an object is as expected, by a watch, with a timeout that only decides how late a failure is reported.

use std::fmt::Debug;
use std::sync::Mutex;
use std::time::Duration;

use kube::runtime::wait::await_condition;
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::PATIENCE;

/// The object once it exists and is as expected. Fails the test after [`PATIENCE`], and prints the object's last state.
pub async fn until<K>(api: &Api<K>, name: &str, what: &str, holds: impl Fn(&K) -> bool) -> K
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned + Send + 'static,
{
    match until_within(PATIENCE, api, name, holds).await {
        Ok(object) => object,
        Err(last) => panic!("{name}: not {what} after {PATIENCE:?}; it is\n{last}"),
    }
}

/// The object once it exists and is as expected, or after `timeout` its last state, as YAML.
pub async fn until_within<K>(
    timeout: Duration,
    api: &Api<K>,
    name: &str,
    holds: impl Fn(&K) -> bool,
) -> Result<K, String>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned + Send + 'static,
{
    let last = Mutex::new(None);
    let found = watch(timeout, api, name, |object: Option<&K>| {
        *last.lock().unwrap() = object.cloned();
        object.is_some_and(&holds)
    })
    .await;
    found.flatten().ok_or_else(|| match &*last.lock().unwrap() {
        Some(object) => serde_yaml::to_string(object).unwrap(),
        None => "absent".to_owned(),
    })
}

/// Waits until there is no such object (an object of the same name that is created later counts as one).
pub async fn gone<K>(api: &Api<K>, name: &str)
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned + Send + 'static,
{
    gone_within(PATIENCE, api, name).await;
}

/// Waits until there is no such object, and fails the test after `timeout`.
pub async fn gone_within<K>(timeout: Duration, api: &Api<K>, name: &str)
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned + Send + 'static,
{
    let last = Mutex::new(None);
    let found = watch(timeout, api, name, |object: Option<&K>| {
        *last.lock().unwrap() = object.cloned();
        object.is_none()
    })
    .await;
    if found.is_none() {
        let last = last.lock().unwrap();
        panic!("{name}: still there after {timeout:?}:\n{}", serde_yaml::to_string(&*last).unwrap());
    }
}

/// The object that met the condition; `None` after `timeout`. A broken watch is started again.
async fn watch<K>(
    timeout: Duration,
    api: &Api<K>,
    name: &str,
    condition: impl Fn(Option<&K>) -> bool,
) -> Option<Option<K>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let deadline = tokio::time::Instant::now() + timeout;
    loop {
        match tokio::time::timeout_at(deadline, await_condition(api.clone(), name, &condition)).await {
            Err(_) => return None,
            Ok(Ok(object)) => return Some(object),
            Ok(Err(error)) => eprintln!("watch of {name}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
