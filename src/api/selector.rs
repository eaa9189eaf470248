//! Selectors of labels. They match as Kubernetes matches them, and one that Kubernetes would refuse is refused.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::Selector;

/// A selector that cannot be evaluated.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{key}: {why}")]
pub struct InvalidSelector {
    /// The label that the requirement is about.
    key: String,
    /// What is wrong with it.
    why: &'static str,
}

/// The selector that `written` describes. An empty one matches everything.
pub fn parse(written: &LabelSelector) -> Result<Selector, InvalidSelector> {
    for requirement in written.match_expressions.iter().flatten() {
        let invalid = |why| Err(InvalidSelector { key: requirement.key.clone(), why });
        let has_values = requirement.values.as_ref().is_some_and(|values| !values.is_empty());
        match (requirement.operator.as_str(), has_values) {
            ("In" | "NotIn", true) | ("Exists" | "DoesNotExist", false) => {}
            ("In" | "NotIn", false) => return invalid("In and NotIn need values"),
            ("Exists" | "DoesNotExist", true) => return invalid("Exists and DoesNotExist take no values"),
            _ => return invalid("the operator must be In, NotIn, Exists or DoesNotExist"),
        }
    }
    written.clone().try_into().map_err(|_| InvalidSelector { key: String::new(), why: "not a selector of labels" })
}

#[cfg(test)]
mod tests {
    use kube::core::SelectorExt as _;

    use super::*;

    fn selector(yaml: &str) -> LabelSelector {
        serde_yaml::from_str(yaml).unwrap()
    }

    #[test]
    fn labels_are_matched_as_kubernetes_matches_them() {
        let labels = [("team", "billing"), ("env", "prod")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        for (yaml, matches) in [
            ("{}", true),
            ("{matchLabels: {team: billing}}", true),
            ("{matchLabels: {team: billing, env: dev}}", false),
            ("{matchExpressions: [{key: team, operator: In, values: [shop, billing]}]}", true),
            ("{matchExpressions: [{key: tier, operator: In, values: [gold]}]}", false),
            ("{matchExpressions: [{key: env, operator: NotIn, values: [prod]}]}", false),
            ("{matchExpressions: [{key: tier, operator: NotIn, values: [gold]}]}", true),
            ("{matchExpressions: [{key: team, operator: Exists}]}", true),
            ("{matchExpressions: [{key: tier, operator: Exists}]}", false),
            ("{matchExpressions: [{key: tier, operator: DoesNotExist, values: []}]}", true),
            ("{matchLabels: {team: billing}, matchExpressions: [{key: env, operator: DoesNotExist}]}", false),
        ] {
            assert_eq!(parse(&selector(yaml)).unwrap().matches(&labels), matches, "{yaml}");
        }
    }

    #[test]
    fn a_selector_that_kubernetes_refuses_is_refused_with_the_label() {
        for (yaml, why) in [
            ("{key: team, operator: In}", "team: In and NotIn need values"),
            ("{key: team, operator: NotIn, values: []}", "team: In and NotIn need values"),
            ("{key: team, operator: Exists, values: [a]}", "team: Exists and DoesNotExist take no values"),
            (
                "{key: team, operator: Like, values: [a]}",
                "team: the operator must be In, NotIn, Exists or DoesNotExist",
            ),
        ] {
            let written = selector(&format!("{{matchExpressions: [{yaml}]}}"));
            assert_eq!(parse(&written).unwrap_err().to_string(), why);
        }
    }
}
