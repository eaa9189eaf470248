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
        allowedNamespaces: {from: Selector, selector: {matchLabels: {locks: main}}}, \
        resources: {limits: {memory: 256Mi, cpu: 1}, requests: {memory: 256Mi, hugepages-2Mi: 2Mi}}, \
        credentials: {generation: 2, namespaces: [{name: billing, generation: 3}]}}";
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
fn the_restart_delay_has_a_margin_above_max_ttl_and_is_at_most_two_days() {
    for good in [
        "restartDelay: 62600ms",
        "maxTTL: 10s, restartDelay: 12100ms",
        "maxTTL: 5s, restartDelay: 8s",
        "restartDelay: 48h",
    ] {
        let spec = cluster(&format!("{{masters: 3, {good}}}"));
        assert_eq!(spec.validate_cel().map_err(|e| e.to_string()), Ok(()), "{good}");
        let written: StdDuration = spec.spec.restart_delay.unwrap().into();
        assert_eq!(spec.spec.restart_delay(), written, "{good}");
    }
    for bad in ["restartDelay: 60s", "restartDelay: 62599ms", "maxTTL: 10s, restartDelay: 12099ms", "restartDelay: 1s"]
    {
        let spec = cluster(&format!("{{masters: 3, {bad}}}"));
        refused(spec.validate_cel(), "restartDelay must be at least maxTTL (60s by default) plus 1 % and 2s");
        // What a rule refuses may still be stored, by an earlier version of the rule.
        assert_eq!(spec.spec.restart_delay(), least_restart_delay(spec.spec.max_ttl()), "{bad}");
    }
    refused(
        cluster("{masters: 3, restartDelay: 49h}").validate_cel(),
        "restartDelay must be a duration of at most 48h",
    );
}

#[test]
fn a_text_that_is_no_duration_gets_one_sentence_of_ours() {
    for (field, sentence) in [
        ("maxTTL", "maxTTL must be a duration from 1s to 24h, such as 60s or 5m"),
        ("restartDelay", "restartDelay must be a duration of at most 48h, such as 65s"),
        ("callTimeout", "callTimeout must be a duration from 5ms to 1s, such as 50ms"),
    ] {
        for text in ["", "1d", "60", "1 s", "s", "-5s", "9999999h", "1500000h", "1m1h", "1e3s", "99999999999999999999s"]
        {
            let spec = serde_json::json!({"masters": 3, field: text});
            let errors = kube::core::cel::validate_cel_schema::<RedisLockClusterSpec>(&spec, None).expect_err(text);
            let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
            assert!(texts.len() == 1 && texts[0].contains(sentence), "{field}: {text:?}: {texts:?}");
        }
    }
}

#[test]
fn an_image_has_no_white_space() {
    for bad in ["' redis:7 '", "\"redis:7\\n\"", "'redis 7'"] {
        refused(
            cluster(&format!("{{masters: 3, image: {bad}}}")).validate_cel(),
            "image must be the reference of an image",
        );
    }
}

#[test]
fn resources_are_amounts_of_what_a_container_can_have_and_requests_are_within_limits() {
    for good in [
        "{limits: {memory: 32Mi}}",
        "{limits: {memory: 67108864, cpu: 2}, requests: {memory: 64Mi, cpu: 500m, ephemeral-storage: 1Gi}}",
        "{requests: {memory: 64Mi}}",
        "{}",
    ] {
        let spec = cluster(&format!("{{masters: 3, resources: {good}}}"));
        assert_eq!(spec.validate_cel().map_err(|e| e.to_string()), Ok(()), "{good}");
    }
    for (bad, sentence) in [
        ("{limits: {foo: 1}}", "resources may name cpu, memory, ephemeral-storage and hugepages-<size>"),
        ("{requests: {example.com/gpu: 1}}", "resources may name cpu"),
        ("{limits: {memory: lots}}", "each amount in resources must be a quantity such as 256Mi or 50m"),
        ("{requests: {cpu: '-1'}}", "each amount in resources must be a quantity"),
        ("{limits: {memory: 64Mi}, requests: {memory: 65Mi}}", "a request in resources must not be above its limit"),
        (
            "{limits: {cpu: 1, memory: 64Mi}, requests: {cpu: 1001m}}",
            "a request in resources must not be above its limit",
        ),
        ("{limits: {memory: '1'}}", "limits.memory in resources must be at least 32Mi"),
        ("{claims: [{name: gpu}]}", "resources.claims is not supported"),
    ] {
        refused(cluster(&format!("{{masters: 3, resources: {bad}}}")).validate_cel(), sentence);
    }
}

