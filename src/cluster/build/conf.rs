//! The configuration file of a master's Redis server, and how much memory it may use.

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::contract::credentials::Password;
use crate::contract::names::{OPERATOR_USER, REDIS_PORT};

/// Memory for keys where the container has no memory limit. A lock takes about 200 bytes, so this is enough for a million.
const MAX_MEMORY_WITHOUT_LIMIT: u64 = 192 << 20;
/// Redis cannot work with less.
const LEAST_MAX_MEMORY: u64 = 1 << 20;

/// The whole configuration file.
///
/// - Nothing is stored on disk: a master that restarts is empty, and is kept out until every lease that it forgot is over.
/// - The default user is off, and the users of clients are not in the file: until the master is armed, only the operator can log
///   in.
/// - `noeviction`: a full master refuses new locks. It does not forget held ones.
pub(crate) fn redis_conf(operator: &Password, max_memory: u64) -> String {
    let digest = operator.digest();
    format!(
        "port {REDIS_PORT}
bind * -::*
protected-mode no
dir /data
save \"\"
appendonly no
maxmemory {max_memory}
maxmemory-policy noeviction
timeout 0
tcp-keepalive 60
loglevel notice
enable-debug-command no
enable-module-command no
user default off
user {OPERATOR_USER} on #{digest} ~* &* +@all
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

    proptest! {
        #[test]
        fn no_text_makes_the_reading_of_quantities_panic(text in ".{0,24}") {
            let _ = bytes(&Quantity(text));
        }
    }
}
