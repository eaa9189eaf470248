//! Who may log in to a master: an ACL user for each namespace that has locks, and one for the operator as a client.
//!
//! The users are made when the master is armed and are never stored on it. So a master that restarted refuses every client until
//! it is armed again, also clients that do not check the marker.

use std::collections::{BTreeMap, BTreeSet};

use redis::Pipeline;
use redlock_engine::permissions;

use super::fitness::Facts;
use super::scripts;
use crate::api::cluster::ClientScripts;
use crate::contract::credentials::{Password, RootKey};
use crate::contract::names::{EVERY_NAMESPACE, client_user};

/// The clients that may log in: the digests of the passwords of each namespace, and which scripts they may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clients {
    digests: BTreeMap<String, BTreeSet<String>>,
    scripts: ClientScripts,
}

// === impl Clients ===

impl Clients {
    /// Only the operator as a client. Its password follows from `key`.
    pub(crate) fn of(key: &RootKey, scripts: ClientScripts) -> Self {
        let own = key.own_client_password().digest();
        Self { digests: [(EVERY_NAMESPACE.to_owned(), [own].into())].into(), scripts }
    }

    /// Clients of `namespace` may log in with each of `passwords`.
    pub(crate) fn admit(&mut self, namespace: &str, passwords: impl IntoIterator<Item = Password>) {
        self.digests.insert(namespace.to_owned(), passwords.into_iter().map(|password| password.digest()).collect());
    }

    /// The digests by namespace.
    #[cfg(test)]
    pub(crate) fn digests(&self) -> &BTreeMap<String, BTreeSet<String>> {
        &self.digests
    }

    /// Whether the server has users for exactly these, with exactly these passwords. It does not tell their rules.
    pub(crate) fn are_known_to(&self, facts: &Facts) -> bool {
        facts.namespaces == self.digests
    }

    /// Whether the server accepts a password that was replaced, so that clients have to log in again with the present one.
    pub(crate) fn replace_passwords_of(&self, facts: &Facts) -> bool {
        self.outdated(facts).any(|(_, keeps_one)| keeps_one)
    }

    /// Whether the server keeps its users for now: its clients would have to log in again right after those of another master
    /// (`has_closed_connections`). Leases need a majority, so masters go one after the other. A revoked password does not wait.
    pub(crate) fn wait_at(&self, facts: &Facts, has_closed_connections: bool) -> bool {
        has_closed_connections && self.replace_passwords_of(facts) && !self.revoke_passwords_of(facts)
    }

    /// Whether the server accepts a password that was revoked, or of a client that may not log in any more.
    pub(crate) fn revoke_passwords_of(&self, facts: &Facts) -> bool {
        self.outdated(facts).any(|(_, keeps_one)| !keeps_one) || self.without_user(facts).next().is_some()
    }

    /// The namespaces of which the server accepts a password that is not valid any more, and whether it accepts a valid one too.
    fn outdated<'a>(&'a self, facts: &'a Facts) -> impl Iterator<Item = (&'a String, bool)> {
        self.digests.iter().filter_map(|(namespace, valid)| {
            let accepted = facts.namespaces.get(namespace)?;
            (!accepted.is_subset(valid)).then(|| (namespace, !accepted.is_disjoint(valid)))
        })
    }

    /// The namespaces whose clients the server lets in although they may not log in any more.
    fn without_user<'a>(&'a self, facts: &'a Facts) -> impl Iterator<Item = &'a String> {
        facts.namespaces.keys().filter(|namespace| !self.digests.contains_key(*namespace))
    }

    /// Adds the commands that give a server these users and no others, and the scripts that they need. Safe to repeat: a user that is
    /// set again stays connected, unless one of its passwords is not valid any more. Which connections were made with that is unknown,
    /// so all of them are closed, and the clients log in again with a valid one.
    pub(super) fn add_changes(&self, commands: &mut Pipeline, facts: &Facts) {
        for (namespace, digests) in &self.digests {
            let rules = client_rules(namespace, digests, self.scripts, facts.knows_setinfo);
            commands.cmd("ACL").arg("SETUSER").arg(client_user(namespace)).arg(rules).ignore();
        }
        for (namespace, _) in self.outdated(facts) {
            commands.cmd("CLIENT").arg("KILL").arg("USER").arg(client_user(namespace)).ignore();
        }
        // Deleting a user closes its connections.
        for namespace in self.without_user(facts) {
            commands.cmd("ACL").arg("DELUSER").arg(client_user(namespace)).ignore();
        }
        if self.scripts == ClientScripts::Builtin {
            // A script that a client ran by EVAL, while it was allowed to, must not be callable by its digest now.
            commands.cmd("SCRIPT").arg("FLUSH").arg("SYNC").ignore();
            scripts::add_loads(commands);
        }
    }
}

/// Arguments of `ACL SETUSER <user>` for the clients of a namespace: the digests of their passwords, and the permissions that
/// [`permissions`] lists.
///
/// `knows_setinfo`: the server has `CLIENT SETINFO` (Redis 7.2 and later, every Valkey). An older one refuses a rule that names it.
fn client_rules(
    namespace: &str,
    digests: &BTreeSet<String>,
    scripts: ClientScripts,
    knows_setinfo: bool,
) -> Vec<String> {
    let mut rules = vec!["reset".to_owned(), "on".to_owned()];
    rules.extend(digests.iter().map(|digest| format!("#{digest}")));
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
    fn a_client_logs_in_with_its_passwords_alone_and_has_the_rights_of_its_namespace() {
        let digests = BTreeSet::from(["a1".to_owned(), "b2".to_owned()]);
        let rules = client_rules("billing", &digests, ClientScripts::Any, true);
        assert_eq!(rules[..4], ["reset", "on", "#a1", "#b2"].map(str::to_owned));
        assert_eq!(rules[4..], permissions::acl_rules("billing", true));
        let loaded_only = client_rules("billing", &digests, ClientScripts::Builtin, true);
        assert_eq!(rules.iter().filter(|rule| !loaded_only.contains(rule)).collect::<Vec<_>>(), ["+eval"]);
    }

    #[test]
    fn clients_are_compared_by_name_and_passwords() {
        let key = RootKey::generate();
        let only_operator = || Clients::of(&key, ClientScripts::Any);
        let with = |generations: &[i64]| {
            let mut clients = only_operator();
            clients.admit("billing", generations.iter().map(|&generation| key.client_password("uid", generation, 1)));
            clients
        };
        let facts = |clients: &Clients| Facts { namespaces: clients.digests.clone(), ..fixtures::facts(None) };
        // What is wanted, what the server has: whether it is that, and what is done about its passwords.
        for (wanted, has, is_same, replaces, revokes) in [
            (with(&[1]), with(&[1]), true, false, false),
            (with(&[1, 2]), with(&[1]), false, false, false),
            (with(&[2]), with(&[1, 2]), false, true, false),
            (with(&[2]), with(&[1]), false, false, true),
            (only_operator(), with(&[1]), false, false, true),
            (with(&[1]), only_operator(), false, false, false),
        ] {
            let facts = facts(&has);
            let found =
                (wanted.are_known_to(&facts), wanted.replace_passwords_of(&facts), wanted.revoke_passwords_of(&facts));
            assert_eq!(found, (is_same, replaces, revokes), "{wanted:?} {has:?}");
            let waits = [false, true].map(|has_closed| wanted.wait_at(&facts, has_closed));
            assert_eq!(waits, [false, replaces], "a replaced password waits for its turn, a revoked one does not");
        }
    }
}
