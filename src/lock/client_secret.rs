//! Writes the Secret with which pods of a namespace reach the masters of a cluster. Its content is in
//! [`crate::contract::client_secret`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;
use tokio::time::Instant;

use crate::api::{DistributedLock, RedisLockCluster};
use crate::contract::client_secret::{ClientSecret, SECRET_TYPE};
use crate::contract::credentials::Password;
use crate::contract::names::{self, CLUSTER_LABEL, MANAGER};
use crate::operator::api_server::{ApiServer, Category, Error};
use crate::operator::watch::locks::{ClusterObjectRef, cluster_ref};

/// Label: namespace of the cluster that the Secret is for.
pub(crate) const CLUSTER_NAMESPACE_LABEL: &str = "redlock.dev/cluster-namespace";
/// How often a Secret is applied again although nothing changed here: somebody else may have changed it.
const HEAL_AFTER: Duration = Duration::from_mins(10);
/// How often a foreign Secret is checked again.
const CONFLICT_FOR: Duration = Duration::from_secs(30);

/// A namespace that uses a cluster. It has one Secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Binding {
    /// Namespace of the clients.
    pub(crate) namespace: String,
    /// Namespace of the cluster.
    pub(crate) cluster_namespace: String,
    /// Name of the cluster.
    pub(crate) cluster: String,
}

/// What is known of a Secret, and since when.
enum Known {
    /// It was applied with this content.
    Applied(Box<Secret>, Instant),
    /// It is foreign, for this reason.
    Foreign(String, Instant),
}

/// What is known of the Secret of one binding. Locked during requests for that Secret.
type KnownSecret = Arc<tokio::sync::Mutex<Option<Known>>>;

/// Writes the Secrets, each once.
pub(crate) struct ClientSecrets {
    api: ApiServer,
    known: Mutex<HashMap<Binding, KnownSecret>>,
    /// The Secrets that are to be deleted again, since that failed.
    left: Mutex<HashSet<Binding>>,
}

// === impl Binding ===

impl Binding {
    /// The binding that `lock` needs.
    pub(crate) fn of(lock: &DistributedLock) -> Self {
        Self {
            namespace: lock.namespace().unwrap_or_default(),
            cluster_namespace: lock.cluster_namespace(),
            cluster: lock.spec.cluster_ref.name.clone(),
        }
    }

    /// Reference to the cluster.
    pub(crate) fn cluster_ref(&self) -> ClusterObjectRef {
        cluster_ref(&self.cluster_namespace, &self.cluster)
    }

    /// Name of the Secret.
    fn secret_name(&self) -> String {
        names::client_secret(&self.cluster, &self.cluster_namespace, &self.namespace)
    }

    /// Whether its parts are names. A lock that was stored before the definition asked for that may have another reference, which
    /// must not get into a request.
    pub(crate) fn is_named(&self) -> bool {
        let is_name = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        [&self.cluster, &self.cluster_namespace].into_iter().all(|part| !part.is_empty() && is_name(part))
    }

    /// The Secret with which clients reach `cluster`.
    pub(crate) fn secret(&self, cluster: &RedisLockCluster, password: &Password) -> Secret {
        let address = |master: String| {
            let address = names::address(&master, &self.cluster_namespace);
            (master, address)
        };
        let content = ClientSecret {
            endpoints: names::masters(cluster).into_iter().map(address).collect(),
            username: names::client_user(&self.namespace),
            password: password.clone(),
            namespace: self.namespace.clone(),
            max_ttl: cluster.spec.max_ttl(),
            call_timeout: cluster.spec.call_timeout(),
        };
        let mut labels = names::labels(&self.cluster, None);
        labels.insert(CLUSTER_NAMESPACE_LABEL.to_owned(), self.cluster_namespace.clone());
        Secret {
            metadata: ObjectMeta {
                name: Some(self.secret_name()),
                namespace: Some(self.namespace.clone()),
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            type_: Some(SECRET_TYPE.to_owned()),
            data: Some(content.data()),
            ..Secret::default()
        }
    }

    /// Why a Secret with these labels must not be touched; `None` if it is the Secret of this binding.
    fn refusal(&self, labels: &BTreeMap<String, String>) -> Option<String> {
        let name = format!("{}/{}", self.namespace, self.secret_name());
        let label = |key: &str| labels.get(key).map(String::as_str);
        let is_ours = label("app.kubernetes.io/managed-by") == Some(MANAGER);
        let is_for_it = label(CLUSTER_LABEL) == Some(&self.cluster)
            && label(CLUSTER_NAMESPACE_LABEL) == Some(&self.cluster_namespace);
        (!is_ours || !is_for_it)
            .then(|| format!("the Secret {name} exists and is not the operator's: delete or rename it"))
    }
}

// === impl ClientSecrets ===

impl ClientSecrets {
    /// Nothing written yet.
    pub(crate) fn new(api: ApiServer) -> Self {
        Self { api, known: Mutex::default(), left: Mutex::default() }
    }

