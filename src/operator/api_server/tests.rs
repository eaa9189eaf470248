//! Requests to a mocked API server: their errors, timeouts and preconditions.

use http::{Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use tower_test::mock::{self, Handle};

use super::*;
use crate::operator::leadership::Terms;

fn status(code: u16, reason: &str, more: &serde_json::Value) -> Error {
    let mut body = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": ""});
    body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    let status: Status = serde_json::from_value(body).unwrap();
    Error::Request { action: "create Pod main-0".to_owned(), source: Box::new(kube::Error::Api(Box::new(status))) }
}

#[test]
fn each_refusal_has_its_category() {
    let going = json!({"details": {"causes": [{"reason": "NamespaceTerminating", "message": "locks"}]}});
    let message = json!({"message": "unable to create new content in namespace a because it is being terminated"});
    for (error, category) in [
        (status(403, "Forbidden", &json!({})), "forbidden"),
        (status(403, "Forbidden", &going), "namespace_terminating"),
        (status(403, "Forbidden", &message), "namespace_terminating"),
        (status(409, "Conflict", &json!({})), "conflict"),
        (status(409, "AlreadyExists", &json!({})), "conflict"),
        (status(404, "NotFound", &json!({})), "not_found"),
        (status(422, "Invalid", &json!({})), "invalid"),
        (status(500, "InternalError", &json!({})), "api"),
        (Error::Timeout { action: "list Pods".to_owned() }, "timeout"),
        (Error::NotLeading, "not_leading"),
    ] {
        assert_eq!(error.category().as_str(), category, "{error:?}");
    }
    assert_eq!(status(409, "Conflict", &json!({})).to_string(), "failed to create Pod main-0");
}

#[test]
fn an_object_that_exists_already_is_no_outdated_write() {
    assert!(status(409, "Conflict", &json!({})).is_outdated_write());
    assert!(!status(409, "AlreadyExists", &json!({})).is_outdated_write());
    assert!(!Error::NotLeading.is_outdated_write());
}

fn api_server(leadership: Leadership) -> (ApiServer, Handle<Request<Body>, Response<Body>>) {
    let (service, handle) = mock::pair::<Request<Body>, Response<Body>>();
    (ApiServer::new(Client::new(service, "shop"), leadership, Metrics::default()), handle)
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_times_out() {
    let (api, _handle) = api_server(Leadership::always());
    let error = api.get::<ConfigMap>("shop", "a").await.unwrap_err();
    assert_eq!(error.to_string(), "failed to get ConfigMap a: no answer in time");
}

#[tokio::test]
async fn nothing_is_written_without_leadership() {
    let (api, mut handle) = api_server(Terms::new().1);
    let object = ConfigMap::default();
    let mut failed = vec![api.create(&object).await.map(drop), api.apply(&object).await.map(drop)];
    failed.push(api.delete::<ConfigMap>("shop", "a", "uid").await);
    failed.push(api.apply_status::<ConfigMap>("shop", "a", json!({}), &json!({})).await.map(drop));
    failed.push(api.patch_metadata::<ConfigMap>("shop", "a", "uid", &[]).await.map(drop));
    failed.push(api.set_pod_condition("shop", "a", "uid", &PodCondition::default()).await);
    assert!(failed.iter().all(|result| matches!(result, Err(Error::NotLeading))), "{failed:?}");
    drop(api);
    assert!(handle.next_request().await.is_none(), "no request was sent");
}

/// Answers one request with a `Status`.
async fn refuse(
    handle: &mut Handle<Request<Body>, Response<Body>>,
    code: u16,
    reason: &str,
    details: &serde_json::Value,
) {
    let (_, send) = handle.next_request().await.unwrap();
    let answer = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "details": details,
    });
    send.send_response(Response::builder().status(code).body(Body::from(answer.to_string().into_bytes())).unwrap());
}

#[tokio::test]
async fn a_patch_whose_test_fails_is_an_outdated_write_and_one_that_makes_the_object_invalid_is_not() {
    let causes = json!({"causes": [{"reason": "FieldValueInvalid", "message": "no", "field": "spec"}]});
    for (details, is_outdated, category) in [(json!({}), true, Category::Conflict), (causes, false, Category::Invalid)]
    {
        let (api, mut handle) = api_server(Leadership::always());
        let patch = api.patch_metadata::<ConfigMap>("shop", "a", "uid", &[]);
        let (patched, ()) = tokio::join!(patch, refuse(&mut handle, 422, "Invalid", &details));
        let error = patched.unwrap_err();
        assert_eq!((error.is_outdated_write(), error.category()), (is_outdated, category), "{error:?}");
    }
}

#[tokio::test]
async fn only_this_very_object_is_deleted_and_one_that_is_gone_is_no_error() {
    let (api, mut handle) = api_server(Leadership::always());
    let server = tokio::spawn(async move {
        let mut asked = Vec::new();
        for (code, reason) in [(404, "NotFound"), (409, "Conflict")] {
            let (request, send) = handle.next_request().await.unwrap();
            let body = request.into_body().collect_bytes().await.unwrap();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            asked.push(body["preconditions"]["uid"].clone());
            let answer =
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason});
            let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
            send.send_response(answer.unwrap());
        }
        asked
    });
    api.delete::<ConfigMap>("shop", "a", "uid-1").await.unwrap();
    api.delete::<ConfigMap>("shop", "a", "uid-2").await.unwrap();
    assert_eq!(server.await.unwrap(), ["uid-1", "uid-2"]);
}
