//! Which namespaces this operator serves: all, or those that it was told. It watches nothing else.

use std::collections::BTreeSet;

use k8s_openapi::NamespaceResourceScope;
use kube::{Api, Client, Resource};

use super::watch::{Source, WatchedNamespace};
use super::watch_config;

/// The namespaces. Cheap enough to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    /// Empty: all.
    namespaces: BTreeSet<String>,
}

impl Scope {
    /// These namespaces; all, if there are none.
    pub(crate) fn of(namespaces: impl IntoIterator<Item = String>) -> Self {
        Self { namespaces: namespaces.into_iter().collect() }
    }

    /// The namespaces; empty for all.
    pub(crate) fn namespaces(&self) -> &BTreeSet<String> {
        &self.namespaces
    }

    /// What to watch of a kind.
    pub(crate) fn sources<K>(&self, client: &Client) -> Vec<Source<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        if self.namespaces.is_empty() {
            return vec![(Api::all(client.clone()), watch_config())];
        }
        self.namespaces.iter().map(|name| (Api::namespaced(client.clone(), name), watch_config())).collect()
    }

    /// What to watch of the namespaces themselves, each by its name, which is all that a role may permit.
    pub(crate) fn namespace_sources(&self, client: &Client) -> Vec<Source<WatchedNamespace>> {
        let all = Api::all(client.clone());
        if self.namespaces.is_empty() {
            return vec![(all, watch_config())];
        }
        let of = |name: &String| (all.clone(), watch_config().fields(&format!("metadata.name={name}")));
        self.namespaces.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use kube::ResourceExt as _;
    use kube::client::Body;
    use redlock_test_servers::server::eventually;
    use serde_json::json;

    use super::*;
    use crate::api::WatchedCluster;
    use crate::operator::metrics::Metrics;
    use crate::operator::watch::Watch;

    const PATH: &str = "/apis/redlock.dev/v1alpha1/namespaces";

    /// An API server with a cluster in each namespace, which answers no request for all of them. Counts requests by path.
    fn api_server() -> (Client, Arc<Mutex<BTreeMap<String, u32>>>) {
        let (service, mut requests) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let asked = Arc::<Mutex<BTreeMap<String, u32>>>::default();
        let counts = Arc::clone(&asked);
        tokio::spawn(async move {
            let mut watches = Vec::new();
            while let Some((request, send)) = requests.next_request().await {
                let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default());
                *counts.lock().unwrap().entry(path.clone()).or_default() += 1;
                if query.contains("watch=true") {
                    watches.push(send);
                    continue;
                }
                let namespace = path.strip_prefix(PATH).and_then(|rest| rest.split('/').nth(1)).unwrap_or("none");
                let cluster = json!({
                    "apiVersion": "redlock.dev/v1alpha1", "kind": "RedisLockCluster",
                    "metadata": {"name": "main", "namespace": namespace, "uid": namespace}, "spec": {"masters": 3},
                });
                let list = json!({"apiVersion": "redlock.dev/v1alpha1", "kind": "RedisLockClusterList",
                    "metadata": {"resourceVersion": "1"}, "items": [cluster]});
                send.send_response(Response::new(Body::from(list.to_string().into_bytes())));
            }
        });
        (Client::new(service, "redlock"), asked)
    }

    #[tokio::test]
    async fn only_the_namespaces_of_the_scope_are_asked_for_and_each_is_shown() {
        let (client, asked) = api_server();
        let scope = Scope::of(["billing".to_owned(), "locks".to_owned()]);
        let (watch, feed) = Watch::<WatchedCluster>::new(|_| ());
        let sources = scope.sources(&client);
        let watching = tokio::spawn(async move { feed.run(sources, scope.namespaces(), Metrics::default()).await });
        watch.listed().await;
        let mut shown: Vec<_> = watch.store().state().iter().filter_map(|cluster| cluster.namespace()).collect();
        shown.sort_unstable();
        assert_eq!(shown, ["billing", "locks"]);
        let paths = ["billing", "locks"].map(|name| (format!("{PATH}/{name}/redislockclusters"), 2));
        eventually("a list and a watch of each", async || {
            (*asked.lock().unwrap() == paths.clone().into()).then_some(())
        })
        .await;
        watching.abort();
    }
}
