//! What a person has to change before a cluster can be as its spec says. No IO.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;

use crate::api::RedisLockCluster;
use crate::cluster::build::{self, conf};
use crate::cluster::observed::{Existing, Snapshot};
use crate::contract::names;

/// Something that a person has to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Reason of the condition `ConfigValid`.
    pub(crate) reason: &'static str,
    /// What is wrong, and where.
    pub(crate) message: String,
    /// It concerns the whole cluster: nothing is created while it lasts. Otherwise it concerns one master, and the others go on.
    pub(crate) blocks_all: bool,
}

/// Somebody else's object has a name that the cluster needs.
pub(crate) const NAME_CONFLICT: &str = "NameConflict";
/// The root key of the cluster is lost: its Secret is gone, or has no usable key.
const AUTH_SECRET_LOST: &str = "AuthSecretLost";
/// What is left to do then.
const RESTORE: &str = "restore it from a backup, or delete the cluster and create it again. Masters that run go on with the \
                       passwords that they know, unattended, and none is started";
/// `spec.resources` has an amount that is not a quantity.
const INVALID_RESOURCES: &str = "InvalidResources";

/// `spec.allowedNamespaces.selector` cannot be evaluated.
const INVALID_SELECTOR: &str = "InvalidSelector";

/// All problems of a cluster, the most general first.
pub(crate) fn problems(snapshot: &Snapshot) -> Vec<Problem> {
    let mut problems = Vec::new();
    problems.extend(invalid_resources(&snapshot.cluster));
    if let Some(name) = snapshot.secret.foreign() {
        problems.push(name_conflict(name, true));
    }
    problems.extend(lost_key(snapshot));
    if let Err(why) = snapshot.cluster.spec.selector() {
        let message =
            format!("spec.allowedNamespaces.selector: {why}. Until then only the cluster's own namespace is admitted");
        problems.push(Problem { reason: INVALID_SELECTOR, message, blocks_all: false });
    }
    let pods = snapshot.masters.iter().filter_map(|master| master.pod.foreign());
    let services = snapshot.masters.iter().filter_map(|master| master.service.foreign());
    let others = pods.chain(services).chain(snapshot.budget.foreign());
    problems.extend(others.map(|name| name_conflict(name, false)));
    problems
}

fn name_conflict(name: &str, blocks_all: bool) -> Problem {
    let message = format!("{name} exists and does not belong to this cluster: rename or delete it");
    Problem { reason: NAME_CONFLICT, message, blocks_all }
}

fn lost_key(snapshot: &Snapshot) -> Option<Problem> {
    let (secret, None) = (&snapshot.secret, &snapshot.key) else { return None };
    let name = names::auth_secret(&snapshot.cluster.name_any());
    let message = match (secret, snapshot.was_started()) {
        (Existing::Absent, true) => format!("Secret {name} with the cluster's root key is gone: {RESTORE}"),
        (Existing::Ours(_) | Existing::Orphan(_), true) => {
            format!("Secret {name} has no usable root key any more: {RESTORE}")
        }
        (Existing::Ours(_) | Existing::Orphan(_), false) => {
            format!("Secret {name} has no usable root key: delete it, and the operator makes another")
        }
        _ => return None,
    };
    Some(Problem { reason: AUTH_SECRET_LOST, message, blocks_all: true })
}

fn invalid_resources(cluster: &RedisLockCluster) -> Option<Problem> {
    let resources = build::resources(cluster);
    let amounts = resources.limits.iter().chain(&resources.requests).flatten();
    let wrong = |(_, amount): &(&String, &Quantity)| conf::bytes(amount).is_none();
    let (name, amount) = amounts.into_iter().find(wrong)?;
    let message = format!("spec.resources: {name} is {:?}, which is no quantity such as 256Mi or 50m", amount.0);
    Some(Problem { reason: INVALID_RESOURCES, message, blocks_all: true })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::ResourceRequirements;

    use super::*;

    #[test]
    fn an_amount_that_is_no_quantity_is_named() {
        let mut cluster = crate::cluster::fixtures::cluster(3);
        assert_eq!(invalid_resources(&cluster), None);
        let requests = BTreeMap::from([("memory".to_owned(), Quantity("lots".to_owned()))]);
        cluster.spec.resources =
            Some(ResourceRequirements { requests: Some(requests), ..ResourceRequirements::default() });
        let problem = invalid_resources(&cluster).unwrap();
        assert_eq!(problem.message, "spec.resources: memory is \"lots\", which is no quantity such as 256Mi or 50m");
    }
}
