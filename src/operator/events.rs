//! Kubernetes Events on transitions.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::api_server::is_namespace_terminating;

/// Longest note that the API server accepts.
const MAX_NOTE_BYTES: usize = 1024;
/// Longest reason, and longest action, that it accepts.
const MAX_WORD_BYTES: usize = 128;
/// Timeout of publishing an Event.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The end of a shortened text.
const ELLIPSIS: &str = "…";

/// Publishes Events. Cheap to clone; clones share the aggregation of repeated ones.
#[derive(Clone)]
pub(crate) struct Events {
    recorder: Recorder,
}

impl Events {
    /// Publishes through `recorder`.
    #[must_use]
    pub(crate) fn new(recorder: Recorder) -> Self {
        Self { recorder }
    }

    /// Publishes an Event about `object`. Takes at most 5 s. A failure is logged only: an Event must not hold up what it is
    /// about (a terminating namespace refuses Events). A text that is too long is shortened.
    pub(crate) async fn publish(
        &self,
        object: &ObjectReference,
        kind: EventType,
        reason: &str,
        action: &str,
        note: String,
    ) {
        let event = Event {
            type_: kind,
            reason: shorten(reason, MAX_WORD_BYTES),
            note: Some(shorten(&note, MAX_NOTE_BYTES)).filter(|note| !note.is_empty()),
            action: shorten(action, MAX_WORD_BYTES),
            secondary: None,
        };
        let namespace = object.namespace.as_deref().unwrap_or_default();
        let name = object.name.as_deref().unwrap_or_default();
        match timeout(TIMEOUT, self.recorder.publish(&event, object)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) if is_expected(&error) => debug!(namespace, name, reason, %error, "an Event was refused"),
            Ok(Err(error)) => warn!(namespace, name, reason, %error, "failed to publish an Event"),
            Err(_) => warn!(namespace, name, reason, "failed to publish an Event: no answer within {TIMEOUT:?}"),
        }
    }
}

/// Whether a refusal of an Event is expected: its namespace is terminating or gone, or the Event whose repetition is
/// counted has expired.
fn is_expected(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.is_not_found() || is_namespace_terminating(status)
}

/// At most `max` bytes of `text`, cut between two characters.
pub(crate) fn shorten(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let mut end = max - ELLIPSIS.len();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{ELLIPSIS}", &text[..end])
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use kube::core::Status;
    use kube::runtime::events::Reporter;
    use tower_test::mock::Handle;

    use super::*;

    fn events() -> (Events, Handle<Request<Body>, Response<Body>>) {
        let (service, handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let reporter = Reporter { controller: "redlock-operator".to_owned(), instance: Some("pod-1".to_owned()) };
        (Events::new(Recorder::new(Client::new(service, "shop"), reporter)), handle)
    }

    fn object() -> ObjectReference {
        ObjectReference {
            kind: Some("DistributedLock".to_owned()),
            name: Some("checkout".to_owned()),
            namespace: Some("shop".to_owned()),
            ..Default::default()
        }
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(shorten("short", 8), "short");
        assert_eq!(shorten("exactly8", 8), "exactly8");
        assert_eq!(shorten("a long one", 8), "a lon…");
        assert_eq!(shorten("ééééé", 8), "éé…");
    }

    #[tokio::test]
    async fn an_event_fits_what_the_api_server_takes() {
        let (events, mut handle) = events();
        let server = tokio::spawn(async move {
            let (request, send) = handle.next_request().await.unwrap();
            assert_eq!(request.uri().path(), "/apis/events.k8s.io/v1/namespaces/shop/events");
            let body = request.into_body().collect_bytes().await.unwrap();
            let event: k8s_openapi::api::events::v1::Event = serde_json::from_slice(&body).unwrap();
            send.send_response(Response::new(Body::from(body.to_vec())));
            event
        });
        events.publish(&object(), EventType::Normal, &"R".repeat(200), "Acquire", "ü".repeat(1000)).await;
        let event = server.await.unwrap();
        assert_eq!(event.reason.unwrap().len(), 128);
        assert_eq!(event.note.unwrap(), format!("{}…", "ü".repeat(510)));
        assert!(event.metadata.name.unwrap().starts_with("checkout."));
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_does_not_answer_holds_nobody_up() {
        let (events, _handle) = events();
        let before = tokio::time::Instant::now();
        events.publish(&object(), EventType::Warning, "Lost", "Renew", "expired".to_owned()).await;
        assert_eq!(before.elapsed().as_secs(), 5);
    }

    #[test]
    fn only_what_is_in_the_nature_of_things_is_quiet() {
        let error = |reason: &str, message: &str| kube::Error::Api(Box::new(Status::failure(message, reason)));
        let going = "unable to create new content in namespace shop because it is being terminated";
        assert!(is_expected(&error("NotFound", "events.events.k8s.io \"checkout.17\" not found")));
        assert!(is_expected(&error("Forbidden", going)));
        assert!(!is_expected(&error("Forbidden", "cannot create resource \"events\"")));
        assert!(!is_expected(&error("InternalError", "etcd")));
    }
}
