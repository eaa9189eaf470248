//! What is read of pods, and who owns an object.

use serde_json::{Value, json};

use super::*;
use crate::cluster::fixtures::cluster;

fn pod(metadata: &Value, status: &Value) -> Pod {
    serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
}

fn stage_of(phase: &str, state: &Value, deleting: bool, condition: Option<Value>) -> Stage {
    let metadata = if deleting { json!({"deletionTimestamp": "2026-11-30T09:00:00Z"}) } else { json!({}) };
    let container = |name: &str, state: &Value| json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    // An injected sidecar goes on when the server has ended, and the reverse: it says nothing.
    let other =
        if state["terminated"].is_null() { json!({"terminated": {"exitCode": 0}}) } else { json!({"running": {}}) };
    let containers = [container("init", &other), container("redis", state), container("mesh", &other)];
    let conditions: Vec<_> = condition.into_iter().collect();
    let status = json!({"phase": phase, "containerStatuses": containers, "conditions": conditions});
    let pod = json!({"metadata": metadata, "spec": {"nodeName": "n1", "containers": []}, "status": status});
    ObservedPod::of(&serde_json::from_value(pod).unwrap()).stage
}

#[test]
fn only_a_container_that_ended_and_a_pod_that_was_declared_dead_count_as_gone() {
    let (running, ended, waiting) =
        (json!({"running": {}}), json!({"terminated": {"exitCode": 137}}), json!({"waiting": {}}));
    let disrupted =
        |reason: &str, status: &str| Some(json!({"type": "DisruptionTarget", "status": status, "reason": reason}));
    for (phase, state, deleting, condition, stage) in [
        ("Pending", &waiting, false, None, Stage::Pending),
        ("Running", &running, false, None, Stage::Running),
        ("Unknown", &running, false, None, Stage::Running),
        ("Failed", &ended, false, None, Stage::Ended),
        ("Succeeded", &ended, true, None, Stage::Ended),
        // Other containers of the pod go on.
        ("Running", &ended, false, None, Stage::Ended),
        ("Running", &ended, true, None, Stage::Ended),
        // A kubelet that refuses a pod, or evicts a waiting one, has started nothing.
        ("Failed", &waiting, false, None, Stage::Ended),
        ("Running", &running, true, None, Stage::Doubtful),
        ("Pending", &waiting, true, None, Stage::Doubtful),
        // Declared failed by something other than its kubelet.
        ("Failed", &running, false, None, Stage::Doubtful),
        ("Failed", &running, true, disrupted("TerminationByKubelet", "True"), Stage::Doubtful),
        ("Failed", &running, true, disrupted("DeletionByPodGC", "False"), Stage::Doubtful),
        ("Failed", &running, true, disrupted("DeletionByPodGC", "True"), Stage::DeclaredDead),
        ("Failed", &running, true, disrupted("DeletionByTaintManager", "True"), Stage::DeclaredDead),
        // Announced, and not done.
        ("Running", &running, true, disrupted("DeletionByTaintManager", "True"), Stage::Doubtful),
        ("Running", &running, false, disrupted("DeletionByTaintManager", "True"), Stage::Running),
    ] {
        let case = format!("{phase} {state} {deleting} {condition:?}");
        assert_eq!(stage_of(phase, state, deleting, condition), stage, "{case}");
    }
    assert_eq!(ObservedPod::of(&Pod::default()).stage, Stage::Pending);
    let unscheduled = pod(&json!({"deletionTimestamp": "2026-11-30T09:00:00Z"}), &json!({"phase": "Pending"}));
    assert_eq!(ObservedPod::of(&unscheduled).stage, Stage::Ended, "it has never been on a Kubernetes node");
}

#[test]
fn a_readiness_gate_is_read_as_it_was_set() {
    let gate = |conditions: Value| ObservedPod::of(&pod(&json!({}), &json!({"conditions": conditions}))).gate;
    assert_eq!(gate(json!([{"type": "Ready", "status": "True"}])), None);
    assert_eq!(gate(json!([{"type": "redlock.dev/armed", "status": "True"}])), Some(true));
    assert_eq!(gate(json!([{"type": "redlock.dev/armed", "status": "False"}])), Some(false));
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
    let labelled = |cluster: &str| json!({"name": "votes-0", "labels": names::labels(cluster, Some("votes-0"))});
    assert_eq!(Ownership::of(&pod(&labelled("votes"), &json!({})), &cluster), Ownership::Orphan, "nobody's any more");
    assert_eq!(Ownership::of(&pod(&labelled("other"), &json!({})), &cluster), Ownership::Foreign);
    let bare = pod(&json!({"name": "votes-0"}), &json!({}));
    assert_eq!(Existing::of(Some(&bare), &cluster, ObservedPod::of), Existing::Foreign("Pod votes-0".to_owned()));
    assert_eq!(Existing::of(None::<&Pod>, &cluster, ObservedPod::of), Existing::Absent);
}

#[test]
fn a_machine_is_known_by_its_boot_and_by_the_taint_that_declares_it_dead() {
    let kubernetes_node = |taints: Value| -> k8s_openapi::api::core::v1::Node {
        let info = json!({"bootID": "boot-1", "architecture": "", "containerRuntimeVersion": "", "kernelVersion": "",
            "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""});
        serde_json::from_value(json!({"spec": {"taints": taints}, "status": {"nodeInfo": info}})).unwrap()
    };
    let out = json!([{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}]);
    for (taints, is_out_of_service) in [
        (json!([]), false),
        (out, true),
        (json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]), false),
    ] {
        let observed = ObservedMachine::Present { boot_id: Some("boot-1".to_owned()), is_out_of_service };
        assert_eq!(ObservedMachine::of(Some(&kubernetes_node(taints))), observed);
    }
    assert_eq!(ObservedMachine::of(None), ObservedMachine::Deleted);
}
