//! Which lock an actor, an Event or a metric is about.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource as _, ResourceExt as _};

use crate::api::WatchedLock;

/// A `DistributedLock`, without its spec and status.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    /// UID of the object: another lock of the same name is another subject.
    pub(crate) uid: String,
    /// Namespace of the object.
    pub(crate) namespace: String,
    /// Name of the object.
    pub(crate) name: String,
    /// Reference for Events.
    pub(crate) reference: ObjectReference,
}

impl Subject {
    /// The subject that `object` is.
    pub(crate) fn of(object: &WatchedLock) -> Self {
        Self {
            uid: object.uid().unwrap_or_default(),
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            reference: object.object_ref(&()),
        }
    }

    /// Reference for stores and triggers.
    pub(crate) fn object_ref(&self) -> ObjectRef<WatchedLock> {
        ObjectRef::new(&self.name).within(&self.namespace)
    }
}
