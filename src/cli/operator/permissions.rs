//! The permissions without which the operator cannot do its work, and whether it has them.
//!
//! What it can do without is not here: to read Kubernetes nodes (an administrator vouches for the end of a vanished pod instead) and the
//! definition of its kind (a missing record of deleted clusters then always counts as lost).

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::timeout;

use super::preflight::{Error, TIMEOUT};
use crate::api::GROUP;
use crate::contract::names::{LEASE, TOMBSTONES};
use crate::operator::scope::Scope;

/// Questions to the API server at a time.
const AT_A_TIME: usize = 8;

/// Verbs on a resource.
#[derive(Clone, Copy)]
struct Permission {
    group: &'static str,
    resource: &'static str,
    subresource: Option<&'static str>,
    /// The object; `None`: any.
    name: Option<&'static str>,
    /// In the operator's namespace only; otherwise in all of them.
    is_own: bool,
    verbs: &'static [&'static str],
}

const fn everywhere(group: &'static str, resource: &'static str, verbs: &'static [&'static str]) -> Permission {
    Permission { group, resource, subresource: None, name: None, is_own: false, verbs }
}

const fn own(
    group: &'static str,
    resource: &'static str,
    name: Option<&'static str>,
    verbs: &'static [&'static str],
) -> Permission {
    Permission { group, resource, subresource: None, name, is_own: true, verbs }
}

const fn of(subresource: &'static str, permission: Permission) -> Permission {
    Permission { subresource: Some(subresource), ..permission }
}

/// All that it needs.
const NEEDED: [Permission; 16] = [
    everywhere(GROUP, "redislockclusters", &["get", "list", "watch", "patch"]),
    everywhere(GROUP, "distributedlocks", &["get", "list", "watch", "patch"]),
    of("status", everywhere(GROUP, "redislockclusters", &["patch"])),
    of("status", everywhere(GROUP, "distributedlocks", &["patch"])),
    of("finalizers", everywhere(GROUP, "redislockclusters", &["update"])),
    everywhere("", "pods", &["get", "list", "watch", "create", "patch", "delete"]),
    of("status", everywhere("", "pods", &["patch"])),
    everywhere("policy", "poddisruptionbudgets", &["get", "create", "patch"]),
    everywhere("", "services", &["get", "list", "watch", "create", "patch", "delete"]),
    everywhere("", "secrets", &["get", "create", "patch", "delete"]),
    everywhere("", "namespaces", &["get", "list", "watch"]),
    everywhere("events.k8s.io", "events", &["create", "patch"]),
    own("coordination.k8s.io", "leases", None, &["create"]),
    own("coordination.k8s.io", "leases", Some(LEASE), &["get", "update"]),
    own("", "configmaps", None, &["create"]),
    own("", "configmaps", Some(TOMBSTONES), &["get", "patch"]),
];

/// The needed permissions that this process has not, in words.
pub(super) async fn missing(client: &Client, namespace: &str, scope: &Scope) -> Result<Vec<String>, Error> {
    let verbs = NEEDED.iter().flat_map(|permission| permission.verbs.iter().map(move |verb| (permission, *verb)));
    let all = verbs.flat_map(|(permission, verb)| {
        permission.places(namespace, scope).into_iter().map(move |place| (permission, verb, place))
    });
    let asked = futures::stream::iter(all).map(|(permission, verb, place)| async move {
        let is_missing = !is_permitted(client, permission.attributes(verb, place)).await?;
        Ok::<_, Error>(is_missing.then(|| permission.describe(verb, place)))
    });
    asked.buffered(AT_A_TIME).try_filter_map(|missing| std::future::ready(Ok(missing))).try_collect().await
}

async fn is_permitted(client: &Client, attributes: ResourceAttributes) -> Result<bool, Error> {
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..Default::default() };
    let unreachable = |source| Error::Unreachable { what: "its permissions".to_owned(), source };
    let reviews = Api::<SelfSubjectAccessReview>::all(client.clone());
    match timeout(TIMEOUT, reviews.create(&PostParams::default(), &review)).await {
        Ok(Ok(review)) => Ok(review.status.is_some_and(|status| status.allowed)),
        // Who may not even ask finds out by trying.
        Ok(Err(kube::Error::Api(status))) if status.is_forbidden() => Ok(true),
        Ok(Err(error)) => Err(unreachable(error.into())),
        Err(elapsed) => Err(unreachable(elapsed.into())),
    }
}

