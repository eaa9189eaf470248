//! Checks before anything is started that the API server permits what the operator needs. A controller that may not watch
//! would retry for ever and look healthy.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::core::{PartialObjectMeta, Status};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::permissions;
use crate::api::{DistributedLock, RedisLockCluster};
use crate::operator::scope::Scope;
use crate::operator::watch::Source;

/// Timeout of a request.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// Why the operator cannot start yet, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The API server does not know a kind.
    #[error(
        "the API server does not know {0}: install the CustomResourceDefinitions (Helm: crds.enabled=true; otherwise \
         kubectl apply -f crds/)"
    )]
    UnknownKind(String),
    /// A permission is missing.
    #[error("not permitted to {verb} {what}: install the operator's roles (Helm: rbac.create=true); {message}")]
    Forbidden {
        /// The verb that was refused.
        verb: &'static str,
        /// The resource.
        what: String,
        /// The message of the API server.
        message: String,
    },
    /// Permissions are missing.
    #[error("not permitted to {}: install the operator's roles (Helm: rbac.create=true)", .0.join(", "))]
    Missing(Vec<String>),
    /// The API server does not answer, or its answer cannot be read.
    #[error("the API server cannot be asked about {what}: {source}")]
    Unreachable {
        /// The resource that was asked for.
        what: String,
        /// Why it failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Asks for each permission, and reads one object of each kind that is watched, and the Lease.
pub(super) async fn check(client: &Client, namespace: &str, scope: &Scope, lease: &str) -> Result<(), Error> {
    let missing = permissions::missing(client, namespace, scope).await?;
    if !missing.is_empty() {
        return Err(Error::Missing(missing));
    }
    check_kinds::<RedisLockCluster>(scope.sources(client)).await?;
    check_kinds::<DistributedLock>(scope.sources(client)).await?;
    check_kinds::<PartialObjectMeta<Namespace>>(scope.namespace_sources(client)).await?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let what = format!("the Lease {namespace}/{lease}");
    let answer = timeout(TIMEOUT, leases.get_opt(lease)).await;
    judge("get", what, answer.map(|a| a.map(drop)))
}

async fn check_kinds<K>(sources: Vec<Source<K>>) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let (plural, group) = (K::plural(&()), K::group(&()));
    let what = if group.is_empty() { plural.into_owned() } else { format!("{plural}.{group}") };
    for (api, watch) in sources {
        // Only the metadata: an object that this version cannot read must not prevent the start.
        let params = ListParams { field_selector: watch.field_selector, ..ListParams::default() }.limit(1);
        let answer = timeout(TIMEOUT, api.list_metadata(&params)).await;
        judge("list", what.clone(), answer.map(|a| a.map(drop)))?;
    }
    Ok(())
}

