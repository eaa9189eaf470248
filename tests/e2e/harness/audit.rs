//! The audit log of the local cluster: what the operator has written.

use std::path::Path;

use serde_json::Value;

use super::{existing_cluster, install};

/// A write of the operator: verb and resource, such as `create pods` or `patch redislockclusters/status`.
pub type Write = String;

/// All writes of the operator to a namespace until now; `None` on a cluster whose log is somewhere else.
pub fn writes(namespace: &str) -> Option<Vec<Write>> {
    if existing_cluster() {
        return None;
    }
    let state = std::env::var("KUBE_DEV_STATE").unwrap_or_else(|_| "/tmp/kube-dev".to_owned());
    let log = std::fs::read_to_string(Path::new(&state).join("log/audit.log")).expect("the audit log");
    let operator = format!("system:serviceaccount:{}:{}", install::NAMESPACE, install::RELEASE);
    let mut writes = Vec::new();
    // The last line may be written just now.
    for request in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let (object, verb) = (&request["objectRef"], request["verb"].as_str().unwrap_or_default());
        let is_write = matches!(verb, "create" | "update" | "patch" | "delete");
        if is_write && object["namespace"] == namespace && request["user"]["username"] == operator {
            let text = |field: &str| object[field].as_str().unwrap_or_default();
            let part = Some(text("subresource")).filter(|part| !part.is_empty()).map(|part| format!("/{part}"));
            writes.push(format!("{verb} {}{}", text("resource"), part.unwrap_or_default()));
        }
    }
    Some(writes)
}
