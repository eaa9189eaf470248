//! Fourth step: carries out a plan whose records were written.
//!
//! Objects are created by a plain create. It fails where one of the name exists, so that no object of somebody else is ever
//! changed.

use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use serde_json::json;

use super::build;
use super::clock::now;
use super::decide::ClusterPlan;
use super::decide::master::{MasterAction, MasterPlan};
use super::decide::objects::ObjectPlan;
use super::look_up::Admins;
use super::memory::Memory;
use super::observed::{ObservedMaster, ObservedPod, ObservedServer, Snapshot};
use super::server::Admin;
use super::server::acl::Clients;
use super::server::arm::ArmError;
use super::server::fitness::Facts;
use crate::api::RedisLockCluster;
use crate::api::cluster::{MasterState, MasterStatus};
use crate::contract::credentials::RootKey;
use crate::contract::names;
use crate::operator::api_server::{ApiServer, Category, Error, Object};
use crate::operator::finalizer;

/// What a record says of a pod that the API server refuses.
pub(crate) const REFUSED: &str = "its pod cannot be created: ";

/// What became of the masters.
#[derive(Debug)]
pub(crate) struct Acted {
    /// Their records.
    pub(crate) rows: Vec<MasterStatus>,
    /// Something failed that should be retried soon.
    pub(crate) retry: bool,
}

/// What became of one master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Done,
    Retry,
}

/// A server that replied: its facts, the connection on which they were read, and who may log in.
struct Reached<'a> {
    facts: &'a Facts,
    admin: Admin,
    clients: &'a Clients,
}

/// Carries out the plans of single masters.
struct Executor<'a> {
    api: &'a ApiServer,
    snapshot: &'a Snapshot,
    default_image: &'a str,
    memory: &'a mut Memory,
    /// The clients of a master have to log in again with their new passwords. The other masters wait for the next reconcile.
    has_closed_connections: bool,
}

/// Carries out `plan`. Each write, to the API server or to a Redis server, asks for leadership right before it is sent.
pub(crate) async fn act(
    api: &ApiServer,
    snapshot: &Snapshot,
    admins: Admins,
    plan: ClusterPlan,
    default_image: &str,
    memory: &mut Memory,
) -> Result<Acted, Error> {
    // Each part by name, so that a part that is forgotten here does not compile.
    let ClusterPlan { problems: _, is_blocked, secret, services, masters: plans, clients } = plan;
    let mut acted = Acted { rows: Vec::new(), retry: false };
    if let Some(key) = &snapshot.key {
        memory.note_root_key(key, snapshot.is_key_proven());
    }
    if is_blocked {
        acted.rows = plans.into_iter().map(|plan| plan.row).collect();
        return Ok(acted);
    }
    act_on_secret(api, snapshot, secret, memory).await?;
    for (master, service) in snapshot.masters.iter().zip(services) {
        act_on_service(api, snapshot, &master.name, service).await?;
    }
    let clients = clients.clients;
    let mut executor = Executor { api, snapshot, default_image, memory, has_closed_connections: false };
    for ((master, admin), plan) in snapshot.masters.iter().zip(admins).zip(plans) {
        let reached = match (&master.server, admin, &clients) {
            (ObservedServer::Up(facts), Some(admin), Some(clients)) => Some(Reached { facts, admin, clients }),
            _ => None,
        };
        let (row, attempt) = executor.act_on_master(master, reached, plan).await?;
        acted.retry |= attempt == Attempt::Retry;
        acted.rows.push(row);
    }
    Ok(acted)
}

async fn act_on_secret(
    api: &ApiServer,
    snapshot: &Snapshot,
    plan: ObjectPlan<Secret>,
    memory: &mut Memory,
) -> Result<(), Error> {
    match plan {
        ObjectPlan::Leave => Ok(()),
        ObjectPlan::Create => {
            let key = snapshot.key.clone().unwrap_or_else(RootKey::generate);
            api.create(&build::secret(&snapshot.cluster, &key)).await?;
            memory.note_root_key(&key, true);
            Ok(())
        }
        ObjectPlan::Apply(secret) => api.apply(&*secret).await.map(drop),
        ObjectPlan::TakeOver(uid) => {
            let name = names::auth_secret(&snapshot.cluster.name_any());
            take_over::<Secret>(api, &snapshot.cluster, &name, &uid).await
        }
    }
}

