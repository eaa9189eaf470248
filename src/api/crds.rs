//! The two `CustomResourceDefinition`s as they are committed in `crds/` and carried by the chart.

pub use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition as Definition;
use kube::{CustomResourceExt, ResourceExt};

use super::{DistributedLock, RedisLockCluster};

/// First line of each file.
const HEADER: &str = "# Generated from src/api by `make crds`: do not edit.\n";

/// Both definitions, each with the name of its file.
#[must_use]
pub fn all() -> Vec<(&'static str, Definition)> {
    vec![
        ("redislockclusters.redlock.dev.yaml", RedisLockCluster::crd()),
        ("distributedlocks.redlock.dev.yaml", DistributedLock::crd()),
    ]
}

/// A definition as `kubectl apply` reads it.
pub fn to_yaml(crd: &Definition) -> Result<String, serde_yaml::Error> {
    Ok(format!("{HEADER}{}", serde_yaml::to_string(crd)?))
}

/// A definition as a template of the chart: installed if the values say so, with the labels of the release. It is kept when
/// the release is uninstalled: deleting a definition deletes every object of its kind.
pub fn to_chart_template(crd: &Definition) -> Result<String, serde_yaml::Error> {
    let name = crd.name_any();
    let spec = literal(&serde_yaml::to_string(&crd.spec)?).trim_end().replace('\n', "\n  ");
    Ok(format!(
        "{HEADER}\
         {{{{- if .Values.crds.enabled }}}}\n\
         apiVersion: apiextensions.k8s.io/v1\n\
         kind: CustomResourceDefinition\n\
         metadata:\n  \
           name: {name}\n  \
           labels:\n    \
             {{{{- include \"redlock.labels\" . | nindent 4 }}}}\n  \
           annotations:\n    \
             helm.sh/resource-policy: keep\n\
         spec:\n\
         \x20 {spec}\n\
         {{{{- end }}}}\n"
    ))
}

/// `text`, escaped so that a template renders it unchanged.
fn literal(text: &str) -> String {
    text.replace("{{", "{{ \"{{\" }}")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Well below what etcd and `kubectl apply` accept.
    const MAX_BYTES: usize = 200_000;

    #[track_caller]
    fn assert_committed(file: &Path, generated: &str) {
        let committed = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap_or_default();
        assert!(committed == generated, "{} does not match src/api: run `make crds`", file.display());
    }

    #[test]
    fn the_committed_definitions_are_those_of_the_types() {
        for (file, crd) in all() {
            assert_committed(&Path::new("crds").join(file), &to_yaml(&crd).unwrap());
        }
    }

    #[test]
    fn the_chart_carries_the_same_definitions() {
        let templates = Path::new("charts/redlock-operator/templates/crds");
        for (file, crd) in all() {
            assert_committed(&templates.join(file), &to_chart_template(&crd).unwrap());
        }
    }

    #[test]
    fn a_definition_is_small_enough_to_be_applied() {
        for (file, crd) in all() {
            let size = to_yaml(&crd).unwrap().len();
            assert!(size < MAX_BYTES, "{file}: {size} bytes");
        }
    }

    #[test]
    fn braces_of_a_description_are_no_template() {
        assert_eq!(literal("a {{ b }} c"), "a {{ \"{{\" }} b }} c");
        let (_, mut crd) = all().remove(0);
        crd.spec.names.list_kind = Some("{{ .Values.evil }}".to_owned());
        let template = to_chart_template(&crd).unwrap();
        let actions: Vec<_> = template.match_indices("{{").map(|(at, _)| &template[at..at + 4]).collect();
        assert_eq!(actions, ["{{- ", "{{- ", "{{ \"", "{{\" ", "{{- "]);
    }

    #[test]
    fn a_template_without_its_actions_is_the_definition() {
        for (file, crd) in all() {
            let template = to_chart_template(&crd).unwrap().replace("{{ \"{{\" }}", "\u{1}");
            let plain: Vec<_> = template.lines().filter(|l| !l.contains("{{")).collect();
            let plain = plain.join("\n").replace('\u{1}', "{{");
            let mut read: Definition = serde_yaml::from_str(&plain).unwrap();
            let annotations = read.metadata.annotations.take().unwrap_or_default();
            assert_eq!(annotations.get("helm.sh/resource-policy").map(String::as_str), Some("keep"), "{file}");
            read.metadata.labels = None;
            assert_eq!(read, crd, "{file}");
        }
    }
}