    /// Writes the Secret unless it was written before. If a foreign Secret has its name, that one is not touched, and the
    /// reason is returned.
    pub(crate) async fn ensure(&self, binding: &Binding, secret: Secret) -> Result<Option<String>, Error> {
        let entry = self.entry(binding);
        // Locked during the requests: a thousand locks of one namespace write the Secret once.
        let mut known = entry.lock().await;
        match &*known {
            Some(Known::Applied(applied, at)) if **applied == secret && at.elapsed() < HEAL_AFTER => return Ok(None),
            Some(Known::Foreign(why, at)) if at.elapsed() < CONFLICT_FOR => return Ok(Some(why.clone())),
            _ => {}
        }
        let (namespace, name) = (&binding.namespace, binding.secret_name());
        // Only the metadata is read: the operator need not see a client's password.
        let found = self.api.get_metadata::<Secret>(namespace, &name).await?;
        let refusal = found.as_ref().and_then(|found| binding.refusal(found.labels()));
        if let Some(why) = &refusal {
            *known = Some(Known::Foreign(why.clone(), Instant::now()));
            return Ok(refusal);
        }
        if found.is_some() {
            self.api.apply(&secret).await?;
        } else {
            // Created, not applied: an apply would merge with a foreign Secret that was created just now.
            self.api.create(&secret).await?;
        }
        *known = Some(Known::Applied(Box::new(secret), Instant::now()));
        Ok(None)
    }

    /// Deletes the Secret, if it is the operator's and no lock needs it. `is_needed` is asked under the same lock under
    /// which Secrets are written: a lock that was created meanwhile either keeps the Secret or writes it again.
    pub(crate) async fn delete_unless(&self, binding: &Binding, is_needed: impl Fn() -> bool) -> Result<(), Error> {
        let entry = self.entry(binding);
        let mut known = entry.lock().await;
        self.left().remove(binding);
        if is_needed() {
            return Ok(());
        }
        *known = None;
        let deleted = self.delete(binding).await;
        // A missing permission is repaired by a person, and a namespace that is being deleted takes the Secret with it.
        if let Err(error) = &deleted
            && !matches!(error.category(), Category::Forbidden | Category::NamespaceTerminating)
        {
            self.left().insert(binding.clone());
        }
        drop(known);
        self.forget(binding, &entry);
        deleted
    }

    async fn delete(&self, binding: &Binding) -> Result<(), Error> {
        let (namespace, name) = (&binding.namespace, binding.secret_name());
        let found = self.api.get_metadata::<Secret>(namespace, &name).await?;
        if let Some(found) = found.filter(|found| binding.refusal(found.labels()).is_none()) {
            self.api.delete::<Secret>(namespace, &name, &found.uid().unwrap_or_default()).await?;
        }
        Ok(())
    }

    /// The Secrets that no lock needed and that could not be deleted.
    pub(crate) fn left_behind(&self) -> Vec<Binding> {
        self.left().iter().cloned().collect()
    }

    fn left(&self) -> MutexGuard<'_, HashSet<Binding>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the bindings that no lock uses.
    pub(crate) fn retain(&self, mut is_used: impl FnMut(&Binding) -> bool) {
        self.known().retain(|binding, entry| Arc::strong_count(entry) > 1 || is_used(binding));
    }

    /// Forgets a released binding, unless another task has its entry: two entries of one Secret would not exclude each
    /// other.
    fn forget(&self, binding: &Binding, entry: &KnownSecret) {
        let mut known = self.known();
        // The map's, and the caller's.
        if Arc::strong_count(entry) == 2 {
            known.remove(binding);
        }
    }

