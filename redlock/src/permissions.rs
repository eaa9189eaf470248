//! The permissions that a client of a namespace needs on each master, as rules of `ACL SETUSER`.

use crate::key::{ARMED_KEY, PREFIX};

/// The commands. Some are only for other libraries: the scripts of node-redlock ask by EXISTS whether a lock is free.
const COMMANDS: &str = "+set +get +exists +del +pttl +pexpire +zadd +zscore +zrank +zrem +zrange +zpopmin +time +publish \
     +subscribe +unsubscribe +ping +hello +auth +info +evalsha +eval +client|setname +client|id";

/// The rules for the locks of `namespace`: its keys, fences, queues and channels, reading the armed marker, and the
/// commands that the engine and other RedLock libraries use. The caller adds the password, `on` and `reset`.
///
/// `knows_setinfo`: whether the server has `CLIENT SETINFO` (Redis 7.2 and later, every Valkey). An older server refuses a
/// rule that names it.
#[must_use]
pub fn acl_rules(namespace: &str, knows_setinfo: bool) -> Vec<String> {
    let mut rules = vec![
        format!("~{PREFIX}{namespace}/*"),
        format!("~{PREFIX}{namespace}#fences"),
        format!("~{PREFIX}{namespace}#queue/*"),
        format!("%R~{ARMED_KEY}"),
        format!("&{PREFIX}{namespace}/*"),
    ];
    rules.extend(COMMANDS.split_whitespace().map(str::to_owned));
    if knows_setinfo {
        rules.push("+client|setinfo".to_owned());
    }
    rules
}

/// The same for clients that may run only scripts that are [loaded](crate::redis_master::scripts) on the server before.
#[must_use]
pub fn acl_rules_without_eval(namespace: &str, knows_setinfo: bool) -> Vec<String> {
    let mut rules = acl_rules(namespace, knows_setinfo);
    rules.retain(|rule| rule != "+eval");
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_limited_to_its_namespace_and_to_the_commands_of_locks() {
        let rules = acl_rules("billing", true);
        let reach: Vec<_> = rules.iter().filter(|r| r.contains("redlock:")).map(String::as_str).collect();
        assert_eq!(
            reach,
            [
                "~redlock:billing/*",
                "~redlock:billing#fences",
                "~redlock:billing#queue/*",
                "%R~redlock:armed",
                "&redlock:billing/*"
            ]
        );
        assert!(
            rules.iter().all(|r| !r.contains('@') && r != "+acl" && r != "+flushall" && r != "+config"),
            "{rules:?}"
        );
        assert!(rules.contains(&"+client|setinfo".to_owned()));
        assert!(!acl_rules("billing", false).contains(&"+client|setinfo".to_owned()));
    }

    #[test]
    fn without_eval_a_client_has_all_other_permissions() {
        let (all, fewer) = (acl_rules("billing", true), acl_rules_without_eval("billing", true));
        assert_eq!(all.iter().filter(|rule| !fewer.contains(rule)).collect::<Vec<_>>(), ["+eval"]);
        assert!(fewer.contains(&"+evalsha".to_owned()));
    }
}
