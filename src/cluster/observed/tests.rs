//! What is read of pods, and who owns an object.

use serde_json::{Value, json};

use super::*;
use crate::cluster::fixtures::cluster;

fn pod(metadata: &Value, status: &Value) -> Pod {
    serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
}

fn stage_of(phase: &str, state: &Value, deleting: bool) -> Stage {
    let metadata = if deleting { json!({"deletionTimestamp": "2026-11-30T09:00:00Z"}) } else { json!({}) };
    let container =
        json!({"name": "redis", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    ObservedPod::of(&pod(&metadata, &json!({"phase": phase, "containerStatuses": [container]}))).stage
}

#[test]
fn only_a_container_that_ended_counts_as_gone() {
    let (running, ended) = (json!({"running": {}}), json!({"terminated": {"exitCode": 137}}));
    for (phase, state, deleting, stage) in [
        ("Pending", json!({"waiting": {}}), false, Stage::Pending),
        ("Running", running.clone(), false, Stage::Running),
        ("Unknown", running.clone(), false, Stage::Running),
        ("Failed", ended.clone(), false, Stage::Ended { deleting: false }),
        ("Succeeded", ended.clone(), true, Stage::Ended { deleting: true }),
        // Declared failed by something other than its kubelet.
        ("Failed", running.clone(), false, Stage::Doubtful { deleting: false }),
        ("Running", running, true, Stage::Doubtful { deleting: true }),
        // Its kubelet has not yet reported that the whole pod has ended.
        ("Running", ended, true, Stage::Doubtful { deleting: true }),
    ] {
        assert_eq!(stage_of(phase, &state, deleting), stage, "{phase} {state} {deleting}");
    }
    assert_eq!(ObservedPod::of(&Pod::default()).stage, Stage::Pending);
}

#[test]
fn a_pod_says_why_it_waits_and_how_it_ended() {
    let container = |state: Value| json!({"containerStatuses": [{"name": "redis", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]});
    for (status, note) in [
        (
            container(json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})),
            "its container ended: OOMKilled (exit code 137)",
        ),
        (container(json!({"waiting": {"reason": "ImagePullBackOff"}})), "its container waits: ImagePullBackOff"),
        (json!({"reason": "Evicted", "message": "low on memory"}), "Evicted: low on memory"),
        (
            json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 Kubernetes nodes have room"}]}),
            "not scheduled: 0/3 Kubernetes nodes have room",
        ),
    ] {
        assert_eq!(ObservedPod::of(&pod(&json!({}), &status)).note.as_deref(), Some(note));
    }
}

#[test]
fn only_objects_of_this_very_cluster_are_ours() {
    let cluster = cluster(3);
    let uid = cluster.metadata.uid.clone().unwrap();
    let of_owner = |owner: Value| pod(&json!({"name": "votes-0", "ownerReferences": [owner]}), &json!({}));
    let owner = |uid: &str, kind: &str, controller: bool| json!({"apiVersion": "redlock.dev/v1alpha1", "kind": kind, "name": "votes", "uid": uid, "controller": controller});
    for (owner, ownership) in [
        (owner(&uid, "RedisLockCluster", true), Ownership::Ours),
        (owner("former", "RedisLockCluster", true), Ownership::Orphan),
        (owner(&uid, "RedisLockCluster", false), Ownership::Foreign),
        (owner("other", "ReplicaSet", true), Ownership::Foreign),
    ] {
        assert_eq!(Ownership::of(&of_owner(owner.clone()), &cluster), ownership, "{owner}");
    }
    let bare = pod(&json!({"name": "votes-0"}), &json!({}));
    assert_eq!(Existing::of(Some(&bare), &cluster, ObservedPod::of), Existing::Foreign("Pod votes-0".to_owned()));
    assert_eq!(Existing::of(None::<&Pod>, &cluster, ObservedPod::of), Existing::Absent);
}
