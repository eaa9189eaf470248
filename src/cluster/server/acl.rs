//! Who may log in to a master: an ACL user for each namespace that has locks, and one for the operator as a client.
//!
//! The users are made when the master is armed and are never stored on it. So a master that restarted refuses every client until
//! it is armed again, also clients that do not check the marker.

use std::collections::BTreeMap;

use redis::Pipeline;
use redlock_engine::permissions;

use super::fitness::Facts;
use super::scripts;
use crate::api::cluster::ClientScripts;
use crate::contract::credentials::{Password, RootKey};
use crate::contract::names::{EVERY_NAMESPACE, client_user};

/// The clients that may log in: a password per namespace, and which scripts they may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clients {
    passwords: BTreeMap<String, Password>,
    scripts: ClientScripts,
}

// === impl Clients ===

impl Clients {
    /// The clients of these namespaces, and the operator as a client. The passwords follow from `key`.
    pub(crate) fn of<'a>(
        key: &RootKey,
        namespaces: impl IntoIterator<Item = &'a String>,
        scripts: ClientScripts,
    ) -> Self {
        let all = namespaces.into_iter().map(String::as_str).chain([EVERY_NAMESPACE]);
        let passwords = all.map(|namespace| (namespace.to_owned(), key.client_password(namespace))).collect();
        Self { passwords, scripts }
    }

    /// Whether the server has users for exactly these. It does not tell their passwords and rules.
    pub(crate) fn are_known_to(&self, facts: &Facts) -> bool {
        facts.namespaces.len() == self.passwords.len()
            && facts.namespaces.iter().all(|known| self.passwords.contains_key(known))
    }

    /// Adds the commands that give a server these users and no others, and the scripts that they need.
    pub(super) fn add_changes(&self, commands: &mut Pipeline, facts: &Facts) {
        for (namespace, password) in &self.passwords {
            let rules = client_rules(namespace, password, self.scripts, facts.knows_setinfo);
            commands.cmd("ACL").arg("SETUSER").arg(client_user(namespace)).arg(rules).ignore();
        }
        for namespace in facts.namespaces.iter().filter(|namespace| !self.passwords.contains_key(*namespace)) {
            commands.cmd("ACL").arg("DELUSER").arg(client_user(namespace)).ignore();
        }
        if self.scripts == ClientScripts::Builtin {
            // A script that a client ran by EVAL, while it was allowed to, must not be callable by its digest now.
            commands.cmd("SCRIPT").arg("FLUSH").arg("SYNC").ignore();
            scripts::add_loads(commands);
        }
    }
}

/// Arguments of `ACL SETUSER <user>` for the clients of a namespace: the password, and the permissions that
/// [`permissions`] lists.
///
/// `knows_setinfo`: the server has `CLIENT SETINFO` (Redis 7.2 and later, every Valkey). An older one refuses a rule that names it.
fn client_rules(namespace: &str, password: &Password, scripts: ClientScripts, knows_setinfo: bool) -> Vec<String> {
    let mut rules = vec!["reset".to_owned(), "on".to_owned(), format!("#{}", password.digest())];
    rules.extend(match scripts {
        ClientScripts::Any => permissions::acl_rules(namespace, knows_setinfo),
        ClientScripts::Builtin => permissions::acl_rules_without_eval(namespace, knows_setinfo),
    });
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fixtures;

    #[test]
    fn a_client_logs_in_with_its_password_alone_and_has_the_rights_of_its_namespace() {
        let password = RootKey::generate().client_password("billing");
        let rules = client_rules("billing", &password, ClientScripts::Any, true);
        assert_eq!(rules[..3], ["reset".to_owned(), "on".to_owned(), format!("#{}", password.digest())]);
        assert_eq!(rules[3..], permissions::acl_rules("billing", true));
        let loaded_only = client_rules("billing", &password, ClientScripts::Builtin, true);
        assert_eq!(rules.iter().filter(|rule| !loaded_only.contains(rule)).collect::<Vec<_>>(), ["+eval"]);
    }

    #[test]
    fn clients_are_compared_by_name() {
        let key = RootKey::generate();
        let clients = |namespaces: &[&str]| {
            Clients::of(&key, &namespaces.iter().map(|&n| n.to_owned()).collect::<Vec<_>>(), ClientScripts::Any)
        };
        let server = Facts { namespaces: ["billing", "*"].map(str::to_owned).to_vec(), ..fixtures::facts(None) };
        assert!(clients(&["billing"]).are_known_to(&server));
        for other in [&[][..], &["reports"], &["billing", "reports"]] {
            assert!(!clients(other).are_known_to(&server), "{other:?}");
        }
    }
}
