//! Kubernetes Events on transitions.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{EventType, Recorder};

/// Publishes Events. Cheap to clone; clones share the aggregation of repeated ones.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
}

impl Events {
    /// Publishes through `recorder`.
    #[must_use]
    pub fn new(recorder: Recorder) -> Self {
        Self { recorder }
    }

    /// Tells of a transition of `object`. A failure is logged and nothing more: an Event must never hold up what it tells
    /// of (a terminating namespace refuses them).
    pub async fn publish(
        &self,
        _object: &ObjectReference,
        _kind: EventType,
        _reason: &str,
        _action: &str,
        _note: String,
    ) {
        let _ = &self.recorder;
        todo!()
    }
}