fn judge<E>(verb: &'static str, what: String, answer: Result<kube::Result<()>, E>) -> Result<(), Error>
where
    E: std::error::Error + Send + Sync + 'static,
{
    match answer {
        Ok(Ok(())) => Ok(()),
        // By the code: for an unknown path the API server answers in plain text, without a reason.
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Err(Error::UnknownKind(what)),
        Ok(Err(kube::Error::Api(status))) if status.is_forbidden() => {
            let Status { message, .. } = *status;
            Err(Error::Forbidden { verb, what, message })
        }
        Ok(Err(error)) => Err(Error::Unreachable { what, source: error.into() }),
        Err(elapsed) => Err(Error::Unreachable { what, source: elapsed.into() }),
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    /// Answers each path by `answer`: a status code and a reason (without one: plain text), or 200 and what was asked for.
    fn client(answer: impl Fn(&str) -> Option<(u16, &'static str)> + Send + 'static) -> Client {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        tokio::spawn(async move {
            while let Some((request, send)) = handle.next_request().await {
                let path = request.uri().path();
                if path == permissions::PATH {
                    let body = request.into_body().collect_bytes().await.unwrap();
                    let answer = permissions::tests::answer(&body, |right| answer(right).is_none());
                    send.send_response(Response::new(Body::from(answer.into_bytes())));
                    continue;
                }
                let found = if path.contains("/leases/") {
                    r#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{}}"#
                } else {
                    r#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{},"items":[]}"#
                };
                let (code, body) = answer(path).map_or((200, found.to_owned()), |(code, reason)| {
                    let message = "leases.coordination.k8s.io is forbidden: User \"x\" cannot";
                    let status = serde_json::to_string(&Status::failure(message, reason).with_code(code)).unwrap();
                    (code, if reason.is_empty() { "404 page not found\n".to_owned() } else { status })
                });
                send.send_response(Response::builder().status(code).body(Body::from(body.into_bytes())).unwrap());
            }
        });
        Client::new(service, "redlock")
    }

    #[tokio::test]
    async fn an_api_server_that_permits_everything_passes() {
        check(&client(|_| None), "redlock", &Scope::default(), "redlock-operator").await.unwrap();
    }

    #[tokio::test]
    async fn a_lease_that_does_not_exist_yet_passes() {
        let client = client(|path| path.contains("/leases/").then_some((404, "NotFound")));
        check(&client, "redlock", &Scope::default(), "redlock-operator").await.unwrap();
    }

    #[tokio::test]
    async fn a_missing_kind_says_how_to_install_it() {
        let client = client(|path| path.ends_with("/distributedlocks").then_some((404, "")));
        let error = check(&client, "redlock", &Scope::default(), "redlock-operator").await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the API server does not know distributedlocks.redlock.dev: install the CustomResourceDefinitions \
             (Helm: crds.enabled=true; otherwise kubectl apply -f crds/)"
        );
    }

    #[tokio::test]
    async fn every_missing_permission_is_named_at_once() {
        let client =
            client(|asked| ["delete pods", "create configmaps"].contains(&asked).then_some((403, "Forbidden")));
        let error = check(&client, "redlock", &Scope::default(), "redlock-operator").await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "not permitted to delete pods in all namespaces, create configmaps in redlock: install the operator's roles (Helm: \
             rbac.create=true)"
        );
    }

    #[tokio::test]
    async fn without_permission_to_list_namespaces_nothing_starts() {
        let client = client(|path| path.ends_with("/api/v1/namespaces").then_some((403, "Forbidden")));
        let error = check(&client, "redlock", &Scope::default(), "redlock-operator").await.unwrap_err();
        assert!(
            error.to_string().starts_with("not permitted to list namespaces: install the operator's roles"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_missing_right_says_which() {
        let client = client(|path| path.contains("/leases/").then_some((403, "Forbidden")));
        let error = check(&client, "redlock", &Scope::default(), "redlock-operator").await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "not permitted to get the Lease redlock/redlock-operator: install the operator's roles (Helm: \
             rbac.create=true); leases.coordination.k8s.io is forbidden: User \"x\" cannot"
        );
    }

    #[tokio::test]
    async fn with_a_scope_only_permissions_in_its_namespaces_are_needed() {
        let scope = Scope::of(["billing".to_owned()]);
        let everywhere = |path: &str| path.ends_with("v1alpha1/distributedlocks").then_some((403, "Forbidden"));
        check(&client(everywhere), "redlock", &scope, "redlock-operator").await.unwrap();
        let error = check(&client(everywhere), "redlock", &Scope::default(), "redlock-operator").await.unwrap_err();
        assert!(error.to_string().starts_with("not permitted to list distributedlocks.redlock.dev"), "{error}");
        let pods = |asked: &str| (asked == "delete pods").then_some((403, "Forbidden"));
        let error = check(&client(pods), "redlock", &scope, "redlock-operator").await.unwrap_err();
        assert!(error.to_string().starts_with("not permitted to delete pods in billing: "), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_does_not_answer_is_named_so() {
        let (service, _handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let error = check(&Client::new(service, "redlock"), "redlock", &Scope::default(), "redlock-operator")
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    }
}
