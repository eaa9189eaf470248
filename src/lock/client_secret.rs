//! The Secret with which pods of a namespace reach the masters of a cluster, in the form of a service binding.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use tokio::time::Instant;

use super::decide::seconds;
use super::error::{Error, within};
use crate::api::RedisLockCluster;
use crate::api::lock::DistributedLock;
use crate::contract::credentials::Password;
use crate::contract::names::{self, CLUSTER_LABEL, MANAGER};

/// Label: namespace of the cluster that the Secret is for.
pub const CLUSTER_NAMESPACE_LABEL: &str = "redlock.dev/cluster-namespace";
/// How often a Secret is applied though nothing changed here: it may have changed there.
const HEAL_AFTER: Duration = Duration::from_mins(10);
/// How often it is looked again whether a foreign Secret is still in the way.
const CONFLICT_FOR: Duration = Duration::from_secs(30);

/// Which Secret: for the clients in a namespace, of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Binding {
    /// Namespace of the clients.
    pub namespace: String,
    /// Namespace of the cluster.
    pub cluster_namespace: String,
    /// Name of the cluster.
    pub cluster: String,
}

/// What is known of a Secret.
enum Known {
    Applied(Box<Secret>, Instant),
    Foreign(String, Instant),
}

/// Writes the Secrets, each once.
pub struct ClientSecrets {
    client: kube::Client,
    known: Mutex<HashMap<Binding, Arc<tokio::sync::Mutex<Option<Known>>>>>,
}

// === impl Binding ===

impl Binding {
    /// The binding that `lock` needs.
    #[must_use]
    pub fn of(lock: &DistributedLock) -> Self {
        Self {
            namespace: lock.namespace().unwrap_or_default(),
            cluster_namespace: lock.cluster_namespace(),
            cluster: lock.spec.cluster_ref.name.clone(),
        }
    }

    /// The Secret with which clients reach `cluster`.
    #[must_use]
    pub fn secret(&self, cluster: &RedisLockCluster, password: &Password) -> Secret {
        let endpoints = names::masters(cluster).iter().fold(String::new(), |mut lines, master| {
            // Writing to a String cannot fail.
            let _ = writeln!(lines, "{master}={}", names::address(master, &self.cluster_namespace));
            lines
        });
        let entries = [
            ("type", "redlock".to_owned()),
            ("provider", MANAGER.to_owned()),
            ("endpoints", endpoints),
            ("username", names::client_user(&self.namespace)),
            ("password", password.expose().to_owned()),
            ("namespace", self.namespace.clone()),
            ("prefix", format!("redlock:{}/", self.namespace)),
            ("max-ttl", seconds(cluster.spec.max_ttl())),
            ("call-timeout", seconds(cluster.spec.call_timeout())),
        ];
        let mut labels = names::labels(&self.cluster, None);
        labels.insert(CLUSTER_NAMESPACE_LABEL.to_owned(), self.cluster_namespace.clone());
        Secret {
            metadata: ObjectMeta {
                name: Some(names::client_secret(&self.cluster)),
                namespace: Some(self.namespace.clone()),
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            type_: Some("servicebinding.io/redlock".to_owned()),
            data: Some(entries.map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes()))).into()),
            ..Secret::default()
        }
    }

    /// Why a Secret with these labels is not to be touched; `None` if it is this binding's own.
    fn refusal(&self, labels: &BTreeMap<String, String>) -> Option<String> {
        let name = format!("{}/{}", self.namespace, names::client_secret(&self.cluster));
        let label = |key: &str| labels.get(key).map(String::as_str);
        let ours = label("app.kubernetes.io/managed-by") == Some(MANAGER);
        match (ours && label(CLUSTER_LABEL) == Some(&self.cluster), label(CLUSTER_NAMESPACE_LABEL)) {
            (true, Some(namespace)) if namespace == self.cluster_namespace => None,
            (true, Some(namespace)) => Some(format!(
                "the Secret {name} is for RedisLockCluster {namespace}/{}: use one of the two in this namespace",
                self.cluster
            )),
            _ => Some(format!("the Secret {name} exists and is not the operator's: delete or rename it")),
        }
    }
}

// === impl ClientSecrets ===

impl ClientSecrets {
    /// Nothing written yet.
    #[must_use]
    pub fn new(client: kube::Client) -> Self {
        Self { client, known: Mutex::default() }
    }

