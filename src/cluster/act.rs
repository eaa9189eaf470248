//! Fourth step: carries out a plan whose records were written.
//!
//! Objects are created by a plain create. It fails where one of the name exists, so that no object of somebody else is ever
//! changed.

use k8s_openapi::api::core::v1::{Pod, PodCondition, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::ResourceExt;
use serde_json::json;

use super::build::{self, Spread};
use super::clock::now;
use super::decide::budget::BudgetPlan;
use super::decide::gate::gate;
use super::decide::master::{MasterAction, MasterPlan};
use super::decide::objects::ObjectPlan;
use super::decide::spread::{ENOUGH, spread_over, takes_pods};
use super::decide::{ClusterPlan, refusal};
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
use crate::operator::{error_chain, finalizer};

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
    /// How to spread the pods that are created now, once it is known.
    spread: Option<Spread>,
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
    let ClusterPlan { problems: _, is_blocked, secret, services, budget, masters: plans, clients } = plan;
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
    act_on_budget(api, snapshot, budget).await?;
    let clients = clients.clients;
    let mut executor = Executor { api, snapshot, default_image, memory, has_closed_connections: false, spread: None };
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

async fn act_on_budget(api: &ApiServer, snapshot: &Snapshot, plan: BudgetPlan) -> Result<(), Error> {
    let cluster = &snapshot.cluster;
    let done = match plan.object {
        ObjectPlan::Leave => Ok(()),
        ObjectPlan::Create => api.create(&build::budget(cluster, plan.min_available)).await.map(drop),
        ObjectPlan::Apply(budget) => api.apply(&*budget).await.map(drop),
        ObjectPlan::TakeOver(uid) => take_over::<PodDisruptionBudget>(api, cluster, &cluster.name_any(), &uid).await,
    };
    match done {
        // Masters without a budget are better than none. The next reconcile tries again.
        Err(error) if refusal(&error).is_some() => {
            tracing::warn!(error = error_chain(&error), "drains are not held up: the PodDisruptionBudget is refused");
            Ok(())
        }
        result => result,
    }
}

/// Makes this very object, which has no owner any more, one of `cluster`.
async fn take_over<K: Object>(api: &ApiServer, cluster: &RedisLockCluster, name: &str, uid: &str) -> Result<(), Error> {
    let owner = json!({"op": "add", "path": "/metadata/ownerReferences", "value": [build::owner_reference(cluster)]});
    api.patch_metadata::<K>(&cluster.namespace().unwrap_or_default(), name, uid, &[owner]).await?;
    tracing::info!(object = name, kind = %K::kind(&()), "taken over from a former cluster");
    Ok(())
}

// === impl Attempt ===

impl Attempt {
    /// What became of both.
    fn and(self, other: Self) -> Self {
        if self == Self::Retry { self } else { other }
    }
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
                if plan.row.restart_not_before.is_some() {
                    // It has no vote any more, also where its deletion is refused.
                    self.disarm(server, &plan).await?;
                    self.set_gate(master, &plan.row).await?;
                }
                self.delete_pod(master).await?
            }
            (MasterAction::Release, server) => {
                // It may reply although its machine was declared dead. Only while the object stands its address is its own.
                self.disarm(server, &plan).await?;
                self.release_pod(master).await?
            }
            (MasterAction::Arm, Some(server)) => {
                let attempt = self.arm(server, &mut plan).await?;
                attempt.and(self.set_gate(master, &plan.row).await?)
            }
            (MasterAction::Nothing, Some(server)) if plan.row.state == MasterState::Armed => {
                let attempt = self.maintain(server, &plan.row).await?;
                attempt.and(self.set_gate(master, &plan.row).await?)
            }
            (MasterAction::Arm | MasterAction::Nothing, _) => self.set_gate(master, &plan.row).await?,
        };
        // `crashed` and `wake` are the driver's.
        let MasterPlan { row, action: _, crashed: _, failed_start: _, wake: _ } = plan;
        Ok((row, attempt))
    }

    async fn create_pod(&mut self, master: &ObservedMaster, plan: &mut MasterPlan) -> Result<Attempt, Error> {
        let spread = self.spread().await?;
        let pod = build::pod(&self.snapshot.cluster, &master.name, self.default_image, spread);
        match self.api.create(&pod).await {
            Ok(pod) => {
                plan.created(pod.uid().unwrap_or_default());
                Ok(Attempt::Done)
            }
            // A quota or an admission policy, for instance. The other masters do not suffer from it.
            Err(error) => match refusal(&error) {
                Some(words) => {
                    let told = self.memory.has_failed_to_start(&master.name);
                    let before = plan.row.message.as_deref().filter(|_| told);
                    plan.row.message = Some(refusal::message(before, words));
                    self.memory.note_failed_start(&master.name, None);
                    Ok(Attempt::Done)
                }
                None => Err(error),
            },
        }
    }

    /// How to spread pods over the Kubernetes nodes that there are now.
    async fn spread(&mut self) -> Result<Spread, Error> {
        if let Some(known) = self.spread {
            return Ok(known);
        }
        let machines = match self.api.count_kubernetes_nodes(ENOUGH, takes_pods).await {
            Ok(machines) => machines,
            // An operator that may not list Kubernetes nodes can only hope for three.
            Err(error) if error.category() == Category::Forbidden => 0,
            Err(error) => return Err(error),
        };
        Ok(*self.spread.insert(spread_over(machines)))
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

    /// Makes the pod ready if its master votes, and not ready if not.
    async fn set_gate(&self, master: &ObservedMaster, row: &MasterStatus) -> Result<Attempt, Error> {
        let (Some(votes), Some(pod)) = (gate(master, row), master.pod.ours()) else { return Ok(Attempt::Done) };
        let (status, reason) = if votes { ("True", "Armed") } else { ("False", "NotArmed") };
        let condition = PodCondition {
            type_: names::ARMED_GATE.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            last_transition_time: Some(Time(now())),
            ..PodCondition::default()
        };
        let namespace = self.snapshot.cluster.namespace().unwrap_or_default();
        match self.api.set_pod_condition(&namespace, &master.name, &pod.uid, &condition).await {
            Ok(()) => Ok(Attempt::Done),
            Err(Error::NotLeading) => Err(Error::NotLeading),
            // It is gone, or another by now.
            Err(error) if matches!(error.category(), Category::NotFound | Category::Conflict) => Ok(Attempt::Done),
            // What its master does is more important than what its pod is called.
            Err(error) => {
                tracing::warn!(
                    master = master.name,
                    error = error_chain(&error),
                    "failed to set the readiness of a pod"
                );
                Ok(if error.category() == Category::Forbidden { Attempt::Done } else { Attempt::Retry })
            }
        }
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

/// What the API server said, if it refused the object itself. That is neither an outdated write, which ends the reconcile, nor a
/// namespace that is being deleted, nor an API server that has too much to do.
fn refusal(error: &Error) -> Option<&str> {
    let Error::Request { source, .. } = error else { return None };
    let kube::Error::Api(status) = &**source else { return None };
    let ends = error.is_outdated_write() || error.category() == Category::NamespaceTerminating;
    let is_busy = matches!(status.code, 429 | 503 | 504);
    (!ends && !is_busy).then_some(&*status.message)
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
        assert!(refusal(&error(429, "TooManyRequests", "")).is_none());
        let going = "unable to create new content in namespace keys because it is being terminated";
        assert!(refusal(&error(403, "Forbidden", going)).is_none());
        assert!(refusal(&Error::Timeout { action: "create Pod votes-0".to_owned() }).is_none());
        assert!(refusal(&Error::NotLeading).is_none());
    }
}
