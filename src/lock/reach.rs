//! Asks which clusters this process reaches: the [Lease](crate::operator::lease) goes to a process that reaches one.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use redlock_engine::LockKey;
use tokio::time::{MissedTickBehavior, interval};

use super::connections::Engine;
use super::reconciler::Reconciler;
use crate::operator::claim::Served;
use crate::operator::watch::locks::reference_to;

/// How often each cluster is asked.
const PERIOD: Duration = Duration::from_secs(2);
/// The lock that is read. Nobody holds it; any would do.
const LOCK: &str = "reach";

/// Asks, for ever.
pub(crate) async fn run(reconciler: &Reconciler) {
    let Ok(key) = LockKey::new(&reconciler.ctx.namespace, LOCK) else {
        // Not with the name of a namespace. Without it the Lease is not given away.
        return std::future::pending().await;
    };
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let engines = engines(reconciler).await;
        reconciler.ctx.reach.note(engines.len(), answering(&engines, &key).await);
    }
}

/// Of how many clusters a majority answers, within one call timeout of each.
async fn answering(engines: &[Arc<Engine>], key: &LockKey) -> usize {
    let answers = join_all(engines.iter().map(|engine| engine.client().read(key))).await;
    answers.iter().filter(|answer| answer.is_ok()).count()
}

/// The engines of the clusters that have locks.
async fn engines(reconciler: &Reconciler) -> Vec<Arc<Engine>> {
    let watches = &reconciler.ctx.watches;
    let mut engines = Vec::new();
    for cluster in watches.clusters.store().state() {
        let Ok(cluster) = &cluster.0 else { continue };
        let is_elsewhere = matches!(reconciler.ctx.claims.served(&cluster.metadata), Served::By(_));
        if is_elsewhere || watches.lock_index.namespaces_of(&reference_to(cluster)).is_empty() {
            continue;
        }
        // Whatever is missing, it is not the way to the masters.
        if let Ok(Ok(engine)) = reconciler.connections.engine(cluster).await {
            engine.settled().await;
            engines.push(engine);
        }
    }
    engines
}

#[cfg(test)]
mod tests {
    use redlock_test_servers::server::{Server, eventually};

    use super::*;
    use crate::lock::keeper::server_tests::engine;

    #[tokio::test]
    async fn a_cluster_is_reached_while_a_majority_of_its_masters_answers() {
        let (mut servers, others) = (Server::start_armed(3).await, Server::start_armed(1).await);
        let (engines, key) = ([engine(&servers), engine(&others)], LockKey::new("redlock-system", LOCK).unwrap());
        for (crashed, reached) in [(None, 2), (Some(0), 2), (Some(1), 1)] {
            if let Some(index) = crashed {
                servers[index].crash().await;
            }
            eventually("so many clusters", async || (answering(&engines, &key).await == reached).then_some(())).await;
        }
    }
}