    /// Sees to it that the Secret is there. Answers why it is not to be touched, if a foreign one has its name.
    pub async fn ensure(&self, binding: &Binding, secret: Secret) -> Result<Option<String>, Error> {
        let slot = self.slot(binding);
        // Held during the requests, so that a thousand locks of one namespace write it once.
        let mut known = slot.lock().await;
        match &*known {
            Some(Known::Applied(applied, at)) if **applied == secret && at.elapsed() < HEAL_AFTER => return Ok(None),
            Some(Known::Foreign(why, at)) if at.elapsed() < CONFLICT_FOR => return Ok(Some(why.clone())),
            _ => {}
        }
        let (api, name) = self.api(binding);
        // Metadata only: the operator has no need to see a client's password.
        let found = within("look for the Secret for clients", api.get_metadata_opt(&name)).await?;
        let refusal = found.as_ref().and_then(|found| binding.refusal(found.labels()));
        match (&found, &refusal) {
            (_, Some(why)) => *known = Some(Known::Foreign(why.clone(), Instant::now())),
            (Some(_), None) => {
                let params = PatchParams::apply(MANAGER).force();
                within("apply the Secret for clients", api.patch(&name, &params, &Patch::Apply(&secret))).await?;
                *known = Some(Known::Applied(Box::new(secret), Instant::now()));
            }
            (None, None) => {
                // Created, not applied: an apply would merge with a foreign one that appeared just now.
                let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
                within("create the Secret for clients", api.create(&params, &secret)).await?;
                *known = Some(Known::Applied(Box::new(secret), Instant::now()));
            }
        }
        Ok(refusal)
    }

    /// Deletes the Secret, if it is ours and nobody is `in_use` of it any more. That is asked again under the same lock
    /// under which Secrets are written: a lock that was created meanwhile either keeps it or writes it anew.
    pub async fn delete_unless(&self, binding: &Binding, in_use: impl Fn() -> bool) -> Result<(), Error> {
        let slot = self.slot(binding);
        let mut known = slot.lock().await;
        if in_use() {
            return Ok(());
        }
        *known = None;
        let (api, name) = self.api(binding);
        let found = within("look for the Secret for clients", api.get_metadata_opt(&name)).await?;
        let Some(found) = found.filter(|found| binding.refusal(found.labels()).is_none()) else { return Ok(()) };
        let uid = Some(Preconditions { uid: found.uid(), resource_version: None });
        let params = DeleteParams { preconditions: uid, ..DeleteParams::default() };
        match within("delete the Secret for clients", api.delete(&name, &params)).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    fn api(&self, binding: &Binding) -> (Api<Secret>, String) {
        (Api::namespaced(self.client.clone(), &binding.namespace), names::client_secret(&binding.cluster))
    }

    fn slot(&self, binding: &Binding) -> Arc<tokio::sync::Mutex<Option<Known>>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(known.entry(binding.clone()).or_default())
    }
}

impl fmt::Debug for ClientSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientSecrets").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::credentials::RootKey;
    use crate::lock::fixtures;

    #[test]
    fn clients_find_masters_login_and_limits_in_the_secret() {
        let password = RootKey::generate().client_password("billing");
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
        assert_eq!(secret.metadata.name.as_deref(), Some("quintet-client"));
        assert_eq!(secret.metadata.namespace.as_deref(), Some("billing"));
        let labels = secret.metadata.labels.unwrap();
        assert_eq!(labels.get("redlock.dev/cluster").map(String::as_str), Some("quintet"));
        assert_eq!(labels.get("redlock.dev/cluster-namespace").map(String::as_str), Some("locks"));
    }

    #[test]
    fn only_a_secret_of_this_very_cluster_is_touched() {
        let binding = Binding::of(&fixtures::lock());
        let password = RootKey::generate().client_password("billing");
        let own = binding.secret(&fixtures::cluster(), &password).metadata.labels.unwrap();
        assert_eq!(binding.refusal(&own), None);
        assert_eq!(
            binding.refusal(&BTreeMap::new()).unwrap(),
            "the Secret billing/quintet-client exists and is not the operator's: delete or rename it"
        );
        let mut other = own.clone();
        other.insert(CLUSTER_NAMESPACE_LABEL.to_owned(), "infra".to_owned());
        assert_eq!(
            binding.refusal(&other).unwrap(),
            "the Secret billing/quintet-client is for RedisLockCluster infra/quintet: use one of the two in this namespace"
        );
        let mut unmanaged = own;
        unmanaged.remove("app.kubernetes.io/managed-by");
        assert!(binding.refusal(&unmanaged).is_some());
    }
}
