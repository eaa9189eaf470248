//! The audit log of the local cluster: what the operator has asked for and written.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{existing_cluster, install};

/// A write of the operator: verb and resource, such as `create pods` or `patch redislockclusters/status`.
pub type Write = String;

/// All writes of the operator to a namespace until now; `None` on a cluster whose log is somewhere else.
pub fn writes(namespace: &str) -> Option<Vec<Write>> {
    if existing_cluster() {
        return None;
    }
    let (log, operator) = (read_from(0), operator());
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

/// The end of the log as it is now.
pub fn end() -> u64 {
    std::fs::metadata(path()).expect("the audit log").len()
}

/// How many requests the operator has made since the log ended at `end`, all kinds together: reads, writes, watches, the Lease.
pub fn requests_since(end: u64) -> usize {
    let user = format!("\"username\":\"{}\"", operator());
    read_from(end).lines().filter(|request| request.contains(&user) && request.contains("ResponseComplete")).count()
}

fn operator() -> String {
    format!("system:serviceaccount:{}:{}", install::NAMESPACE, install::RELEASE)
}

fn path() -> PathBuf {
    let state = std::env::var("KUBE_DEV_STATE").unwrap_or_else(|_| "/tmp/kube-dev".to_owned());
    Path::new(&state).join("log/audit.log")
}

fn read_from(position: u64) -> String {
    let mut log = File::open(path()).expect("the audit log");
    log.seek(SeekFrom::Start(position)).expect("a position in the audit log");
    let mut text = String::new();
    log.read_to_string(&mut text).expect("the audit log");
    text
}
