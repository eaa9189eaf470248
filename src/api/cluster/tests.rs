//! Each rule of `RedisLockCluster`: objects that pass, and one that it refuses with its text.

use super::*;

/// A cluster as its YAML says, under a name that is allowed.
fn cluster(spec: &str) -> RedisLockCluster {
    named("main", spec)
}

fn named(name: &str, spec: &str) -> RedisLockCluster {
    let spec = serde_yaml::from_str(spec).unwrap_or_else(|error| panic!("{spec}: {error}"));
    RedisLockCluster::new(name, spec)
}

#[track_caller]
fn refused(result: Result<(), impl ToString>, message: &str) {
    let text = result.expect_err("must be refused").to_string();
    assert!(text.contains(message), "{text:?} does not say {message:?}");
}

#[test]
fn every_rule_can_be_evaluated() {
    let full = "{masters: 5, image: 'redis:7.4-alpine', maxTTL: 60s, restartDelay: 65s, callTimeout: 50ms, \
        allowedNamespaces: {from: All}, resources: {limits: {memory: 256Mi}}}";
    for spec in ["masters: 1", "masters: 3", "masters: 5", "masters: 7", full] {
        assert_eq!(cluster(spec).validate_cel().map_err(|e| e.to_string()), Ok(()), "{spec}");
        let same = cluster(spec);
        assert_eq!(same.validate_cel_update(&cluster(spec)).map_err(|e| e.to_string()), Ok(()), "{spec}");
    }
}

#[test]
fn masters_must_be_an_odd_number_up_to_seven() {
    for masters in [-1, 0, 2, 4, 6, 8, 9] {
        refused(cluster(&format!("masters: {masters}")).validate_cel(), "masters must be 1, 3, 5 or 7");
    }
}

#[test]
fn masters_cannot_be_changed() {
    refused(cluster("masters: 5").validate_cel_update(&cluster("masters: 3")), "masters cannot be changed");
}

#[test]
fn max_ttl_is_from_a_second_to_a_day() {
    for good in ["1s", "60s", "24h", "90m"] {
        let spec = format!("{{masters: 3, maxTTL: {good}, restartDelay: 48h}}");
        assert_eq!(cluster(&spec).validate_cel().map_err(|e| e.to_string()), Ok(()), "{good}");
    }
    for bad in ["999ms", "-5s", "0s", "24h1ms"] {
        refused(
            cluster(&format!("{{masters: 3, maxTTL: {bad}}}")).validate_cel(),
            "maxTTL must be a duration from 1s to 24h",
        );
    }
}

#[test]
fn max_ttl_may_grow_and_not_shrink() {
    let with = |max_ttl: &str| cluster(&format!("{{masters: 3, maxTTL: {max_ttl}}}"));
    let absent = cluster("masters: 3");
    for (new, old) in [
        (with("90s"), with("60s")),
        (with("60s"), absent.clone()),
        (with("2m"), absent.clone()),
        (absent.clone(), with("30s")),
    ] {
        assert_eq!(new.validate_cel_update(&old).map_err(|e| e.to_string()), Ok(()));
    }
    for (new, old) in [(with("59s"), with("60s")), (with("59s"), absent.clone()), (absent, with("61s"))] {
        refused(new.validate_cel_update(&old), "maxTTL cannot shrink");
    }
}

#[test]
fn the_restart_delay_is_at_least_max_ttl_and_at_most_two_days() {
    for good in ["restartDelay: 60s", "maxTTL: 10s, restartDelay: 10s", "restartDelay: 48h"] {
        assert_eq!(
            cluster(&format!("{{masters: 3, {good}}}")).validate_cel().map_err(|e| e.to_string()),
            Ok(()),
            "{good}"
        );
    }
    for bad in ["restartDelay: 59s", "maxTTL: 10s, restartDelay: 9999ms", "restartDelay: 0s"] {
        refused(cluster(&format!("{{masters: 3, {bad}}}")).validate_cel(), "restartDelay must be at least maxTTL");
    }
    refused(
        cluster("{masters: 3, restartDelay: 49h}").validate_cel(),
        "restartDelay must be a duration of at most 48h",
    );
}

#[test]
fn the_call_timeout_is_from_five_milliseconds_to_a_second() {
    for good in ["5ms", "50ms", "1s"] {
        assert_eq!(
            cluster(&format!("{{masters: 3, callTimeout: {good}}}")).validate_cel().map_err(|e| e.to_string()),
            Ok(())
        );
    }
    for bad in ["4ms", "1001ms", "0s"] {
        let spec = format!("{{masters: 3, callTimeout: {bad}}}");
        refused(cluster(&spec).validate_cel(), "callTimeout must be a duration from 5ms to 1s");
    }
}

#[test]
fn a_name_must_do_for_pods_and_services() {
    for good in ["a", "main", "main-2", &"x".repeat(50)] {
        assert_eq!(named(good, "masters: 3").validate_cel().map_err(|e| e.to_string()), Ok(()), "{good}");
    }
    refused(named(&"x".repeat(51), "masters: 3").validate_cel(), "metadata.name must have at most 50 characters");
    for bad in ["2main", "main.eu", "-main"] {
        refused(named(bad, "masters: 3").validate_cel(), "metadata.name must begin with a letter");
    }
}

#[test]
fn defaults_keep_the_delay_above_the_longest_lease() {
    let spec = cluster("masters: 3").spec;
    assert_eq!((spec.max_ttl(), spec.restart_delay()), (StdDuration::from_secs(60), StdDuration::from_secs(65)));
    // What a rule refuses may still be stored, by an earlier version of the rule.
    let stored = cluster("{masters: 3, maxTTL: 60s, restartDelay: 1s}").spec;
    assert_eq!(stored.restart_delay(), StdDuration::from_secs(60));
}

#[test]
fn other_namespaces_are_admitted_only_when_the_cluster_says_so() {
    for (spec, own, other) in [
        ("masters: 3", true, false),
        ("{masters: 3, allowedNamespaces: {}}", true, false),
        ("{masters: 3, allowedNamespaces: {from: Same}}", true, false),
        ("{masters: 3, allowedNamespaces: {from: All}}", true, true),
    ] {
        let spec_of = cluster(spec).spec;
        assert_eq!((spec_of.admits("locks", "locks"), spec_of.admits("locks", "billing")), (own, other), "{spec}");
    }
}