    fn entry(&self, binding: &Binding) -> KnownSecret {
        Arc::clone(self.known().entry(binding.clone()).or_default())
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Binding, KnownSecret>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ClientSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientSecrets").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use kube::core::Status;

    use super::*;
    use crate::contract::credentials::RootKey;
    use crate::lock::fixtures;
    use crate::operator::leadership::Leadership;
    use crate::operator::metrics::Metrics;

    /// Secrets on an API server that has none and takes any.
    fn secrets() -> ClientSecrets {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        tokio::spawn(async move {
            while let Some((request, send)) = handle.next_request().await {
                let is_read = request.method() == http::Method::GET;
                let body = request.into_body().collect_bytes().await.unwrap().to_vec();
                let missing = serde_json::to_vec(&Status::failure("no", "NotFound").with_code(404)).unwrap();
                let (code, body) = if is_read { (404, missing) } else { (200, body) };
                send.send_response(Response::builder().status(code).body(Body::from(body)).unwrap());
            }
        });
        ClientSecrets::new(ApiServer::new(
            kube::Client::new(service, "default"),
            Leadership::always(),
            Metrics::default(),
        ))
    }

    #[tokio::test]
    async fn nothing_is_remembered_of_a_binding_that_is_released_or_without_locks() {
        let (secrets, binding) = (secrets(), Binding::of(&fixtures::lock()));
        let secret = binding.secret(&fixtures::cluster(), &RootKey::generate().client_password("uid of billing", 1, 1));
        assert_eq!(secrets.ensure(&binding, secret.clone()).await.unwrap(), None);
        secrets.delete_unless(&binding, || true).await.unwrap();
        assert_eq!(secrets.known().len(), 1, "another lock needs it");
        secrets.delete_unless(&binding, || false).await.unwrap();
        assert_eq!(secrets.known().len(), 0);

        secrets.ensure(&binding, secret).await.unwrap();
        secrets.retain(|_| true);
        assert_eq!(secrets.known().len(), 1);
        let in_use = secrets.entry(&binding);
        secrets.retain(|_| false);
        assert_eq!(secrets.known().len(), 1, "a task writes the Secret right now");
        drop(in_use);
        secrets.retain(|_| false);
        assert_eq!(secrets.known().len(), 0);
    }

    #[test]
    fn clients_find_masters_login_and_limits_in_the_secret() {
        let password = RootKey::generate().client_password("uid of billing", 1, 1);
        let secret = Binding::of(&fixtures::lock()).secret(&fixtures::cluster(), &password);
        let data: BTreeMap<_, _> =
            secret.data.unwrap().into_iter().map(|(k, v)| (k, String::from_utf8(v.0).unwrap())).collect();
        let expected = [
            (
                "endpoints",
                "quintet-0=quintet-0.locks.svc:6379\nquintet-1=quintet-1.locks.svc:6379\n\
                 quintet-2=quintet-2.locks.svc:6379\nquintet-3=quintet-3.locks.svc:6379\n\
                 quintet-4=quintet-4.locks.svc:6379\n",
            ),
            ("max-ttl", "60s"),
            ("namespace", "billing"),
            ("call-timeout", "50ms"),
            ("password", password.expose()),
            ("prefix", "redlock:billing/"),
            ("provider", "redlock-operator"),
            ("type", "redlock"),
            ("username", "ns-billing"),
        ];
        assert_eq!(data, expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        assert_eq!(secret.metadata.name.as_deref(), Some("quintet.locks-client"));
        assert_eq!(secret.metadata.namespace.as_deref(), Some("billing"));
        let labels = secret.metadata.labels.unwrap();
        assert_eq!(labels.get("redlock.dev/cluster").map(String::as_str), Some("quintet"));
        assert_eq!(labels.get("redlock.dev/cluster-namespace").map(String::as_str), Some("locks"));
    }

    #[test]
    fn a_reference_that_is_no_name_gets_into_no_request() {
        let named = |cluster: &str, namespace: &str| {
            let mut lock = fixtures::lock();
            lock.spec.cluster_ref.name = cluster.to_owned();
            lock.spec.cluster_ref.namespace = Some(namespace.to_owned());
            Binding::of(&lock).is_named()
        };
        assert!(named("main-2", "locks"));
        for (cluster, namespace) in [("../../etc", "locks"), ("main", "a b"), ("", "locks"), ("main", "a/b")] {
            assert!(!named(cluster, namespace), "{cluster:?} {namespace:?}");
        }
    }

    #[test]
    fn only_a_secret_of_this_very_cluster_is_touched() {
        let binding = Binding::of(&fixtures::lock());
        let password = RootKey::generate().client_password("uid of billing", 1, 1);
        let own = binding.secret(&fixtures::cluster(), &password).metadata.labels.unwrap();
        assert_eq!(binding.refusal(&own), None);
        assert_eq!(
            binding.refusal(&BTreeMap::new()).unwrap(),
            "the Secret billing/quintet.locks-client exists and is not the operator's: delete or rename it"
        );
        let mut other = own.clone();
        other.insert(CLUSTER_NAMESPACE_LABEL.to_owned(), "infra".to_owned());
        assert!(binding.refusal(&other).is_some(), "nobody but a person makes such a one");
        let mut unmanaged = own;
        unmanaged.remove("app.kubernetes.io/managed-by");
        assert!(binding.refusal(&unmanaged).is_some());
    }
}
