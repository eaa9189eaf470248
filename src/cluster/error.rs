//! What can stop a reconcile, with a bounded word for each.

use kube::core::Status;

/// Why a reconcile did not come to its end. The next one starts afresh from what is there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused, or did not answer.
    #[error("failed to {doing} {object}")]
    Kube {
        /// What was to be done.
        doing: &'static str,
        /// To which object.
        object: String,
        /// What came back.
        source: Box<kube::Error>,
    },
    /// Somebody else wrote the object since it was read: what was decided may be out of date.
    #[error("{0} was changed meanwhile")]
    Conflict(String),
    /// The namespace is being deleted: nothing can be created any more.
    #[error("the namespace is being deleted")]
    NamespaceTerminating,
    /// This process does not lead any more.
    #[error("this process does not lead any more")]
    NotLeading,
    /// It took longer than anything sensible.
    #[error("not done in time")]
    TimedOut,
}

impl Error {
    /// Wraps what the API server answered.
    pub(super) fn kube(doing: &'static str, object: impl Into<String>, source: kube::Error) -> Self {
        let object = object.into();
        match &source {
            kube::Error::Api(status) if is_namespace_terminating(status) => Self::NamespaceTerminating,
            kube::Error::Api(status) if status.is_conflict() => Self::Conflict(object),
            _ => Self::Kube { doing, object, source: Box::new(source) },
        }
    }

    /// The bounded word for it: a label of metrics.
    #[must_use]
    pub fn category(&self) -> &'static str {
        match self {
            Self::Kube { .. } => "kube",
            Self::Conflict(_) => "conflict",
            Self::NamespaceTerminating => "namespace-terminating",
            Self::NotLeading => "not-leading",
            Self::TimedOut => "timed-out",
        }
    }
}

fn is_namespace_terminating(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.is_forbidden() && causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &serde_json::Value) -> Error {
        let status: Status = serde_json::from_value(body.clone()).unwrap();
        Error::kube("create", "Pod main-0", kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn a_namespace_that_goes_is_told_from_other_refusals() {
        let forbidden = |details: serde_json::Value| {
            serde_json::json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden",
                "message": "pods \"main-0\" is forbidden", "details": details})
        };
        let going = forbidden(serde_json::json!({"causes": [{"reason": "NamespaceTerminating", "message": "locks"}]}));
        assert_eq!(refused(&going).category(), "namespace-terminating");
        assert_eq!(refused(&forbidden(serde_json::json!({}))).category(), "kube");
    }

    #[test]
    fn a_conflict_is_told_from_other_refusals() {
        let body = serde_json::json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict", "message": ""});
        assert_eq!(refused(&body).category(), "conflict");
    }
}