async fn act_on_service(
    api: &ApiServer,
    snapshot: &Snapshot,
    master: &str,
    plan: ObjectPlan<Service>,
) -> Result<(), Error> {
    match plan {
        ObjectPlan::Leave => Ok(()),
        ObjectPlan::Create => {
            api.create(&build::service(&snapshot.cluster, master, &now().to_string())).await.map(drop)
        }
        ObjectPlan::Apply(service) => api.apply(&*service).await.map(drop),
        ObjectPlan::TakeOver(uid) => take_over::<Service>(api, &snapshot.cluster, master, &uid).await,
    }
}

/// Makes this very object, which has no owner any more, one of `cluster`.
async fn take_over<K: Object>(api: &ApiServer, cluster: &RedisLockCluster, name: &str, uid: &str) -> Result<(), Error> {
    let owner = json!({"op": "add", "path": "/metadata/ownerReferences", "value": [build::owner_reference(cluster)]});
    api.patch_metadata::<K>(&cluster.namespace().unwrap_or_default(), name, uid, &[owner]).await?;
    tracing::info!(object = name, kind = %K::kind(&()), "taken over from a former cluster");
    Ok(())
}

// === impl Executor ===

impl Executor<'_> {
    async fn act_on_master(
        &mut self,
        master: &ObservedMaster,
        reached: Option<Reached<'_>>,
        mut plan: MasterPlan,
    ) -> Result<(MasterStatus, Attempt), Error> {
        let attempt = match (plan.action, reached) {
            (MasterAction::Create, _) => self.create_pod(master, &mut plan).await?,
            (MasterAction::Protect, _) => self.protect_pod(master).await?,
            (MasterAction::Delete, server) => {
                self.disarm(server, &plan).await?;
                self.delete_pod(master).await?
            }
            (MasterAction::Release, server) => {
                // It may reply although its machine was declared dead. Only while the object stands its address is its own.
                self.disarm(server, &plan).await?;
                self.release_pod(master).await?
            }
            (MasterAction::Arm, Some(server)) => self.arm(server, &mut plan).await?,
            (MasterAction::Nothing, Some(server)) if plan.row.state == MasterState::Armed => {
                self.maintain(server, &plan.row).await?
            }
            (MasterAction::Arm | MasterAction::Nothing, _) => Attempt::Done,
        };
        // `crashed` and `wake` are the driver's.
        let MasterPlan { row, action: _, crashed: _, failed_start: _, wake: _ } = plan;
        Ok((row, attempt))
    }

    async fn create_pod(&mut self, master: &ObservedMaster, plan: &mut MasterPlan) -> Result<Attempt, Error> {
        let pod = build::pod(&self.snapshot.cluster, &master.name, self.default_image);
        match self.api.create(&pod).await {
            Ok(pod) => {
                plan.created(pod.uid().unwrap_or_default());
                Ok(Attempt::Done)
            }
            // A quota or an admission policy, for instance. The other masters do not suffer from it.
            Err(error) => match refusal(&error) {
                Some(refusal) => {
                    plan.row.message = Some(format!("{REFUSED}{refusal}"));
                    self.memory.note_failed_start(&master.name, None);
                    Ok(Attempt::Done)
                }
                None => Err(error),
            },
        }
    }

    async fn protect_pod(&self, master: &ObservedMaster) -> Result<Attempt, Error> {
        if let Some(pod) = master.pod.of_our_making() {
            finalizer::add::<Pod>(self.api, &self.metadata_of(master, pod), names::MASTER_FINALIZER).await?;
        }
        // The pod has changed, which triggers the next reconcile.
        Ok(Attempt::Done)
    }

    /// Deletes the pod and lets its object go: its end is recorded.
    async fn release_pod(&self, master: &ObservedMaster) -> Result<Attempt, Error> {
        self.delete_pod(master).await?;
        if let Some(pod) = master.pod.of_our_making() {
            finalizer::remove::<Pod>(self.api, &self.metadata_of(master, pod), names::MASTER_FINALIZER).await?;
        }
        Ok(Attempt::Done)
    }

    /// What patches of the pod need of its metadata.
    fn metadata_of(&self, master: &ObservedMaster, pod: &ObservedPod) -> ObjectMeta {
        ObjectMeta {
            name: Some(master.name.clone()),
            namespace: self.snapshot.cluster.namespace(),
            uid: Some(pod.uid.clone()),
            finalizers: Some(pod.finalizers.clone()),
            ..ObjectMeta::default()
        }
    }

    /// Deletes this very pod, without force: where the Kubernetes node does not answer, the object stays, and with it the
    /// master's place.
    async fn delete_pod(&self, master: &ObservedMaster) -> Result<Attempt, Error> {
        if let Some(pod) = master.pod.of_our_making().filter(|pod| !pod.is_deleting) {
            let namespace = self.snapshot.cluster.namespace().unwrap_or_default();
            self.api.delete::<Pod>(&namespace, &master.name, &pod.uid).await?;
        }
        Ok(Attempt::Done)
    }

    /// Takes the vote from a server that has lost its data or is unfit, whose pod is about to be deleted: it could vote until it ends.
    async fn disarm(&self, server: Option<Reached<'_>>, plan: &MasterPlan) -> Result<(), Error> {
        let Some(mut server) = server.filter(|_| plan.row.restart_not_before.is_some()) else { return Ok(()) };
        self.api.require_leadership()?;
        let why = plan.row.message.as_deref().unwrap_or("its pod is deleted");
        if let Err(error) = server.admin.disarm(why).await {
            tracing::warn!(master = plan.row.name, %error, "failed to disarm a master, whose pod is deleted now");
        }
        Ok(())
    }

    async fn arm(&mut self, server: Reached<'_>, plan: &mut MasterPlan) -> Result<Attempt, Error> {
        let Reached { facts, mut admin, clients } = server;
        self.api.require_leadership()?;
        match admin.arm(facts, clients, self.snapshot.cluster.spec.max_ttl()).await {
            Ok(()) => {
                plan.armed(now());
                self.memory.note_users(&plan.row.name, facts, clients);
                Ok(Attempt::Done)
            }
            Err(error @ ArmError::NotSent(_)) => {
                // It has no marker of ours for certain. Without the run_id it does not count as one that lost its marker.
                plan.row.run_id = None;
                plan.row.message = Some(error.to_string());
                Ok(Attempt::Retry)
            }
            Err(error @ ArmError::Unknown(_)) => {
                plan.row.message = Some(error.to_string());
                Ok(Attempt::Retry)
            }
        }
    }

    /// Keeps the users and the cap of an armed server up to date.
    async fn maintain(&mut self, server: Reached<'_>, row: &MasterStatus) -> Result<Attempt, Error> {
        let Reached { facts, mut admin, clients } = server;
        let max_ttl = self.snapshot.cluster.spec.max_ttl();
        let same_cap = facts.marker.as_ref().is_some_and(|marker| marker.cap.as_millis() == max_ttl.as_millis());
        let same_users = clients.are_known_to(facts) && self.memory.has_set_users(&row.name, facts, clients);
        if same_users && same_cap {
            return Ok(Attempt::Done);
        }
        if clients.wait_at(facts, self.has_closed_connections) {
            return Ok(Attempt::Retry);
        }
        self.api.require_leadership()?;
        // Whatever becomes of the answer: they may be closed.
        self.has_closed_connections |= clients.replace_passwords_of(facts);
        match admin.maintain(facts, clients, max_ttl).await {
            Ok(()) => {
                self.memory.note_users(&row.name, facts, clients);
                Ok(Attempt::Done)
            }
            Err(error) => {
                tracing::warn!(master = row.name, %error, "failed to set the users of a master");
                Ok(Attempt::Retry)
            }
        }
    }
}

