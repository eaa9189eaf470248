//! Each rule of a `DistributedLock`: what it admits, and what it says to what it refuses.

use super::*;

/// A lock with this spec (YAML) besides its `clusterRef`. Without `holder` it is observed.
fn lock(spec: &str) -> DistributedLock {
    let mut spec = exactly(spec);
    if spec.get("holder").is_none() && spec.get("observe").is_none() {
        spec["observe"] = serde_json::json!({});
    }
    DistributedLock::new("nightly", serde_json::from_value(spec).unwrap())
}

/// This spec (YAML), and a `clusterRef`.
fn exactly(spec: &str) -> serde_json::Value {
    let mut spec: serde_json::Value = serde_yaml::from_str(spec).unwrap();
    if spec.get("clusterRef").is_none() {
        spec["clusterRef"] = serde_json::json!({"name": "main"});
    }
    spec
}

fn admitted(spec: &str) {
    let new = lock(spec);
    assert_eq!(new.validate_cel().map_err(|e| e.to_string()), Ok(()), "{spec}");
    assert_eq!(new.validate_cel_update(&new).map_err(|e| e.to_string()), Ok(()), "unchanged: {spec}");
}

fn refused(spec: &str, message: &str) {
    let errors = lock(spec).validate_cel().expect_err(spec).to_string();
    assert!(errors.contains(message), "{spec}: {errors}");
}

fn change_admitted(old: &str, new: &str) {
    assert_eq!(lock(new).validate_cel_update(&lock(old)).map_err(|e| e.to_string()), Ok(()), "{old} -> {new}");
}

fn change_refused(old: &str, new: &str, message: &str) {
    let errors = lock(new).validate_cel_update(&lock(old)).expect_err(new).to_string();
    assert!(errors.contains(message), "{old} -> {new}: {errors}");
}

#[test]
fn the_least_and_the_most_are_admitted() {
    admitted("{}");
    admitted(
        "{clusterRef: {name: main, namespace: locks}, key: reports/nightly, holder: job/nightly-report, \
          lease: {ttl: 30s, renewEvery: 10s, minValidity: 15s}, priority: -1000, onLost: Fail}",
    );
}

#[test]
fn a_key_is_a_plain_name() {
    for good in ["a", "A-1", "reports/nightly", "v1.2_x"] {
        admitted(&format!("{{key: {good}}}"));
    }
    for bad in ["'-a'", "'a-'", "'a b'", "'a#b'", "'a@1'", "'{a}'", "'/a'", "'é'"] {
        refused(&format!("{{key: {bad}}}"), "key may have letters, digits and . _ / - and must begin and end with");
    }
}

#[test]
fn a_holder_is_a_plain_name() {
    for good in ["a", "job/nightly-report", "system:worker.1_x"] {
        admitted(&format!("{{holder: {good}}}"));
    }
    for bad in ["'/a'", "'a/'", "'a b'", "'a@1'", "'é'"] {
        refused(&format!("{{holder: {bad}}}"), "holder may have letters, digits and . _ : / - and must begin and end");
    }
}

#[test]
fn a_ttl_is_from_a_second_to_a_day() {
    for good in ["1s", "30s", "24h"] {
        admitted(&format!("{{holder: a, lease: {{ttl: {good}}}}}"));
    }
    for bad in ["999ms", "0s", "24h1s"] {
        refused(&format!("{{holder: a, lease: {{ttl: {bad}}}}}"), "ttl must be a duration from 1s to 24h, such as 30s");
    }
}

#[test]
fn renewals_are_not_too_often_and_one_of_them_may_fail() {
    for good in ["renewEvery: 15s", "ttl: 2s, renewEvery: 1s", "ttl: 1s, renewEvery: 100ms"] {
        admitted(&format!("{{holder: a, lease: {{{good}}}}}"));
    }
    refused("{holder: a, lease: {renewEvery: 99ms}}", "renewEvery must be a duration of at least 100ms, such as 10s");
    for bad in ["renewEvery: 16s", "ttl: 2s, renewEvery: 1001ms", "ttl: 10s, renewEvery: 10s"] {
        refused(&format!("{{holder: a, lease: {{{bad}}}}}"), "renewEvery must be at most half of ttl (30s by default)");
    }
    for bad in ["renewEvery: 299ms", "ttl: 24h, renewEvery: 863s"] {
        refused(&format!("{{holder: a, lease: {{{bad}}}}}"), "renewEvery must be at least a hundredth of ttl");
    }
    admitted("{holder: a, lease: {ttl: 24h, renewEvery: 864s}}");
    let stored = lock("{holder: a, lease: {ttl: 24h, renewEvery: 100ms}}");
    assert_eq!(stored.spec.renew_every(), StdDuration::from_secs(864), "stored before there was a rule");
}

