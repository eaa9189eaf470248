//! The condition types of both kinds, and how a list of conditions is updated.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// `RedisLockCluster`: a majority of the masters votes, so locks can be granted.
pub const AVAILABLE: &str = "Available";
/// `RedisLockCluster`: every master votes.
pub const READY: &str = "Ready";
/// `RedisLockCluster`: something is in progress (a master starts, or is in quarantine).
pub const PROGRESSING: &str = "Progressing";
/// Both kinds: the spec can be carried out.
pub const CONFIG_VALID: &str = "ConfigValid";
/// `DistributedLock`: the lock is held (with `spec.holder`: by this resource). `Unknown` if it cannot be proven.
pub const HELD: &str = "Held";
/// `DistributedLock`: its cluster exists and a majority of the masters answers.
pub const CLUSTER_AVAILABLE: &str = "ClusterAvailable";

/// The types that the operator sets. Those of others are left to them.
const OWN: [&str; 6] = [AVAILABLE, READY, PROGRESSING, CONFIG_VALID, HELD, CLUSTER_AVAILABLE];

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// It cannot be proven either way.
    Unknown,
}

impl Truth {
    /// The word in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Truth {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// Drops the conditions that others set, so that an apply of the rest does not take over their fields.
pub(crate) fn retain_own(conditions: &mut Vec<Condition>) {
    conditions.retain(|condition| OWN.contains(&condition.type_.as_str()));
}

/// Sets the condition `type_`, keeping `lastTransitionTime` where the status word stays the same (the Kubernetes API
/// convention), so that an unchanged condition compares equal and is not written again.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    type_: &str,
    truth: Truth,
    reason: &str,
    message: impl Into<String>,
    generation: Option<i64>,
    now: Timestamp,
) {
    let known = conditions.iter().position(|c| c.type_ == type_);
    let since = known.map(|at| &conditions[at]).filter(|c| c.status == truth.as_str());
    let condition = Condition {
        type_: type_.to_owned(),
        status: truth.as_str().to_owned(),
        reason: reason.to_owned(),
        message: message.into(),
        observed_generation: generation,
        last_transition_time: since.map_or(Time(now), |c| c.last_transition_time.clone()),
    };
    match known {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let mut all = Vec::new();
        set_condition(&mut all, HELD, Truth::False, "Contended", "held by x", Some(1), at(10));
        set_condition(&mut all, HELD, Truth::False, "NoQuorum", "2/5 answer", Some(1), at(20));
        assert_eq!(all[0].last_transition_time, Time(at(10)));
        assert_eq!(all[0].reason, "NoQuorum");
        set_condition(&mut all, HELD, Truth::True, "Acquired", "", Some(2), at(30));
        assert_eq!(all[0].last_transition_time, Time(at(30)));
        assert_eq!(all.len(), 1);
    }

    #[test]
    fn conditions_of_others_are_not_applied() {
        let mut all = Vec::new();
        for type_ in ["example.com/Audited", HELD] {
            set_condition(&mut all, type_, Truth::True, "Test", "", None, at(10));
        }
        retain_own(&mut all);
        assert_eq!(all.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(), [HELD]);
    }
}
