//! The one way to the API server: each request has a timeout, each failure is one [`Error`], and nothing is written
//! without leadership.

mod machines;

use std::fmt::{self, Debug};
use std::future::Future;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, ObjectList, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{PartialObjectMeta, Status};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::timeout;

use super::leadership::Leadership;
use super::metrics::Metrics;
use crate::contract::names::{MANAGER, STATUS_MANAGER};

/// How long a request may take. Without a timeout a request would hold up its object for ever.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a request, and with it a reconcile, did not succeed. It is retried.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The API server refused the request, or could not be reached.
    #[error("failed to {action}")]
    Request {
        /// What was to be done, to which object.
        action: String,
        /// What came back.
        source: Box<kube::Error>,
    },
    /// No answer in time.
    #[error("failed to {action}: no answer in time")]
    Timeout {
        /// What was to be done.
        action: String,
    },
    /// The object was changed since it was read, so that what was decided may be out of date.
    #[error("failed to {action}: it was changed meanwhile")]
    Outdated {
        /// What was to be done.
        action: String,
    },
    /// This process does not lead any more.
    #[error("this process does not lead any more")]
    NotLeading,
    /// A promise within this program does not hold.
    #[error("internal error: {0}")]
    Internal(&'static str),
    /// A reconcile panicked.
    #[error("the operator panicked over it, which is a fault of the operator: please report it with its log")]
    Panicked,
}

/// What kind of failure an [`Error`] is: the label of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Category {
    /// A permission is missing, or an admission policy refuses the object.
    Forbidden,
    /// The object was changed since it was read, or exists already.
    Conflict,
    /// There is no such object.
    NotFound,
    /// The object is not valid.
    Invalid,
    /// Its namespace is being deleted: nothing can be created in it any more.
    NamespaceTerminating,
    /// Another error of the API server.
    Api,
    /// The API server could not be reached.
    Connection,
    /// No answer in time.
    Timeout,
    /// This process does not lead.
    NotLeading,
    /// A bug.
    Internal,
    /// A bug that ended a reconcile.
    Panic,
}

/// A namespaced kind that can be read and written.
pub(crate) trait Object:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + Debug
{
}

impl<K> Object for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + Debug
{
}

/// The API server, as this process may use it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ApiServer {
    client: Client,
    leadership: Leadership,
    metrics: Metrics,
}

/// What a request does.
#[derive(Clone, Copy, Debug)]
enum Verb {
    Get,
    GetMetadata,
    List,
    Create,
    Apply,
    Delete,
    WriteStatus,
    SetCondition,
    PatchMetadata,
}

// === impl Category ===

impl Category {
    /// The word for it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Forbidden => "forbidden",
            Self::Conflict => "conflict",
            Self::NotFound => "not_found",
            Self::Invalid => "invalid",
            Self::NamespaceTerminating => "namespace_terminating",
            Self::Api => "api",
            Self::Connection => "connection",
            Self::Timeout => "timeout",
            Self::NotLeading => "not_leading",
            Self::Internal => "internal",
            Self::Panic => "panic",
        }
    }

    /// The category of an answer of the API server.
    fn of(status: &Status) -> Self {
        if is_namespace_terminating(status) {
            Self::NamespaceTerminating
        } else if status.is_forbidden() {
            Self::Forbidden
        } else if status.is_conflict() || status.is_already_exists() {
            Self::Conflict
        } else if status.is_not_found() {
            Self::NotFound
        } else if status.is_invalid() {
            Self::Invalid
        } else {
            Self::Api
        }
    }
}

/// Whether the API server refuses because the namespace is being deleted.
pub(crate) fn is_namespace_terminating(status: &Status) -> bool {
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    status.is_forbidden()
        && (causes.any(|cause| cause.reason == "NamespaceTerminating")
            || status.message.contains("because it is being terminated"))
}

// === impl Error ===

impl Error {
    /// What kind of failure it is.
    pub(crate) fn category(&self) -> Category {
        match self {
            Self::Request { source, .. } => match &**source {
                kube::Error::Api(status) => Category::of(status),
                _ => Category::Connection,
            },
            Self::Timeout { .. } => Category::Timeout,
            Self::Outdated { .. } => Category::Conflict,
            Self::NotLeading => Category::NotLeading,
            Self::Internal(_) => Category::Internal,
            Self::Panicked => Category::Panic,
        }
    }