#[test]
fn either_the_operator_or_pods_hold_the_lock() {
    for (spec, is_admitted) in
        [("{holder: a}", true), ("{observe: {}}", true), ("{}", false), ("{holder: a, observe: {}}", false)]
    {
        let lock = DistributedLock::new("nightly", serde_json::from_value(exactly(spec)).unwrap());
        let answer = lock.validate_cel().map_err(|e| e.to_string());
        assert_eq!(answer.is_ok(), is_admitted, "{spec}: {answer:?}");
        if let Err(message) = answer {
            assert!(message.contains("exactly one of holder and observe is required"), "{spec}: {message}");
        }
    }
}

#[test]
fn the_holder_may_change() {
    change_admitted("{holder: a}", "{holder: b}");
}

#[test]
fn the_least_validity_can_be_had() {
    for good in ["minValidity: 1ms", "minValidity: 15s", "ttl: 1s, minValidity: 500ms"] {
        admitted(&format!("{{holder: a, lease: {{{good}}}}}"));
    }
    refused("{holder: a, lease: {minValidity: 0s}}", "minValidity must be a duration above 0s, such as 5s");
    for bad in ["minValidity: 15001ms", "ttl: 1s, minValidity: 501ms"] {
        refused(
            &format!("{{holder: a, lease: {{{bad}}}}}"),
            "minValidity must be at most half of ttl (30s by default)",
        );
    }
}

#[test]
fn a_lease_a_priority_and_what_follows_a_loss_need_a_holder() {
    refused("{priority: 1}", "priority is allowed only with holder");
    refused("{onLost: Fail}", "onLost is allowed only with holder");
    refused("{lease: {ttl: 10s}}", "lease is allowed only with holder");
}

#[test]
fn a_reference_to_a_cluster_is_made_of_names() {
    for bad in ["../../etc", "A", "a b", "-a", "a.b", "1a"] {
        refused(
            &format!("{{clusterRef: {{name: '{bad}'}}}}"),
            "clusterRef.name must be the name of a RedisLockCluster",
        );
    }
    for bad in ["a b", "../x", "A", "-a"] {
        let spec = format!("{{clusterRef: {{name: main, namespace: '{bad}'}}}}");
        refused(&spec, "clusterRef.namespace must be the name of a namespace");
    }
    admitted("{clusterRef: {name: main, namespace: 1st-team}}");
}

#[test]
fn what_makes_the_lock_this_lock_cannot_change() {
    let cluster = "{clusterRef: {name: main}}";
    change_refused(cluster, "{clusterRef: {name: other}}", "clusterRef cannot be changed, nor can its namespace");
    change_refused(cluster, "{clusterRef: {name: main, namespace: locks}}", "clusterRef cannot be changed");
    change_refused("{key: a}", "{key: b}", "key cannot be changed: create another DistributedLock");
    change_refused("{key: a}", "{}", "key cannot be added or removed later: create another DistributedLock");
    change_refused("{}", "{key: a}", "key cannot be added or removed later");
    change_refused("{holder: a}", "{}", "holder cannot be added or removed: whether the operator or pods hold");
    change_refused("{}", "{holder: a}", "holder cannot be added or removed");
}

#[test]
fn the_lease_may_change() {
    change_admitted("{holder: a}", "{holder: a, lease: {ttl: 10s}}");
    change_admitted("{holder: a, lease: {ttl: 40s}}", "{holder: a, lease: {ttl: 10s, renewEvery: 1s}}");
    change_admitted("{holder: a, lease: {ttl: 40s}}", "{holder: a}");
}

#[test]
fn what_is_left_out_has_a_default() {
    let lock = lock("{}");
    assert_eq!((lock.spec.ttl(), lock.spec.renew_every()), (DEFAULT_TTL, DEFAULT_TTL / 3));
    assert_eq!(lock.key(), "nightly");
}