// === impl Permission ===

impl Permission {
    /// Where it is needed: `None` stands for all namespaces.
    fn places<'a>(&self, own: &'a str, scope: &'a Scope) -> Vec<Option<&'a str>> {
        if self.is_own {
            vec![Some(own)]
        } else if scope.namespaces().is_empty() {
            vec![None]
        } else {
            scope.namespaces().iter().map(|name| Some(name.as_str())).collect()
        }
    }

    fn attributes(&self, verb: &str, place: Option<&str>) -> ResourceAttributes {
        // A namespace is not in one: it is named.
        let name = if self.resource == "namespaces" { place } else { self.name };
        ResourceAttributes {
            group: Some(self.group.to_owned()),
            resource: Some(self.resource.to_owned()),
            subresource: self.subresource.map(str::to_owned),
            name: name.map(str::to_owned),
            namespace: place.filter(|_| self.resource != "namespaces").map(str::to_owned),
            verb: Some(verb.to_owned()),
            ..ResourceAttributes::default()
        }
    }

    /// As in "not permitted to …".
    fn describe(&self, verb: &str, place: Option<&str>) -> String {
        format!("{verb} {} in {}", self.resource_name(), place.unwrap_or("all namespaces"))
    }

    /// As RBAC has it, with its group, and the name of the only object.
    fn resource_name(&self) -> String {
        let mut text = self.resource.to_owned();
        for (mark, part) in [("/", self.subresource), (" ", self.name)] {
            if let Some(part) = part {
                text = format!("{text}{mark}{part}");
            }
        }
        text
    }
}

/// Where the API server is asked.
#[cfg(test)]
pub(super) const PATH: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;

    /// The answer to a question, which is permitted if `permits` says so of its verb and resource.
    pub(in super::super) fn answer(question: &[u8], permits: impl Fn(&str) -> bool) -> String {
        let mut review: Value = serde_json::from_slice(question).unwrap();
        let asked = &review["spec"]["resourceAttributes"];
        let asked = format!("{} {}", asked["verb"].as_str().unwrap(), asked["resource"].as_str().unwrap());
        review["status"] = json!({"allowed": permits(&asked)});
        review.to_string()
    }

    /// What the roles of the chart permit: group, resource, name, verb, and whether in its own namespace only.
    fn permitted(template: &str, is_own: bool) -> BTreeSet<(String, String, String, String, bool)> {
        let (_, rules) = template.split_once("\nrules:\n").unwrap();
        let (rules, _) = rules.split_once("\n---\n").unwrap();
        let rules: Vec<Value> = serde_yaml::from_str(rules).unwrap();
        let texts = |value: &Value| -> Vec<String> {
            let all: Vec<_> =
                value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect();
            if all.is_empty() { vec![String::new()] } else { all }
        };
        let mut all = BTreeSet::new();
        for rule in &rules {
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    for name in texts(&rule["resourceNames"]) {
                        for verb in texts(&rule["verbs"]) {
                            all.insert((group.clone(), resource.clone(), name.clone(), verb, is_own));
                        }
                    }
                }
            }
        }
        all
    }

    #[test]
    fn the_chart_permits_what_is_needed_and_no_more_than_that_and_what_can_be_done_without() {
        let cluster_role = include_str!("../../../charts/redlock-operator/templates/clusterrole.yaml");
        let role = include_str!("../../../charts/redlock-operator/templates/role.yaml");
        let mut chart = permitted(cluster_role, false);
        chart.extend(permitted(role, true));
        chart.retain(|(_, resource, ..)| !["nodes", "customresourcedefinitions"].contains(&resource.as_str()));
        let needed: BTreeSet<_> = NEEDED
            .iter()
            .flat_map(|permission| {
                let resource = permission.subresource.map_or_else(
                    || permission.resource.to_owned(),
                    |subresource| format!("{}/{subresource}", permission.resource),
                );
                permission.verbs.iter().map(move |verb| {
                    let name = permission.name.unwrap_or_default().to_owned();
                    (permission.group.to_owned(), resource.clone(), name, (*verb).to_owned(), permission.is_own)
                })
            })
            .collect();
        assert_eq!(needed, chart);
    }
}