    /// Whether the object was changed since it was read, so that what was decided may be out of date.
    ///
    /// Narrower than [`Category::Conflict`], which is also that an object exists already.
    pub(crate) fn is_outdated_write(&self) -> bool {
        match self {
            Self::Outdated { .. } => true,
            Self::Request { source, .. } => matches!(&**source, kube::Error::Api(status) if status.is_conflict()),
            _ => false,
        }
    }
}

// === impl Verb ===

impl Verb {
    /// The label of a metric.
    fn as_str(self) -> &'static str {
        match self {
            Self::Get | Self::GetMetadata => "get",
            Self::List => "list",
            Self::Create => "create",
            Self::Apply => "apply",
            Self::Delete => "delete",
            Self::WriteStatus | Self::SetCondition => "write_status",
            Self::PatchMetadata => "patch",
        }
    }

    /// The words of an error.
    fn text(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::GetMetadata => "get the metadata of",
            Self::List => "list",
            Self::Create => "create",
            Self::Apply => "apply",
            Self::Delete => "delete",
            Self::WriteStatus => "write the status of",
            Self::SetCondition => "set a condition of",
            Self::PatchMetadata => "patch the metadata of",
        }
    }
}

// === impl ApiServer ===

impl ApiServer {
    /// The API server behind `client`. It is written to only while `leadership` says that this process leads. Requests are counted
    /// in `metrics`.
    pub(crate) fn new(client: Client, leadership: Leadership, metrics: Metrics) -> Self {
        Self { client, leadership, metrics }
    }

    /// Fails unless this process leads right now.
    ///
    /// Every write asks this immediately before it is sent: the task may have slept since it last asked.
    pub(crate) fn require_leadership(&self) -> Result<(), Error> {
        if self.leadership.is_leader() { Ok(()) } else { Err(Error::NotLeading) }
    }

    /// The object, or `None` if there is none.
    pub(crate) async fn get<K: Object>(&self, namespace: &str, name: &str) -> Result<Option<K>, Error> {
        self.send::<K, _>(Verb::Get, name, self.api::<K>(namespace).get_opt(name)).await
    }

