//! Makes the objects of a cluster, and its servers, as they should be.
//!
//! Objects are created by a plain create, which fails where one of that name exists, so nothing of somebody else's is ever
//! touched; those that are ours are applied where they differ in a field that matters.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Resource, ResourceExt};
use serde_json::Value;

use super::arm::{Admin, ArmError, Clients};
use super::build;
use super::decide::{Action, Decision, now};
use super::error::Error;
use super::resolve::{Found, Object};
use super::snapshot::{Facts, ServerFound, Slot};
use crate::api::cluster::{MasterState, MasterStatus};
use crate::contract::credentials::RootKey;
use crate::contract::names;
use crate::operator::Context;

/// Which users this process has set on which server: by master, its `run_id` and the clients.
pub type KnownClients = HashMap<String, (String, Clients)>;

/// What became of the masters.
#[derive(Debug)]
pub struct Applied {
    /// Their records.
    pub rows: Vec<MasterStatus>,
    /// Something did not work out and should be tried again soon.
    pub retry: bool,
}

/// Carries out `decisions`, whose records have been written.
pub async fn apply(
    operator: &Context,
    found: &Found,
    decisions: Vec<Decision>,
    image: &str,
    known: &mut KnownClients,
) -> Result<Applied, Error> {
    let key = apply_secret(operator, found).await?;
    for (master, service) in found.masters.iter().zip(&found.services) {
        apply_service(operator, found, &master.name, service).await?;
    }
    let clients = Clients::of(&key, &found.namespaces);

    let mut applied = Applied { rows: Vec::new(), retry: false };
    for (index, mut decision) in decisions.into_iter().enumerate() {
        let master = &found.masters[index];
        let facts = match &master.server {
            ServerFound::Up(facts) => Some(facts),
            _ => None,
        };
        // A clone is the same connection.
        let server = facts.zip(found.admins[index].clone());
        let outcome = match (decision.action, server) {
            (Action::Create, _) => {
                let pod = build::pod(&found.cluster, &master.name, image);
                create_pod(operator, &pod, &mut decision).await?
            }
            (Action::Delete, _) => delete_pod(operator, found, index).await?,
            (Action::Arm, Some(server)) => arm(operator, found, server, &clients, known, &mut decision).await?,
            (Action::Nothing, Some(server)) if decision.row.state == MasterState::Armed => {
                keep(operator, found, server, &clients, known, &decision.row).await?
            }
            _ => Outcome::Done,
        };
        applied.retry |= outcome == Outcome::Retry;
        applied.rows.push(decision.row);
    }
    Ok(applied)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    Retry,
}

/// Refuses to go on without leadership: checked right before each write, since this task may have slept since the last.
fn lead(operator: &Context) -> Result<(), Error> {
    if operator.leadership.is_leader() { Ok(()) } else { Err(Error::NotLeading) }
}

async fn apply_secret(operator: &Context, found: &Found) -> Result<RootKey, Error> {
    let key = found.key.clone().unwrap_or_else(RootKey::generate);
    let wanted = build::secret(&found.cluster, &key);
    match &found.secret {
        Slot::Free => {
            create(operator, &wanted).await?;
        }
        Slot::Ours(live) if found.key.is_some() => update(operator, live, &wanted).await?,
        _ => {}
    }
    Ok(key)
}

async fn apply_service(operator: &Context, found: &Found, master: &str, live: &Slot<Service>) -> Result<(), Error> {
    let started_at = live.ours().and_then(|service| service.annotations().get(names::STARTED_AT_ANNOTATION));
    let started_at = started_at.cloned().unwrap_or_else(|| jiff::Timestamp::now().to_string());
    let wanted = build::service(&found.cluster, master, &started_at);
    match live {
        Slot::Free => create(operator, &wanted).await.map(|_| ()),
        Slot::Ours(live) => update(operator, live, &wanted).await,
        Slot::Orphan | Slot::Foreign(_) => Ok(()),
    }
}

async fn create_pod(operator: &Context, pod: &Pod, decision: &mut Decision) -> Result<Outcome, Error> {
    match create(operator, pod).await {
        Ok(pod) => {
            decision.created(pod.uid().unwrap_or_default());
            Ok(Outcome::Done)
        }
        // A quota or an admission policy refuses it: the other masters do not suffer for it.
        Err(Error::Kube { source, .. }) if matches!(*source, kube::Error::Api(_)) => {
            decision.row.message = Some(format!("its pod cannot be created: {source}"));
            Ok(Outcome::Retry)
        }
        Err(error) => Err(error),
    }
}

async fn delete_pod(operator: &Context, found: &Found, index: usize) -> Result<Outcome, Error> {
    let master = &found.masters[index];
    let Some(pod) = master.pod.ours() else { return Ok(Outcome::Done) };
    lead(operator)?;
    // This very pod, and without force: on a machine that does not answer the object stays, and with it the master's place.
    let preconditions = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    let namespace = found.cluster.namespace().unwrap_or_default();
    match Api::<Pod>::namespaced(operator.client.clone(), &namespace).delete(&master.name, &params).await {
        Ok(_) => Ok(Outcome::Done),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(Outcome::Done),
        Err(source) => Err(Error::kube("delete", format!("Pod {}", master.name), source)),
    }
}

