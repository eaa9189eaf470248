//! What stands in the way of a cluster as it is written. No IO.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::build;
use super::conf;
use super::resolve::Found;
use crate::api::RedisLockCluster;

/// Something that a person has to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Reason of the condition `ConfigValid`.
    pub reason: &'static str,
    /// What is wrong, and where.
    pub message: String,
    /// Nothing can be created while it lasts. Otherwise one master is concerned, and the others go on.
    pub blocks_all: bool,
}

/// An object of a name that is needed exists and is somebody else's.
pub const NAME_CONFLICT: &str = "NameConflict";
/// The Secret of the cluster has no usable key.
pub const UNUSABLE_KEY: &str = "UnusableKey";
/// `spec.resources` has something that is not a quantity.
pub const INVALID_RESOURCES: &str = "InvalidResources";

/// Everything that is in the way, the most general first.
#[must_use]
pub fn problems(found: &Found) -> Vec<Problem> {
    let mut problems = Vec::new();
    problems.extend(invalid_resources(&found.cluster));
    if let Some(name) = found.secret.foreign() {
        problems.push(name_conflict(name, true));
    }
    if let (Some(secret), None) = (found.secret.ours(), &found.key) {
        let name = secret.metadata.name.clone().unwrap_or_default();
        let message = format!("Secret {name} has no usable key: restore it, or delete the cluster and create it again");
        problems.push(Problem { reason: UNUSABLE_KEY, message, blocks_all: true });
    }
    let pods = found.masters.iter().filter_map(|master| master.pod.foreign());
    let services = found.services.iter().filter_map(|service| service.foreign());
    problems.extend(pods.chain(services).map(|name| name_conflict(name, false)));
    problems
}

fn name_conflict(name: &str, blocks_all: bool) -> Problem {
    let message = format!("{name} exists and does not belong to this cluster: rename or delete it");
    Problem { reason: NAME_CONFLICT, message, blocks_all }
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