    /// The object's metadata, or `None` if there is none. Nothing else of the object is read.
    pub(crate) async fn get_metadata<K: Object>(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<PartialObjectMeta<K>>, Error> {
        self.send::<K, _>(Verb::GetMetadata, name, self.api::<K>(namespace).get_metadata_opt(name)).await
    }

    /// The metadata of the definition of a kind, or `None` if there is none.
    pub(crate) async fn get_definition(
        &self,
        name: &str,
    ) -> Result<Option<PartialObjectMeta<CustomResourceDefinition>>, Error> {
        let definitions = Api::<CustomResourceDefinition>::all(self.client.clone());
        self.send::<CustomResourceDefinition, _>(Verb::Get, name, definitions.get_metadata_opt(name)).await
    }

    /// The objects with these labels.
    pub(crate) async fn list<K: Object>(&self, namespace: &str, labels: &str) -> Result<Vec<K>, Error> {
        let params = ListParams::default().labels(labels);
        Ok(self.send::<K, _>(Verb::List, "objects", self.api::<K>(namespace).list(&params)).await?.items)
    }

    /// A page of the metadata of the objects of all namespaces. Nothing else of them is read.
    pub(crate) async fn list_metadata<K: Object>(
        &self,
        page: &ListParams,
    ) -> Result<ObjectList<PartialObjectMeta<K>>, Error> {
        self.send::<K, _>(Verb::List, "objects", Api::<K>::all(self.client.clone()).list_metadata(page)).await
    }

    /// Creates the object. Fails with [`Category::Conflict`] if one of its name exists, whoever's it is.
    pub(crate) async fn create<K: Object>(&self, object: &K) -> Result<K, Error> {
        self.require_leadership()?;
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let api = self.api::<K>(&object.namespace().unwrap_or_default());
        self.send::<K, _>(Verb::Create, &object.name_any(), api.create(&params, object)).await
    }

    /// Applies the object over one that is known to be ours: server-side apply takes any field over.
    pub(crate) async fn apply<K: Object>(&self, object: &K) -> Result<K, Error> {
        self.require_leadership()?;
        let (name, params) = (object.name_any(), PatchParams::apply(MANAGER).force());
        let api = self.api::<K>(&object.namespace().unwrap_or_default());
        self.send::<K, _>(Verb::Apply, &name, api.patch(&name, &params, &Patch::Apply(object))).await
    }

    /// Deletes this very object, without force. One that is gone, or was made anew under the same name, is no error.
    pub(crate) async fn delete<K: Object>(&self, namespace: &str, name: &str, uid: &str) -> Result<(), Error> {
        self.require_leadership()?;
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let deleted = self.send::<K, _>(Verb::Delete, name, self.api::<K>(namespace).delete(name, &params)).await;
        match deleted {
            Err(error) if matches!(error.category(), Category::NotFound | Category::Conflict) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Applies the status of the object that `guard` (a part of `metadata`: its uid, its version) describes. Any other
    /// object, or version, is refused with [`Category::Conflict`].
    pub(crate) async fn apply_status<K: Object>(
        &self,
        namespace: &str,
        name: &str,
        guard: serde_json::Value,
        status: &impl Serialize,
    ) -> Result<K, Error> {
        self.require_leadership()?;
        let mut metadata = guard;
        metadata["name"] = json!(name);
        let body = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": metadata,
            "status": status,
        });
        let params = PatchParams::apply(STATUS_MANAGER).force();
        let (api, patch) = (self.api::<K>(namespace), Patch::Apply(&body));
        self.send::<K, _>(Verb::WriteStatus, name, api.patch_status(name, &params, &patch)).await
    }

    /// Sets a condition of this very pod. A strategic merge, since an apply of a part fails where another controller has written a
    /// list of the pod with two entries of one key.
    pub(crate) async fn set_pod_condition(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        condition: &PodCondition,
    ) -> Result<(), Error> {
        self.require_leadership()?;
        let body = json!({"metadata": {"uid": uid}, "status": {"conditions": [condition]}});
        let params = PatchParams { field_manager: Some(STATUS_MANAGER.to_owned()), ..PatchParams::default() };
        let (api, patch) = (self.api::<Pod>(namespace), Patch::Strategic(&body));
        self.send::<Pod, _>(Verb::SetCondition, name, api.patch_status(name, &params, &patch)).await.map(drop)
    }

    /// Changes the metadata of this very object by a JSON patch, and returns them. Fails with an outdated write if an operation that
    /// tests something finds another value.
    pub(crate) async fn patch_metadata<K: Object>(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        operations: &[serde_json::Value],
    ) -> Result<PartialObjectMeta<K>, Error> {
        self.require_leadership()?;
        // The object of the same name that was created since is another.
        let mut patch = vec![json!({"op": "test", "path": "/metadata/uid", "value": uid})];
        patch.extend_from_slice(operations);
        let patch = serde_json::from_value(patch.into())
            .map_err(|_| Error::Internal("a JSON patch of this program is valid"))?;
        let api = self.api::<K>(namespace);
        let (params, patch) = (PatchParams::default(), Patch::Json::<()>(patch));
        let patched = api.patch_metadata(name, &params, &patch);
        match self.send::<K, _>(Verb::PatchMetadata, name, patched).await {
            Err(Error::Request { action, source }) if is_failed_test(&source) => Err(Error::Outdated { action }),
            result => result,
        }
    }

    /// The answer to `request`, counted, or an error that says what it was to do.
    async fn send<K: Resource<DynamicType = ()>, T>(
        &self,
        verb: Verb,
        name: &str,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Error> {
        let action = || format!("{} {} {name}", verb.text(), K::kind(&()));
        let result = match timeout(REQUEST_TIMEOUT, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(source)) => Err(Error::Request { action: action(), source: Box::new(source) }),
            Err(_) => Err(Error::Timeout { action: action() }),
        };
        let error = result.as_ref().err().map(|error| error.category().as_str());
        self.metrics.api_request(verb.as_str(), &K::kind(&()), error);
        result
    }

    fn api<K: Object>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer").finish_non_exhaustive()
    }
}

/// Whether a JSON patch was refused because a value is not the one that it tests. An object that would not be valid is refused with the
/// same code, and with causes.
fn is_failed_test(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.code == 422 && status.details.as_ref().is_none_or(|details| details.causes.is_empty())
}

#[cfg(test)]
mod tests;