async fn arm(
    operator: &Context,
    found: &Found,
    (facts, mut admin): (&Facts, Admin),
    clients: &Clients,
    known: &mut KnownClients,
    decision: &mut Decision,
) -> Result<Outcome, Error> {
    lead(operator)?;
    match admin.arm(facts, clients, found.cluster.spec.max_ttl()).await {
        Ok(()) => {
            decision.armed(now());
            known.insert(decision.row.name.clone(), (facts.run_id.clone(), clients.clone()));
            Ok(Outcome::Done)
        }
        Err(error @ ArmError::NotSent(_)) => {
            // It surely has no marker of ours: it may be tried again without being taken for one that lost its marker.
            decision.row.run_id = None;
            decision.row.message = Some(error.to_string());
            Ok(Outcome::Retry)
        }
        Err(error @ ArmError::Unknown(_)) => {
            decision.row.message = Some(error.to_string());
            Ok(Outcome::Retry)
        }
    }
}

/// Keeps an armed server's users and cap as they should be.
async fn keep(
    operator: &Context,
    found: &Found,
    (facts, mut admin): (&Facts, Admin),
    clients: &Clients,
    known: &mut KnownClients,
    row: &MasterStatus,
) -> Result<Outcome, Error> {
    let max_ttl = found.cluster.spec.max_ttl();
    let same_cap = facts.marker.as_ref().is_some_and(|marker| marker.cap_millis == max_ttl.as_millis());
    let current = (facts.run_id.clone(), clients.clone());
    let same_users = clients.are_known_to(facts) && known.get(&row.name) == Some(&current);
    if same_cap && same_users {
        return Ok(Outcome::Done);
    }
    lead(operator)?;
    let kept = async {
        if !same_users {
            admin.set_users(facts, clients).await?;
        }
        if !same_cap {
            admin.set_cap(facts, max_ttl).await?;
        }
        Ok::<_, super::arm::AdminError>(())
    };
    match kept.await {
        Ok(()) => {
            known.insert(row.name.clone(), current);
            Ok(Outcome::Done)
        }
        Err(error) => {
            tracing::warn!(master = row.name, %error, "failed to set the users of a master");
            Ok(Outcome::Retry)
        }
    }
}

async fn create<K>(operator: &Context, wanted: &K) -> Result<K, Error>
where
    K: Object,
{
    lead(operator)?;
    let api = Api::<K>::namespaced(operator.client.clone(), &wanted.namespace().unwrap_or_default());
    let params = PostParams { field_manager: Some(names::MANAGER.to_owned()), ..PostParams::default() };
    api.create(&params, wanted).await.map_err(|source| Error::kube("create", object(wanted), source))
}

/// Applies `wanted` over `live`, which is ours, if it differs in a field of `wanted`.
async fn update<K>(operator: &Context, live: &K, wanted: &K) -> Result<(), Error>
where
    K: Object,
{
    let json = |object: &K| serde_json::to_value(object).unwrap_or_default();
    if includes(&json(live), &json(wanted)) {
        return Ok(());
    }
    lead(operator)?;
    let api = Api::<K>::namespaced(operator.client.clone(), &wanted.namespace().unwrap_or_default());
    let params = PatchParams::apply(names::MANAGER).force();
    let applied = api.patch(&wanted.name_any(), &params, &Patch::Apply(wanted)).await;
    applied.map(|_| ()).map_err(|source| Error::kube("apply", object(wanted), source))
}

fn object<K: Resource<DynamicType = ()>>(object: &K) -> String {
    format!("{} {}", K::kind(&()), object.name_any())
}

/// Whether `live` has every field of `wanted`. What `live` has besides was filled in by the API server.
fn includes(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            wanted.iter().all(|(key, wanted)| live.get(key).is_some_and(|live| includes(live, wanted)))
        }
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len() && live.iter().zip(wanted).all(|(live, wanted)| includes(live, wanted))
        }
        _ => live == wanted,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_of_the_api_server_are_no_difference() {
        let wanted = json!({"spec": {"ports": [{"port": 6379}], "type": "ClusterIP"}});
        let live = json!({"spec": {"ports": [{"port": 6379, "protocol": "TCP"}], "type": "ClusterIP", "clusterIP": "10.0.0.1"}});
        assert!(includes(&live, &wanted));
    }

    #[test]
    fn a_changed_field_is_a_difference() {
        let wanted = json!({"spec": {"selector": {"a": "1"}, "ports": [{"port": 6379}]}});
        for live in [
            json!({"spec": {"selector": {"a": "2"}, "ports": [{"port": 6379}]}}),
            json!({"spec": {"selector": {}, "ports": [{"port": 6379}]}}),
            json!({"spec": {"selector": {"a": "1"}, "ports": [{"port": 6379}, {"port": 1}]}}),
            json!({}),
        ] {
            assert!(!includes(&live, &wanted), "{live}");
        }
    }
}
