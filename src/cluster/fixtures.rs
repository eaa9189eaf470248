//! A cluster and its masters as tests need them.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Resource;
use redlock_engine::marker::ArmedMarker;

use super::decide::Rules;
use super::observed::{Existing, ObservedMaster, ObservedPod, ObservedServer, Stage};
use super::server::fitness::Facts;
use crate::api::cluster::{MasterState, MasterStatus};
use crate::api::{RedisLockCluster, RedisLockClusterSpec};

/// A cluster `votes` with this number of masters, in the namespace `keys`, with a uid.
pub(crate) fn cluster(masters: i32) -> RedisLockCluster {
    let spec = RedisLockClusterSpec {
        masters,
        image: None,
        max_ttl: None,
        restart_delay: None,
        call_timeout: None,
        allowed_namespaces: None,
        resources: None,
        credentials: None,
    };
    let mut cluster = RedisLockCluster::new("votes", spec);
    cluster.meta_mut().namespace = Some("keys".to_owned());
    cluster.meta_mut().uid = Some("11111111-2222-3333-4444-555555555555".to_owned());
    cluster.meta_mut().generation = Some(1);
    cluster
}

/// The restart delay.
pub(crate) const DELAY: Duration = Duration::from_secs(65);
/// Digest of what pods are made from.
pub(crate) const WANTED: &str = "new";

/// This number of seconds after a fixed moment.
pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_796_000_000 + second).unwrap()
}

/// The rules at that second.
pub(crate) fn rules(second: i64) -> Rules {
    let default_image = "redis:7.4-alpine".to_owned();
    Rules { now: at(second), restart_delay: DELAY, max_ttl: Duration::from_secs(60), default_image }
}

/// A record with nothing but a state.
pub(crate) fn row(state: MasterState) -> MasterStatus {
    MasterStatus::new("votes-0", state)
}

/// A master that voted as the process `run-1` in the pod `pod-1`.
pub(crate) fn armed() -> MasterStatus {
    MasterStatus {
        pod_uid: Some("pod-1".to_owned()),
        run_id: Some("run-1".to_owned()),
        armed_since: Some(MicroTime(at(-1_000))),
        ..row(MasterState::Armed)
    }
}

/// A master whose pod `pod-1` was seen to be gone at second 0.
pub(crate) fn quarantined() -> MasterStatus {
    MasterStatus {
        state: MasterState::Quarantined,
        crashes: 1,
        last_crash_time: Some(MicroTime(at(0))),
        restart_not_before: Some(MicroTime(at(65))),
        armed_since: None,
        ..armed()
    }
}

/// A master with this record, pod and server.
pub(crate) fn master(row: Option<MasterStatus>, pod: Existing<ObservedPod>, server: ObservedServer) -> ObservedMaster {
    ObservedMaster {
        name: "votes-0".to_owned(),
        address: "votes-0.keys.svc:6379".to_owned(),
        started_before: row.is_some(),
        row,
        service: Existing::Absent,
        pod,
        server,
        since_gone: None,
    }
}

/// A pod of ours.
pub(crate) fn pod(uid: &str, stage: Stage) -> Existing<ObservedPod> {
    let ip = Some("10.0.0.1".to_owned());
    Existing::Ours(ObservedPod { uid: uid.to_owned(), ip, stage, hash: Some(WANTED.to_owned()), note: None })
}

/// The facts of the server process `run-1`, which is fit; `marker`: the process that its marker names.
pub(crate) fn facts(marker: Option<&str>) -> Facts {
    Facts {
        run_id: "run-1".to_owned(),
        marker: marker.map(|run_id| ArmedMarker { run_id: run_id.to_owned(), cap: Duration::from_secs(60) }),
        unfit: None,
        namespaces: BTreeMap::new(),
        knows_setinfo: true,
    }
}

/// A server that replies with these facts.
pub(crate) fn up(marker: Option<&str>) -> ObservedServer {
    ObservedServer::Up(facts(marker))
}

/// A server that does not reply.
pub(crate) fn unreachable() -> ObservedServer {
    ObservedServer::Unreachable("not reachable: connection refused".to_owned())
}
