//! Whether the masters of a cluster must be spread over Kubernetes nodes, or only should. No IO.
//!
//! # Invariant
//! Where three Kubernetes nodes can take pods, a pod is never created such that it could make N-q+1 masters on one of them: with those
//! the quorum would go. By a skew of at most 1 over at least three, the fullest gets at most ⌊(N-1)/3⌋+1, which is less. With
//! fewer that is not possible for every N, and a master beside another is better than no master.

use k8s_openapi::api::core::v1::Node;

use crate::cluster::build::Spread;

/// How many Kubernetes nodes must be able to take pods before masters must be spread over them.
pub(crate) const ENOUGH: usize = 3;

/// How strictly to spread masters, where this many Kubernetes nodes [take pods](takes_pods).
pub(crate) fn spread_over(machines: usize) -> Spread {
    if machines >= ENOUGH { Spread::Required } else { Spread::Preferred }
}

/// Whether a master's pod can be scheduled to this Kubernetes node: it is ready, and has no taint against pods, of which a master
/// tolerates none.
pub(crate) fn takes_pods(kubernetes_node: &Node) -> bool {
    let conditions = kubernetes_node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready = conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let spec = kubernetes_node.spec.as_ref();
    let is_cordoned = spec.is_some_and(|spec| spec.unschedulable == Some(true));
    let mut taints = spec.into_iter().flat_map(|spec| spec.taints.iter().flatten());
    is_ready && !is_cordoned && taints.all(|taint| taint.effect == "PreferNoSchedule")
}

#[cfg(test)]
mod tests {
    use redlock_engine::quorum::Quorum;
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_ready_schedulable_machine_takes_pods() {
        let taint = |effect: &str| json!({"taints": [{"key": "a", "effect": effect}]});
        for (ready, spec, takes) in [
            ("True", json!({}), true),
            ("False", json!({}), false),
            ("Unknown", json!({}), false),
            ("True", json!({"unschedulable": true}), false),
            // A control plane's, or one of a group for other pods.
            ("True", taint("NoSchedule"), false),
            ("True", taint("NoExecute"), false),
            ("True", taint("PreferNoSchedule"), true),
        ] {
            let status = json!({"conditions": [
                {"type": "MemoryPressure", "status": "True"}, {"type": "Ready", "status": ready}]});
            let machine = json!({"metadata": {"name": "n1"}, "spec": spec, "status": status});
            assert_eq!(takes_pods(&serde_json::from_value(machine).unwrap()), takes, "{ready} {spec}");
        }
        assert!(!takes_pods(&Node::default()));
    }

    #[test]
    fn masters_must_be_spread_from_three_machines_on() {
        let all = [Spread::Preferred, Spread::Preferred, Spread::Preferred, Spread::Required, Spread::Required];
        assert_eq!([0, 1, 2, 3, 4].map(spread_over), all);
    }

    /// A pod may go where the masters would be at most 1 more than where they are fewest, so nowhere but where they are fewest.
    #[test]
    fn where_masters_must_be_spread_the_loss_of_one_machine_never_costs_the_quorum() {
        for masters in [3_usize, 5, 7] {
            // Wherever the others are: each machine has at least the fewest.
            for machines in ENOUGH..=9 {
                for fewest in (0..masters).take_while(|fewest| fewest * machines < masters) {
                    let left = masters - (fewest + 1);
                    assert!(Quorum::of(masters).is_reached_by(left), "{masters} on {machines}, {fewest} elsewhere");
                }
            }
        }
    }
}
