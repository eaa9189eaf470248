//! Which fault comes when, on what, and for how long: all drawn from a seed. What processes do meanwhile is not, so a seed brings back
//! the faults and not the run.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A server is killed as by the kernel.
    KillServer,
    /// A master's pod is deleted.
    DeletePod,
    /// A master's pod is deleted by force.
    ForceDeletePod,
    /// A machine's kubelet stands still, and its masters' pods are deleted by force.
    FreezeMachine,
    /// A machine is cut off from the network.
    CutMachine,
    /// A machine loses its power, and is started again.
    PowerOff,
    /// A Kubernetes node is drained.
    Drain,
    /// The spec of the cluster changes, and with it all masters.
    Roll,
    /// A master's memory is filled up.
    Fill,
    /// A master loses its data.
    Flush,
    /// An operator is killed.
    KillOperator,
    /// The cluster is deleted, and made again at once.
    Retire,
    /// A client runs endless scripts on all masters.
    HostileTenant,
    /// The API server stands still.
    StopApiServer,
    /// The sidecar that leads is killed.
    KillLeader,
    /// The pod of the sidecar that leads is deleted.
    DeleteLeader,
    /// A `DistributedLock` is deleted, and made again.
    RemakeLock,
}

/// A fault that was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    /// Which master, machine or lock, as far as there are so many.
    pub(crate) target: usize,
    /// How long it lasts, if it lasts.
    pub(crate) length: Duration,
}

/// A storm.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) length: Duration,
    /// The faults of the masters and of what they run on, one after the other.
    pub(crate) kinds: Vec<Kind>,
}

// === impl Kind ===

impl Kind {
    /// Faults of masters and of what they run on. Those that leave much of the cluster alone come more often.
    pub(crate) const STORM: [Self; 20] = [
        Self::KillServer,
        Self::KillServer,
        Self::KillServer,
        Self::DeletePod,
        Self::DeletePod,
        Self::ForceDeletePod,
        Self::ForceDeletePod,
        Self::FreezeMachine,
        Self::FreezeMachine,
        Self::CutMachine,
        Self::CutMachine,
        Self::PowerOff,
        Self::Drain,
        Self::Roll,
        Self::Fill,
        Self::Flush,
        Self::KillOperator,
        Self::Retire,
        Self::HostileTenant,
        Self::StopApiServer,
    ];
    /// Those of the short form: nothing that other tests on the same machines would notice for long.
    pub(crate) const SHORT: [Self; 6] =
        [Self::KillServer, Self::DeletePod, Self::ForceDeletePod, Self::Flush, Self::KillOperator, Self::Retire];
    /// Faults of contenders, so that locks change hands.
    pub(crate) const CONTENDERS: [Self; 3] = [Self::KillLeader, Self::DeleteLeader, Self::RemakeLock];

    /// For how many milliseconds it lasts.
    fn lasts(self) -> std::ops::RangeInclusive<u64> {
        match self {
            Self::FreezeMachine | Self::CutMachine => 4_000..=20_000,
            Self::PowerOff => 1_000..=8_000,
            Self::StopApiServer => 2_000..=15_000,
            Self::Fill | Self::HostileTenant => 1_000..=6_000,
            _ => 0..=0,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}

// === impl Plan ===

impl Plan {
    /// The faults of a step: one of the masters, sometimes two at once.
    pub(crate) fn faults(&self, step: u64) -> Vec<Fault> {
        let mut random = self.random(2 * step);
        let count = if random.random_bool(0.3) { 2 } else { 1 };
        (0..count).map(|_| draw(&mut random, &self.kinds)).collect()
    }

    /// The pause after a step, and whether the next fault waits until all masters but one vote: otherwise there would be no majority
    /// for most of the time, and nothing could go wrong.
    pub(crate) fn pause(&self, step: u64) -> (Duration, bool) {
        let mut random = self.random(2 * step);
        (Duration::from_millis(random.random_range(500..=5_000)), random.random_bool(0.8))
    }

    /// The fault of a contender.
    pub(crate) fn contender_fault(&self, step: u64) -> Fault {
        draw(&mut self.random(2 * step + 1), &Kind::CONTENDERS)
    }

    fn random(&self, step: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed.wrapping_shl(32).wrapping_add(step))
    }
}

fn draw(random: &mut StdRng, kinds: &[Kind]) -> Fault {
    let kind = *kinds.choose(random).expect("a kind of fault");
    let target = random.random_range(0..1_000);
    Fault { kind, target, length: Duration::from_millis(random.random_range(kind.lasts())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(seed: u64) -> Plan {
        Plan { seed, length: Duration::ZERO, kinds: Kind::STORM.to_vec() }
    }

    #[test]
    fn a_seed_brings_back_the_same_faults_and_another_brings_others() {
        let faults = |seed| (0..50).flat_map(|step| plan(seed).faults(step)).collect::<Vec<_>>();
        assert_eq!(faults(1), faults(1));
        assert_ne!(faults(1), faults(2));
    }

    #[test]
    fn each_kind_is_drawn() {
        let all: Vec<_> = (0..400).flat_map(|step| plan(7).faults(step)).map(|fault| fault.kind).collect();
        assert!(Kind::STORM.iter().all(|kind| all.contains(kind)));
    }
}
