//! The API server accepts valid objects, and refuses each kind of invalid object with a message that says what to do.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Error};
use redlock_operator::api::{DistributedLock, GROUP, RedisLockCluster, VERSION, crds};
use serde_json::{Value, json};

use crate::harness::{Env, kubectl, objects, scenario, wait};

/// The spec of an invalid object, and a part of the message that refuses it.
type Wrong = (Value, &'static str);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_crds_are_structural_established_and_those_of_this_code() {
    scenario("crds", async |env| {
        let all: Api<CustomResourceDefinition> = Api::all(env.client.clone());
        for (_, ours) in crds::all() {
            let name = ours.metadata.name.as_deref().unwrap();
            let served = all.get(name).await.unwrap();
            let conditions = served.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
            let is = |type_: &str| conditions.iter().any(|c| c.type_ == type_ && c.status == "True");
            assert!(is("Established") && !is("NonStructuralSchema"), "{name}: {conditions:?}");
            let version = |crd: &CustomResourceDefinition| crd.spec.versions[0].schema.clone();
            assert_eq!(version(&served), version(&ours), "{name}: the chart carries another schema");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn valid_objects_are_accepted_and_listed_with_their_columns() {
    scenario("good", async |env| {
        for spec in [
            json!({"masters": 1}),
            json!({"masters": 3, "maxTTL": "1s", "restartDelay": "3010ms", "callTimeout": "5ms"}),
            json!({"masters": 5, "maxTTL": "24h", "restartDelay": "48h", "callTimeout": "1s", "image": "redis:7.4-alpine"}),
            json!({"masters": 7, "allowedNamespaces": {"from": "All"}, "resources": {"limits": {"memory": "128Mi"}}}),
            json!({"masters": 3, "allowedNamespaces": {"from": "Selector", "selector": {"matchLabels": {"locks": "main"}}}}),
            json!({"masters": 3, "resources": {"limits": {"memory": 67_108_864, "cpu": 1}, "requests": {"memory": "64Mi", "hugepages-2Mi": "2Mi"}}}),
            json!({"masters": 3, "credentials": {"generation": 2, "namespaces": [{"name": "billing", "generation": 2}]}}),
        ] {
            create(env, "RedisLockCluster", "good", &spec).await.unwrap_or_else(|e| panic!("{spec}: {e}"));
        }
        for spec in [
            json!({"clusterRef": {"name": "main"}, "observe": {}}),
            json!({"clusterRef": {"name": "main", "namespace": "locks"}, "key": "reports/nightly_1.0-a", "observe": {}}),
            json!({"clusterRef": {"name": "main"}, "holder": "job/nightly:report_1", "lease": {"ttl": "1s"}}),
            json!({"clusterRef": {"name": "main"}, "holder": "a", "lease": {"ttl": "24h", "renewEvery": "12h"}}),
            json!({"clusterRef": {"name": "main"}, "holder": "a", "lease": {"renewEvery": "300ms"}}),
            json!({"clusterRef": {"name": "main"}, "holder": "a", "lease": {"minValidity": "15s"}, "priority": -1000, "onLost": "Fail"}),
        ] {
            create(env, "DistributedLock", "good", &spec).await.unwrap_or_else(|e| panic!("{spec}: {e}"));
        }
        let stored: DistributedLock = objects::object(env, "DistributedLock", "listed", &json!({"clusterRef": {"name": "none"}, "observe": {}}));
        env.api().create(&PostParams::default(), &stored).await.unwrap();
        let table = kubectl(&["-n", &env.namespace, "get", "dlock", "-o", "wide"]).await.unwrap();
        for column in ["PHASE", "HOLDER", "TOKEN", "VOTES", "VALID UNTIL", "CLUSTER", "AGE"] {
            assert!(table.contains(column), "{column} in {table}");
        }
        let both = kubectl(&["-n", &env.namespace, "get", "redlock", "-o", "name"]).await.unwrap();
        assert!(both.contains("distributedlock.redlock.dev/listed"), "{both}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_rule_refuses_an_invalid_object_with_a_message_that_says_what_to_do() {
    scenario("wrong", async |env| {
        let cluster = |more: Value| merged(json!({"masters": 3}), more);
        let clusters: [Wrong; 24] = [
            (cluster(json!({"masters": 4})), "masters must be 1, 3, 5 or 7: an even number tolerates no more failures"),
            (cluster(json!({"masters": 9})), "masters must be 1, 3, 5 or 7"),
            (cluster(json!({"maxTTL": "500ms"})), "maxTTL must be a duration from 1s to 24h, such as 60s or 5m"),
            (cluster(json!({"maxTTL": "25h", "restartDelay": "26h"})), "maxTTL must be a duration from 1s to 24h"),
            (cluster(json!({"restartDelay": "59s"})), "restartDelay must be at least maxTTL (60s by default)"),
            (cluster(json!({"maxTTL": "30s", "restartDelay": "29s"})), "restartDelay must be at least maxTTL"),
            (cluster(json!({"restartDelay": "49h"})), "restartDelay must be a duration of at most 48h, such as 65s"),
            (cluster(json!({"restartDelay": "60s", "maxTTL": "60s"})), "restartDelay must be at least maxTTL (60s by default) plus 1 % and 2s"),
            (cluster(json!({"restartDelay": "9999999h"})), "restartDelay must be a duration of at most 48h, such as 65s"),
            (cluster(json!({"maxTTL": "1d"})), "maxTTL must be a duration from 1s to 24h, such as 60s or 5m"),
            (cluster(json!({"maxTTL": ""})), "maxTTL must be a duration from 1s to 24h, such as 60s or 5m"),
            (cluster(json!({"image": " redis:7 \n"})), "image must be the reference of an image, such as redis:7.4-alpine"),
            (cluster(json!({"resources": {"claims": [{"name": "gpu"}]}})), "resources.claims is not supported"),
            (cluster(json!({"resources": {"limits": {"foo": 1}}})), "resources may name cpu, memory, ephemeral-storage"),
            (cluster(json!({"resources": {"limits": {"memory": "lots"}}})), "each amount in resources must be a quantity"),
            (
                cluster(json!({"resources": {"limits": {"memory": "64Mi"}, "requests": {"memory": "65Mi"}}})),
                "a request in resources must not be above its limit",
            ),
            (cluster(json!({"resources": {"limits": {"memory": "1"}}})), "limits.memory in resources must be at least 32Mi"),
            (cluster(json!({"allowedNamespaces": {"from": "Selector"}})), "selector is required with from: Selector"),
            (cluster(json!({"allowedNamespaces": {"selector": {}}})), "selector is required with from: Selector"),
            (cluster(json!({"credentials": {"generation": 0}})), "credentials.generation must be 1 or more"),
            (
                cluster(json!({"credentials": {"namespaces": [{"name": "A", "generation": 1}]}})),
                "the name in credentials.namespaces must be that of a namespace",
            ),
            (
                cluster(json!({"credentials": {"namespaces": [{"name": "a", "generation": 1}, {"name": "a", "generation": 2}]}})),
                "Duplicate value",
            ),
            (cluster(json!({"callTimeout": "1ms"})), "callTimeout must be a duration from 5ms to 1s, such as 50ms"),
            (
                cluster(json!({"allowedNamespaces": {"from": "Some"}})),
                "Unsupported value: \"Some\": supported values: ",
            ),
        ];
        for (spec, text) in clusters {
            refused(create(env, "RedisLockCluster", "wrong", &spec).await, text);
        }
        let long = "a".repeat(51);
        let at_most = "metadata.name must have at most 50 characters";
        refused(create(env, "RedisLockCluster", &long, &json!({"masters": 3})).await, at_most);

        let lock = |more: Value| merged(json!({"clusterRef": {"name": "main"}}), more);
        let held = |lease: Value| lock(json!({"holder": "a", "lease": lease}));
        let locks: [Wrong; 24] = [
            (lock(json!({"clusterRef": {"name": ""}})), "spec.clusterRef.name in body should be at least 1 chars long"),
            (json!({"holder": "a"}), "spec.clusterRef: Required value"),
            (lock(json!({"key": "-a"})), "key may have letters, digits and . _ / - and must begin and end with"),
            (lock(json!({"key": "a b"})), "key may have letters, digits"),
            (lock(json!({"holder": "a@b"})), "holder may have letters, digits and . _ : / - and must begin and end"),
            (held(json!({"ttl": "999ms"})), "ttl must be a duration from 1s to 24h, such as 30s"),
            (held(json!({"renewEvery": "50ms"})), "renewEvery must be a duration of at least 100ms"),
            (held(json!({"renewEvery": "16s"})), "renewEvery must be at most half of ttl (30s by default)"),
            (held(json!({"ttl": "4s", "renewEvery": "3s"})), "renewEvery must be at most half of ttl"),
            (held(json!({"ttl": "24h", "renewEvery": "100ms"})), "renewEvery must be at least a hundredth of ttl"),
            (held(json!({"renewEvery": "1500000h"})), "renewEvery must be a duration of at least 100ms, such as 10s"),
            (held(json!({"ttl": "1d"})), "ttl must be a duration from 1s to 24h, such as 30s"),
            (held(json!({"minValidity": "16s"})), "minValidity must be at most half of ttl"),
            (held(json!({"minValidity": "1d"})), "minValidity must be a duration above 0s, such as 5s"),
            (lock(json!({"holder": "a", "priority": 1001})), "spec.priority in body should be less than or equal to 1000"),
            (lock(json!({"observe": {}, "onLost": "Fail"})), "onLost is allowed only with holder"),
            (lock(json!({"holder": "a", "onLost": "Never"})), "Unsupported value: \"Never\": supported values: "),
            (lock(json!({"observe": {}, "priority": 1})), "priority is allowed only with holder"),
            (lock(json!({})), "exactly one of holder and observe is required"),
            (lock(json!({"holdr": "a"})), "exactly one of holder and observe is required"),
            (lock(json!({"holder": "a", "observe": {}})), "exactly one of holder and observe is required"),
            (lock(json!({"observe": {}, "lease": {"ttl": "9s"}})), "lease is allowed only with holder"),
            (json!({"clusterRef": {"name": "../../etc"}}), "clusterRef.name must be the name of a RedisLockCluster"),
            (json!({"clusterRef": {"name": "main", "namespace": "a b"}}), "clusterRef.namespace must be the name of a namespace"),
        ];
        for (spec, text) in locks {
            refused(create(env, "DistributedLock", "wrong", &spec).await, text);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_immutable_field_says_what_to_do_instead() {
    scenario("immutable", async |env| {
        let credentials = json!({"generation": 2, "namespaces": [{"name": "a", "generation": 2}]});
        let spec = json!({"masters": 1, "maxTTL": "10s", "credentials": credentials});
        objects::create_cluster(env, spec).await;
        let move_locks = "masters cannot be changed while the cluster exists: create a second RedisLockCluster";
        refused(change(env, "RedisLockCluster", "main", json!({"masters": 3})).await, move_locks);
        refused(change(env, "RedisLockCluster", "main", json!({"maxTTL": "9s"})).await, "maxTTL cannot shrink");
        change(env, "RedisLockCluster", "main", json!({"maxTTL": "11s"})).await.expect("maxTTL may grow");
        let shrink = change(env, "RedisLockCluster", "main", json!({"credentials": null})).await;
        refused(shrink, "credentials.generation cannot shrink");
        let unnamed = change(env, "RedisLockCluster", "main", json!({"credentials": {"namespaces": null}})).await;
        refused(unnamed, "an entry of credentials.namespaces cannot be removed");

        let spec = json!({"clusterRef": {"name": "none"}, "key": "a", "holder": "b"});
        let stored: DistributedLock = objects::object(env, "DistributedLock", "stored", &spec);
        env.api().create(&PostParams::default(), &stored).await.unwrap();
        let other =
            "clusterRef cannot be changed, nor can its namespace be added or removed: create another DistributedLock";
        for (patch, text) in [
            (json!({"clusterRef": {"name": "other"}}), other),
            (json!({"key": "b"}), "key cannot be changed: create another DistributedLock"),
            (json!({"key": null}), "key cannot be added or removed later: create another DistributedLock"),
            (
                json!({"holder": null, "observe": {}}),
                "holder cannot be added or removed: whether the operator or pods hold the lock",
            ),
        ] {
            refused(change(env, "DistributedLock", "stored", patch).await, text);
        }
        change(env, "DistributedLock", "stored", json!({"lease": {"ttl": "9s"}})).await.expect("ttl may change");
        change(env, "DistributedLock", "stored", json!({"holder": "c"})).await.expect("holder may change");
        wait::until(&env.api::<RedisLockCluster>(), "main", "there still", |_| true).await;
    })
    .await;
}

fn api(env: &Env, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&kube::api::GroupVersionKind::gvk(GROUP, VERSION, kind));
    Api::namespaced_with(env.client.clone(), &env.namespace, &resource)
}

/// The API server's answer to the creation of this object, as a dry run.
async fn create(env: &Env, kind: &str, name: &str, spec: &Value) -> Result<DynamicObject, Error> {
    let object: DynamicObject = objects::object(env, kind, name, spec);
    api(env, kind).create(&PostParams { dry_run: true, ..PostParams::default() }, &object).await
}

/// The API server's answer to this change of spec, as a dry run.
async fn change(env: &Env, kind: &str, name: &str, spec: Value) -> Result<DynamicObject, Error> {
    let patch = Patch::Merge(json!({"spec": spec}));
    api(env, kind).patch(name, &PatchParams { dry_run: true, ..PatchParams::default() }, &patch).await
}

fn refused(answer: Result<DynamicObject, Error>, text: &str) {
    match answer {
        Err(Error::Api(status)) => {
            assert!(status.is_invalid() && status.message.contains(text), "{text:?}: {status:?}");
        }
        other => panic!("{text:?}: not refused by the API server, but {other:?}"),
    }
}

fn merged(mut base: Value, more: Value) -> Value {
    let (Value::Object(base_fields), Value::Object(more)) = (&mut base, more) else { panic!("two objects") };
    base_fields.extend(more);
    base
}
