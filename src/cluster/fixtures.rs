//! A cluster and its masters as tests need them.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Resource;
use redlock_engine::marker::ArmedMarker;
use tokio::time::Instant;

use super::decide::Rules;
use super::observed::{Existing, ObservedMachine, ObservedMaster, ObservedPod, ObservedServer, Stage};
use super::server::clock::{ClockReading, Moment};
use super::server::fitness::Facts;
use crate::api::cluster::{MasterState, MasterStatus};
use crate::api::{RedisLockCluster, RedisLockClusterSpec};
use crate::contract::names::{CLUSTER_FINALIZER, MASTER_FINALIZER, OPERATOR_ANNOTATION};

/// A cluster `votes` with this number of masters, in the namespace `keys`, with a uid.
pub(crate) fn cluster(masters: i32) -> RedisLockCluster {
    let spec = RedisLockClusterSpec {
        masters,
        image: None,
        max_ttl: None,
        restart_delay: None,
        call_timeout: None,
        allowed_namespaces: None,
        scripts: None,
        resources: None,
        credentials: None,
    };
    let mut cluster = RedisLockCluster::new("votes", spec);
    cluster.meta_mut().namespace = Some("keys".to_owned());
    cluster.meta_mut().uid = Some("11111111-2222-3333-4444-555555555555".to_owned());
    cluster.meta_mut().generation = Some(1);
    let claim = (OPERATOR_ANNOTATION.to_owned(), "redlock-system/redlock-operator".to_owned());
    cluster.meta_mut().annotations = Some([claim].into());
    cluster.meta_mut().finalizers = Some(vec![CLUSTER_FINALIZER.to_owned()]);
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

/// A master that voted as the process `run-1` in the pod `pod-1`, on the Kubernetes node `n1` since its start `boot-1`.
pub(crate) fn armed() -> MasterStatus {
    MasterStatus {
        pod_uid: Some("pod-1".to_owned()),
        node_name: Some("n1".to_owned()),
        boot_id: Some("boot-1".to_owned()),
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
        machine: ObservedMachine::Unknown,
        is_vouched_gone: false,
        since_gone: None,
        out_for: None,
        backoff: None,
    }
}

/// A pod of ours.
pub(crate) fn pod(uid: &str, stage: Stage) -> Existing<ObservedPod> {
    Existing::Ours(observed_pod(uid, stage))
}

/// A pod on the Kubernetes node `n1`, with its finalizer.
pub(crate) fn observed_pod(uid: &str, stage: Stage) -> ObservedPod {
    ObservedPod {
        uid: uid.to_owned(),
        ip: Some("10.0.0.1".to_owned()),
        node_name: Some("n1".to_owned()),
        stage,
        is_deleting: false,
        finalizers: vec![MASTER_FINALIZER.to_owned()],
        hash: Some(WANTED.to_owned()),
        gate: None,
        note: None,
    }
}

/// A pod whose deletion was requested, of ours.
pub(crate) fn going(uid: &str, stage: Stage) -> Existing<ObservedPod> {
    Existing::Ours(ObservedPod { is_deleting: true, ..observed_pod(uid, stage) })
}

/// A machine since this start.
pub(crate) fn machine(boot_id: &str) -> ObservedMachine {
    ObservedMachine::Present { boot_id: Some(boot_id.to_owned()), is_out_of_service: false }
}

/// One moment, whenever it is asked for: facts are compared.
fn moment() -> Moment {
    static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);
    Moment { monotonic: *NOW, wall: at(0) }
}

/// The facts of the server process `run-1`, which is fit; `marker`: the process that its marker names.
pub(crate) fn facts(marker: Option<&str>) -> Facts {
    Facts {
        run_id: "run-1".to_owned(),
        marker: marker.map(|run_id| ArmedMarker { run_id: run_id.to_owned(), cap: Duration::from_secs(60) }),
        unfit: None,
        namespaces: BTreeMap::new(),
        knows_setinfo: true,
        has_scripts: true,
        clock: ClockReading { server: at(0), asked: moment(), answered: moment() },
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
