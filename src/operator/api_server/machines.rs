//! Kubernetes nodes, which are only read.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;

use super::{ApiServer, Error, Verb};

/// How many are read at a time.
const PAGE: u32 = 50;

impl ApiServer {
    /// The Kubernetes node, or `None` if there is none.
    pub(crate) async fn get_kubernetes_node(&self, name: &str) -> Result<Option<Node>, Error> {
        self.send::<Node, _>(Verb::Get, name, Api::<Node>::all(self.client.clone()).get_opt(name)).await
    }

    /// How many Kubernetes nodes are `wanted`, counted up to `enough`: no more are read than needed for that.
    pub(crate) async fn count_kubernetes_nodes(
        &self,
        enough: usize,
        wanted: impl Fn(&Node) -> bool,
    ) -> Result<usize, Error> {
        let (api, mut count) = (Api::<Node>::all(self.client.clone()), 0);
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = self.send::<Node, _>(Verb::List, "objects", api.list(&params)).await?;
            count += page.items.iter().filter(|machine| wanted(machine)).count();
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if count >= enough || params.continue_token.is_none() {
                return Ok(count.min(enough));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;
    use tower_test::mock;

    use super::*;
    use crate::operator::leadership::Leadership;
    use crate::operator::metrics::Metrics;

    #[tokio::test]
    async fn machines_are_counted_by_the_page_and_no_further_than_needed() {
        for (enough, pages_read) in [(3, 2), (9, 3)] {
            let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
            let server = tokio::spawn(async move {
                let mut asked = Vec::new();
                while let Some((request, send)) = handle.next_request().await {
                    asked.push(request.uri().query().unwrap_or_default().to_owned());
                    let next = ["page-2", "page-3", ""][asked.len() - 1];
                    let items = [json!({"metadata": {"name": "n1"}}), json!({"metadata": {"name": "n2"}})];
                    let list =
                        json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {"continue": next}, "items": items});
                    send.send_response(Response::new(Body::from(list.to_string().into_bytes())));
                }
                asked
            });
            let api = ApiServer::new(Client::new(service, "shop"), Leadership::always(), Metrics::default());
            let counted = api.count_kubernetes_nodes(enough, |_| true).await.unwrap();
            drop(api);
            let asked = server.await.unwrap();
            assert_eq!((counted, asked.len()), (enough.min(2 * pages_read), pages_read), "{asked:?}");
            assert!(asked[0].contains("limit=50") && asked[1].contains("continue=page-2"), "{asked:?}");
        }
    }
}
