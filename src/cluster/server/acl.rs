//! Who may log in to a master: an ACL user for each namespace that has locks, and one for the operator as a client.
//!
//! The users are made when the master is armed and are never stored on it. So a master that restarted refuses every client until
//! it is armed again, also clients that do not check the marker.

use std::collections::{BTreeMap, BTreeSet};

use redlock_engine::permissions;

use super::fitness::Facts;
use super::{Admin, AdminError};
use crate::contract::credentials::{Password, RootKey};
use crate::contract::names::{EVERY_NAMESPACE, client_user};

/// The clients that may log in: the digests of the passwords of each namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clients(BTreeMap<String, BTreeSet<String>>);

// === impl Clients ===

impl Clients {
    /// Only the operator as a client. Its password follows from `key`.
    pub(crate) fn of(key: &RootKey) -> Self {
        Self([(EVERY_NAMESPACE.to_owned(), [key.own_client_password().digest()].into())].into())
    }

    /// Clients of `namespace` may log in with each of `passwords`.
    pub(crate) fn admit(&mut self, namespace: &str, passwords: impl IntoIterator<Item = Password>) {
        self.0.insert(namespace.to_owned(), passwords.into_iter().map(|password| password.digest()).collect());
    }

    /// The digests by namespace.
    #[cfg(test)]
    pub(crate) fn digests(&self) -> &BTreeMap<String, BTreeSet<String>> {
        &self.0
    }

    /// Whether the server has users for exactly these, with exactly these passwords. It does not tell their rules.
    pub(crate) fn are_known_to(&self, facts: &Facts) -> bool {
        facts.namespaces == self.0
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
        self.outdated(facts).any(|(_, keeps_one)| !keeps_one)
            || facts.namespaces.keys().any(|namespace| !self.0.contains_key(namespace))
    }

    /// The namespaces of which the server accepts a password that is not valid any more, and whether it accepts a valid one too.
    fn outdated<'a>(&'a self, facts: &'a Facts) -> impl Iterator<Item = (&'a String, bool)> {
        self.0.iter().filter_map(|(namespace, valid)| {
            let accepted = facts.namespaces.get(namespace)?;
            (!accepted.is_subset(valid)).then(|| (namespace, !accepted.is_disjoint(valid)))
        })
    }
}

// === impl Admin ===

impl Admin {
    /// Makes the users of `clients`, and deletes those of other namespaces. Safe to repeat: a user that is set again stays
    /// connected, unless one of its passwords is not valid any more. Which connections were made with that is unknown, so all of
    /// them are closed, and the clients log in again with a valid one.
    pub(crate) async fn set_users(&mut self, facts: &Facts, clients: &Clients) -> Result<(), AdminError> {
        let mut commands = redis::pipe();
        for (namespace, digests) in &clients.0 {
            let rules = client_rules(namespace, digests, facts.knows_setinfo);
            commands.cmd("ACL").arg("SETUSER").arg(client_user(namespace)).arg(rules).ignore();
        }
        for (namespace, _) in clients.outdated(facts) {
            commands.cmd("CLIENT").arg("KILL").arg("USER").arg(client_user(namespace)).ignore();
        }
        // Deleting a user closes its connections.
        for namespace in facts.namespaces.keys().filter(|namespace| !clients.0.contains_key(*namespace)) {
            commands.cmd("ACL").arg("DELUSER").arg(client_user(namespace)).ignore();
        }
        if commands.is_empty() {
            return Ok(());
        }
        commands.exec_async(&mut self.connection).await.map_err(Into::into)
    }
}

/// Arguments of `ACL SETUSER <user>` for the clients of a namespace: the digests of their passwords, and the permissions that
/// [`permissions::acl_rules`] lists.
///
/// `knows_setinfo`: the server has `CLIENT SETINFO` (Redis 7.2 and later, every Valkey). An older one refuses a rule that names it.
fn client_rules(namespace: &str, digests: &BTreeSet<String>, knows_setinfo: bool) -> Vec<String> {
    let mut rules = vec!["reset".to_owned(), "on".to_owned()];
    rules.extend(digests.iter().map(|digest| format!("#{digest}")));
    rules.extend(permissions::acl_rules(namespace, knows_setinfo));
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fixtures;

    #[test]
    fn a_client_logs_in_with_its_passwords_alone_and_has_the_rights_of_its_namespace() {
        let digests = BTreeSet::from(["a1".to_owned(), "b2".to_owned()]);
        let rules = client_rules("billing", &digests, true);
        assert_eq!(rules[..4], ["reset", "on", "#a1", "#b2"].map(str::to_owned));
        assert_eq!(rules[4..], permissions::acl_rules("billing", true));
    }

    #[test]
    fn clients_are_compared_by_name_and_passwords() {
        let key = RootKey::generate();
        let with = |generations: &[i64]| {
            let mut clients = Clients::of(&key);
            clients.admit("billing", generations.iter().map(|&generation| key.client_password("uid", generation, 1)));
            clients
        };
        let facts = |clients: &Clients| Facts { namespaces: clients.0.clone(), ..fixtures::facts(None) };
        // What is wanted, what the server has: whether it is that, and what is done about its passwords.
        for (wanted, has, is_same, replaces, revokes) in [
            (with(&[1]), with(&[1]), true, false, false),
            (with(&[1, 2]), with(&[1]), false, false, false),
            (with(&[2]), with(&[1, 2]), false, true, false),
            (with(&[2]), with(&[1]), false, false, true),
            (Clients::of(&key), with(&[1]), false, false, true),
            (with(&[1]), Clients::of(&key), false, false, false),
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
