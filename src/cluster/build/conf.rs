//! The configuration file of a master's Redis server, and how much memory it may use.

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::contract::credentials::Password;
use crate::contract::names::{OPERATOR_USER, REDIS_PORT};

/// Where the configuration file is mounted, read-only.
pub(crate) const FOLDER: &str = "/etc/redlock";

/// Memory for keys where the container has no memory limit. A lock takes about 200 bytes, so this is enough for a million.
const MAX_MEMORY_WITHOUT_LIMIT: u64 = 192 << 20;
/// Redis cannot work with less.
const LEAST_MAX_MEMORY: u64 = 1 << 20;

/// Memory that a connection is counted with: 37 kB while it is made, and room for its replies.
const MEMORY_PER_CLIENT: u64 = 64 << 10;
/// Bounds of the number of connections, however much memory there is. Redis counts 10,000 by default.
const FEWEST_CLIENTS: u64 = 64;
const MOST_CLIENTS: u64 = 50_000;

/// The whole configuration file: the [`settings`], and the users.
///
/// The default user is off, and the users of clients are not in the file: until the master is armed, only the operator can log in.
pub(crate) fn redis_conf(operator: &Password, max_memory: u64) -> String {
    let digest = operator.digest();
    format!("{}user default off\nuser {OPERATOR_USER} on #{digest} ~* &* +@all\n", settings(max_memory))
}

/// The settings, which are those of every master of a cluster. Redis 7.0 and later and Valkey accept them.
///
/// - Nothing is stored on disk: a master that restarts is empty, and is kept out until every lease that it forgot is over. So its
///   folder is one that cannot be written and has no dump to load: that of this file. A volume of its own would make `kubectl drain`
///   ask for `--delete-emptydir-data`.
/// - `noeviction`: a full master refuses new locks. It does not forget held ones.
/// - What one client can take from the others is bounded. An argument has at most 1 MiB, which is the least that Redis can be set to, and
///   replies and messages that wait for their reader at most 8 and 1 MiB. Connections are as many as the memory carries, and where their
///   buffers together exceed three fifths of it, as by a request of very many arguments, the largest is closed: that is 38 KiB for each
///   of the most clients, so that these may all connect at once. A script that runs for 200 ms lets the operator in, to end it. A large
///   key is freed in the background.
/// - `zset-max-listpack-entries 0`: each vote updates a sorted set, 0.3 µs in a skip list and 1.45 µs in a listpack of 100 entries.
pub(super) fn settings(max_memory: u64) -> String {
    let max_clients = (max_memory / MEMORY_PER_CLIENT).clamp(FEWEST_CLIENTS, MOST_CLIENTS);
    format!(
        "port {REDIS_PORT}
bind * -::*
protected-mode no
dir {FOLDER}
save \"\"
appendonly no
maxmemory {max_memory}
maxmemory-policy noeviction
maxmemory-clients 60%
maxclients {max_clients}
client-query-buffer-limit 1mb
proto-max-bulk-len 1mb
client-output-buffer-limit normal 8mb 2mb 10
client-output-buffer-limit pubsub 1mb 256kb 10
busy-reply-threshold 200
lazyfree-lazy-user-del yes
zset-max-listpack-entries 0
databases 1
timeout 0
tcp-keepalive 60
loglevel notice
enable-debug-command no
enable-module-command no
"
    )
}

/// How many bytes of keys a server may keep: three quarters of the container's memory limit. The rest is for connections and
/// fragmentation, so that a full master replies with an error instead of being killed.
pub(crate) fn max_memory(resources: &ResourceRequirements) -> u64 {
    let limit = resources.limits.as_ref().and_then(|limits| limits.get("memory")).and_then(bytes);
    limit.map_or(MAX_MEMORY_WITHOUT_LIMIT, |limit| (limit / 4 * 3).max(LEAST_MAX_MEMORY))
}

/// A Kubernetes quantity as a number of bytes, rounded down; `None` if it is not a quantity.
pub(crate) fn bytes(quantity: &Quantity) -> Option<u64> {
    let text = quantity.0.trim();
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && !".+-".contains(c)).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    if !number.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let number: f64 = number.parse().ok()?;
    let factor = match unit {
        "" => 1.0,
        "m" => 1e-3,
        "u" => 1e-6,
        "n" => 1e-9,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 2_f64.powi(10),
        "Mi" => 2_f64.powi(20),
        "Gi" => 2_f64.powi(30),
        "Ti" => 2_f64.powi(40),
        "Pi" => 2_f64.powi(50),
        "Ei" => 2_f64.powi(60),
        _ => 10_f64.powi(unit.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    let value = number * factor;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "casts of floats saturate; not negative"
    )]
    value.is_finite().then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::contract::credentials::RootKey;

    fn limit(memory: &str) -> ResourceRequirements {
        let limits = BTreeMap::from([("memory".to_owned(), Quantity(memory.to_owned()))]);
        ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() }
    }

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, value) in [
            ("256Mi", Some(268_435_456)),
            ("1Gi", Some(1_073_741_824)),
            ("128974848", Some(128_974_848)),
            ("129e6", Some(129_000_000)),
            ("129M", Some(129_000_000)),
            ("1.5k", Some(1_500)),
            ("50m", Some(0)),
            ("1E", Some(1_000_000_000_000_000_000)),
            ("", None),
            ("Mi", None),
            ("-1", None),
            ("12 Mi", None),
            ("12MB", None),
            ("1.2.3", None),
        ] {
            assert_eq!(bytes(&Quantity(text.to_owned())), value, "{text:?}");
        }
    }

    #[test]
    fn keys_leave_a_quarter_of_the_limit_free() {
        assert_eq!(max_memory(&limit("256Mi")), 192 << 20);
        assert_eq!(max_memory(&limit("1")), LEAST_MAX_MEMORY);
        assert_eq!(max_memory(&ResourceRequirements::default()), MAX_MEMORY_WITHOUT_LIMIT);
    }

    #[test]
    fn the_password_is_in_the_file_as_a_digest_only() {
        let password = RootKey::generate().operator_password();
        let conf = redis_conf(&password, 1 << 20);
        assert!(!conf.contains(password.expose()));
        assert!(conf.contains(&format!("user operator on #{} ~* &* +@all\n", password.digest())));
        assert!(conf.contains("user default off\n"));
    }

    #[test]
    fn connections_are_bounded_by_the_memory() {
        for (max_memory, clients) in [(1 << 20, 64), (192 << 20, 3_072), (1 << 30, 16_384), (1 << 40, 50_000)] {
            assert!(settings(max_memory).contains(&format!("\nmaxclients {clients}\n")), "{max_memory}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reading_of_quantities_panic(text in ".{0,24}") {
            let _ = bytes(&Quantity(text));
        }
    }
}