#[test]
fn a_selector_goes_with_from_selector() {
    let both = "selector is required with from: Selector, and allowed only with it";
    for bad in ["{from: Selector}", "{from: All, selector: {}}", "{selector: {matchLabels: {a: b}}}"] {
        refused(cluster(&format!("{{masters: 3, allowedNamespaces: {bad}}}")).validate_cel(), both);
    }
}

#[test]
fn generations_of_credentials_may_only_grow() {
    let with = |credentials: &str| cluster(&format!("{{masters: 3, credentials: {credentials}}}"));
    let absent = cluster("masters: 3");
    for (new, old) in [
        (with("{generation: 3}"), with("{generation: 2}")),
        (absent.clone(), with("{generation: 1}")),
        (with("{namespaces: [{name: a, generation: 2}]}"), absent.clone()),
        (
            with("{namespaces: [{name: b, generation: 1}, {name: a, generation: 3}]}"),
            with("{namespaces: [{name: a, generation: 2}]}"),
        ),
    ] {
        assert_eq!(new.validate_cel_update(&old).map_err(|e| e.to_string()), Ok(()));
    }
    for (new, old) in [(with("{generation: 1}"), with("{generation: 2}")), (absent.clone(), with("{generation: 2}"))] {
        refused(new.validate_cel_update(&old), "credentials.generation cannot shrink");
    }
    let named = with("{namespaces: [{name: a, generation: 2}]}");
    for new in [
        absent,
        with("{}"),
        with("{namespaces: [{name: a, generation: 1}]}"),
        with("{namespaces: [{name: b, generation: 2}]}"),
    ] {
        refused(new.validate_cel_update(&named), "an entry of credentials.namespaces cannot be removed");
    }
    refused(with("{generation: 0}").validate_cel(), "credentials.generation must be 1 or more");
    refused(with("{namespaces: [{name: A, generation: 1}]}").validate_cel(), "must be that of a namespace");
    refused(with("{namespaces: [{name: a, generation: 0}]}").validate_cel(), "must be 1 or more");
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
    let longest = cluster("{masters: 3, maxTTL: 24h}").spec;
    assert_eq!(longest.restart_delay(), StdDuration::from_secs(86_400 + 864 + 2));
}

#[test]
fn other_namespaces_are_admitted_only_when_the_cluster_says_so() {
    let labels = [("locks".to_owned(), "main".to_owned())].into();
    for (allowed, labelled, other) in [
        ("", false, false),
        (", allowedNamespaces: {}", false, false),
        (", allowedNamespaces: {from: Same}", false, false),
        (", allowedNamespaces: {from: All}", true, true),
        (", allowedNamespaces: {from: Selector, selector: {matchLabels: {locks: main}}}", true, false),
        (", allowedNamespaces: {from: Selector, selector: {}}", true, true),
        (", allowedNamespaces: {from: Selector, selector: {matchExpressions: [{key: a, operator: In}]}}", false, false),
    ] {
        let spec = cluster(&format!("{{masters: 3{allowed}}}")).spec;
        let none = BTreeMap::new();
        assert!(spec.admits("locks", "locks", &none), "{allowed}");
        let admitted = (spec.admits("locks", "billing", &labels), spec.admits("locks", "billing", &none));
        assert_eq!(admitted, (labelled, other), "{allowed}");
    }
}
