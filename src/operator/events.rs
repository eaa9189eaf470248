//! Kubernetes Events on transitions.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as ApiEvent;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::api_server::is_namespace_terminating;

/// Longest note that the API server accepts.
const MAX_NOTE_BYTES: usize = 1024;
/// Longest reason, and longest action, that it accepts.
const MAX_WORD_BYTES: usize = 128;
/// Longest name of an object whose Events the recorder can name: it adds a dot and the time in hexadecimal digits.
const MAX_RECORDED_NAME: usize = MAX_NAME - 17;
/// Longest name of an object.
const MAX_NAME: usize = 253;
/// Timeout of publishing an Event.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The end of a shortened text.
const ELLIPSIS: &str = "…";

/// Publishes Events. Cheap to clone; clones share the aggregation of repeated ones.
#[derive(Clone)]
pub(crate) struct Events {
    client: Client,
    reporter: Reporter,
    recorder: Recorder,
}

impl Events {
    /// Publishes in the name of `reporter`.
    #[must_use]
    pub(crate) fn new(client: Client, reporter: Reporter) -> Self {
        Self { recorder: Recorder::new(client.clone(), reporter.clone()), client, reporter }
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
        let publish = async {
            if name.len() <= MAX_RECORDED_NAME {
                self.recorder.publish(&event, object).await
            } else {
                self.create(event, object).await
            }
        };
        match timeout(TIMEOUT, publish).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) if is_expected(&error) => debug!(namespace, name, reason, %error, "an Event was refused"),
            Ok(Err(error)) => warn!(namespace, name, reason, %error, "failed to publish an Event"),
            Err(_) => warn!(namespace, name, reason, "failed to publish an Event: no answer within {TIMEOUT:?}"),
        }
    }

    /// Creates an Event about an object whose name is so long that the recorder's name for the Event would be refused. Repeated ones are
    /// not counted together.
    async fn create(&self, event: Event, object: &ObjectReference) -> Result<(), kube::Error> {
        let (now, reporter) = (Timestamp::now(), &self.reporter);
        let namespace = object.namespace.clone().unwrap_or_default();
        let suffix = format!(".{:x}", now.as_nanosecond());
        let object_name = object.name.as_deref().unwrap_or_default();
        // Names are ASCII, and each part between two dots ends with a letter or digit.
        let prefix = object_name.get(..MAX_NAME - suffix.len()).unwrap_or_default().trim_end_matches(['.', '-']);
        let event = ApiEvent {
            metadata: ObjectMeta {
                name: Some(format!("{prefix}{suffix}")),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            regarding: Some(object.clone()),
            type_: Some(if event.type_ == EventType::Normal { "Normal" } else { "Warning" }.to_owned()),
            reason: Some(event.reason),
            action: Some(event.action),
            note: event.note,
            event_time: Some(MicroTime(now)),
            reporting_instance: Some(reporter.instance.clone().unwrap_or_else(|| reporter.controller.clone())),
            reporting_controller: Some(reporter.controller.clone()),
            ..ApiEvent::default()
        };
        Api::namespaced(self.client.clone(), &namespace).create(&PostParams::default(), &event).await.map(drop)
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
        (Events::new(Client::new(service, "shop"), reporter), handle)
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

    /// The Event that is created about `object`.
    async fn created(object: &ObjectReference) -> ApiEvent {
        let (events, mut handle) = events();
        let server = tokio::spawn(async move {
            let (request, send) = handle.next_request().await.unwrap();
            assert_eq!(request.uri().path(), "/apis/events.k8s.io/v1/namespaces/shop/events");
            let body = request.into_body().collect_bytes().await.unwrap();
            send.send_response(Response::new(Body::from(body.to_vec())));
            serde_json::from_slice(&body).unwrap()
        });
        events.publish(object, EventType::Normal, &"R".repeat(200), "Acquire", "ü".repeat(1000)).await;
        server.await.unwrap()
    }

    #[tokio::test]
    async fn an_object_of_any_name_has_events() {
        for length in [1, 236, 237, 253] {
            // What cannot be the end of a part, where the name of the Event is cut.
            let name = if length > 236 {
                format!("{}-{}", "a".repeat(235), "a".repeat(length - 236))
            } else {
                "a".repeat(length)
            };
            let event = created(&ObjectReference { name: Some(name.clone()), ..object() }).await;
            assert_eq!(event.regarding.unwrap().name, Some(name));
            let event_name = event.metadata.name.unwrap();
            assert!(event_name.len() <= 253 && !event_name.contains("-."), "{event_name}");
        }
    }

    #[tokio::test]
    async fn an_event_fits_what_the_api_server_takes() {
        let event = created(&object()).await;
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