/// What the API server said, if it refused the object itself. Neither an outdated write is that, which ends the reconcile, nor a
/// namespace that is being deleted.
fn refusal(error: &Error) -> Option<&kube::Error> {
    match error {
        Error::Request { source, .. } if matches!(**source, kube::Error::Api(_)) => {
            let ends = error.is_outdated_write() || error.category() == Category::NamespaceTerminating;
            (!ends).then_some(&**source)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refused_pod_is_told_of_its_master_unless_the_whole_reconcile_is_out_of_date() {
        let error = |code: u16, reason: &str, message: &str| {
            let status: Status = serde_json::from_value(json!({"kind": "Status", "status": "Failure", "code": code,
                "reason": reason, "message": message}))
            .unwrap();
            let source = Box::new(kube::Error::Api(Box::new(status)));
            Error::Request { action: "create Pod votes-0".to_owned(), source }
        };
        for (code, reason) in [(403, "Forbidden"), (409, "AlreadyExists"), (422, "Invalid"), (500, "InternalError")] {
            assert!(refusal(&error(code, reason, "")).is_some(), "{reason}");
        }
        assert!(refusal(&error(409, "Conflict", "")).is_none());
        let going = "unable to create new content in namespace keys because it is being terminated";
        assert!(refusal(&error(403, "Forbidden", going)).is_none());
        assert!(refusal(&Error::Timeout { action: "create Pod votes-0".to_owned() }).is_none());
        assert!(refusal(&Error::NotLeading).is_none());
    }
}
