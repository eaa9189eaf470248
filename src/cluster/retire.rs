//! Retirement: what becomes of the masters of a cluster that is deleted, or is gone already.
//!
//! # Invariant
//! No pod of a deleted cluster votes beside one of a later cluster of the same name. So each server is stripped of its votes, or
//! seen to have ended, and when that was is written into a tombstone, before the objects are let go. A pod of which neither is
//! known keeps its finalizer: its end is seen later, and until then its place stays empty.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::{Resource as _, ResourceExt as _};

use super::clock::now;
use super::decide::master::later;
use super::observed::{ObservedPod, Stage};
use super::server::Admin;
use super::tombstones;
use crate::api::RedisLockCluster;
use crate::api::cluster::{MasterState, MasterStatus};
use crate::contract::credentials::RootKey;
use crate::contract::names;
use crate::operator::api_server::{Category, Error};
use crate::operator::{Context, finalizer};

/// The longest restart delay that a cluster may have.
const LONGEST_DELAY: Duration = Duration::from_secs(48 * 3600);

/// What became of the server of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It never had a vote.
    NeverArmed,
    /// It has no vote since then.
    Since(Timestamp),
    /// It may still vote.
    Unknown,
}

/// Retires the cluster of this name. `cluster`: its object, which is being deleted; `None` if there is none any more. `remembered`: its
/// root key, as far as this process knows it, for where its Secret is gone already.
pub(crate) async fn retire(
    ctx: &Context,
    (namespace, name): (&str, &str),
    cluster: Option<&RedisLockCluster>,
    remembered: Option<&RootKey>,
) -> Result<(), Error> {
    let labels = format!("{},{}={name}", names::MASTER_SELECTOR, names::CLUSTER_LABEL);
    let pods = ctx.api.list::<Pod>(namespace, &labels).await?;
    if cluster.is_none() && pods.is_empty() {
        return Ok(());
    }
    let secret = ctx.api.get::<Secret>(namespace, &names::auth_secret(name)).await?;
    let key = secret.filter(|secret| names::labels_name(secret.labels(), name));
    let key = key.and_then(|secret| RootKey::from_secret(&secret).ok()).or_else(|| remembered.cloned());
    let former = tombstones::of(ctx, namespace, name, now()).await?.rows;
    let status = cluster.and_then(|cluster| cluster.status.as_ref());
    let recorded = recorded(status.map(|status| status.masters.as_slice()).unwrap_or_default(), &former);

    let mut ends = Vec::new();
    for pod in &pods {
        let observed = ObservedPod::of(pod);
        let row = recorded.iter().find(|row| row.name == pod.name_any());
        ctx.api.require_leadership()?;
        ends.push((pod, end_of(&observed, row, key.as_ref()).await));
    }
    let rows = tombstone(&recorded, &ends, |pod| {
        cluster.map_or_else(|| delay_on(pod), |cluster| cluster.spec.restart_delay())
    });
    if !rows.is_empty() && rows != former {
        match tombstones::write(ctx, namespace, name, Some(&rows), now()).await {
            // The operator goes together with the cluster.
            Err(error) if error.category() == Category::NamespaceTerminating => {
                tracing::warn!(
                    namespace,
                    cluster = name,
                    "no tombstone: the operator's own namespace is being deleted"
                );
            }
            result => result?,
        }
    }
    for (pod, end) in ends {
        if pod.meta().deletion_timestamp.is_none() {
            if end == End::Unknown {
                // A pod that was restored, or had its finalizer taken off, would vanish without its end being seen.
                finalizer::add::<Pod>(&ctx.api, pod.meta(), names::MASTER_FINALIZER).await?;
            }
            ctx.api.delete::<Pod>(namespace, &pod.name_any(), &pod.uid().unwrap_or_default()).await?;
        }
        if end != End::Unknown {
            finalizer::remove::<Pod>(&ctx.api, pod.meta(), names::MASTER_FINALIZER).await?;
        }
    }
    if let Some(cluster) = cluster {
        finalizer::remove::<RedisLockCluster>(&ctx.api, cluster.meta(), names::CLUSTER_FINALIZER).await?;
        tracing::info!(namespace, cluster = name, "the cluster is retired");
    }
    Ok(())
}

/// Strips the server of a pod, unless it has ended, and says since when it has no vote.
async fn end_of(pod: &ObservedPod, row: Option<&MasterStatus>, key: Option<&RootKey>) -> End {
    let row = row.filter(|row| row.pod_uid.as_ref() == Some(&pod.uid));
    if row.is_some_and(|row| row.run_id.is_none() && row.restart_not_before.is_none()) {
        return End::NeverArmed;
    }
    if let Some(row) = row
        && row.state == MasterState::Quarantined
        && let Some(crashed) = &row.last_crash_time
    {
        return End::Since(crashed.0);
    }
    let is_stripped = match (&pod.ip, key) {
        (Some(ip), Some(key)) if pod.stage != Stage::Ended => strip(ip, &pod.uid, key).await,
        _ => false,
    };
    if is_stripped || matches!(pod.stage, Stage::Ended | Stage::DeclaredDead) {
        End::Since(now())
    } else {
        End::Unknown
    }
}

async fn strip(ip: &str, pod_uid: &str, key: &RootKey) -> bool {
    let stripped = async {
        let mut admin = Admin::connect_to_pod(ip, names::REDIS_PORT, pod_uid, &key.operator_password()).await?;
        admin.disarm("its cluster was deleted").await
    };
    match stripped.await {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(ip, %error, "a master cannot be stripped of its votes");
            false
        }
    }
}

/// How long leases on the server of a pod may last whose cluster is gone.
fn delay_on(pod: &Pod) -> Duration {
    let seconds = pod.annotations().get(names::RESTART_DELAY_ANNOTATION).and_then(|text| text.parse().ok());
    seconds.map_or(LONGEST_DELAY, Duration::from_secs)
}

/// The records with which a cluster of the same name begins.
fn tombstone(
    recorded: &[MasterStatus],
    ends: &[(&Pod, End)],
    delay_of: impl Fn(&Pod) -> Duration,
) -> Vec<MasterStatus> {
    let without_pod = recorded.iter().filter(|row| ends.iter().all(|(pod, _)| pod.name_any() != row.name));
    let mut rows: Vec<_> = without_pod
        .filter_map(|row| match row.state {
            MasterState::Quarantined | MasterState::Vanished => Some(row.clone()),
            // It was armed, and nobody saw how it ended.
            _ if row.run_id.is_some() => Some(MasterStatus { state: MasterState::Vanished, ..row.clone() }),
            _ => None,
        })
        .collect();
    for (pod, end) in ends {
        let name = pod.name_any();
        let before = recorded.iter().find(|row| row.name == name);
        let (observed, delay) = (ObservedPod::of(pod), delay_of(pod));
        let machine =
            before.filter(|row| row.pod_uid.as_ref() == Some(&observed.uid)).and_then(|row| row.boot_id.clone());
        let row = MasterStatus {
            pod_uid: Some(observed.uid),
            node_name: observed.node_name,
            boot_id: machine,
            crashes: before.map_or(0, |row| row.crashes),
            ..MasterStatus::new(&name, MasterState::Vanished)
        };
        // The delay of a pod before this one may be longer.
        let earlier = before.and_then(|row| row.restart_not_before.as_ref()).map(|until| until.0);
        rows.push(match end {
            End::NeverArmed => match before.filter(|row| row.restart_not_before.is_some()) {
                Some(before) => MasterStatus { state: MasterState::Quarantined, ..before.clone() },
                None => continue,
            },
            End::Since(since) => MasterStatus {
                state: MasterState::Quarantined,
                last_crash_time: Some(MicroTime(*since)),
                restart_not_before: Some(MicroTime(
                    earlier.map_or(later(*since, delay), |until| until.max(later(*since, delay))),
                )),
                message: Some("a former cluster of this name was deleted: leases on it may still be held".to_owned()),
                ..row
            },
            End::Unknown => MasterStatus {
                // Something that is no process: without it the record would say that the pod never was armed.
                run_id: before.and_then(|row| row.run_id.clone()).or_else(|| Some(String::new())),
                ..row
            },
        });
    }
    rows.sort_by(|one, other| one.name.cmp(&other.name));
    rows
}

/// What is recorded of each master: in the status of the cluster, or in the tombstone. This is done again and again until all objects
/// are gone, and the status is not written any more: what the tombstone says of the same pod is newer.
fn recorded(status: &[MasterStatus], former: &[MasterStatus]) -> Vec<MasterStatus> {
    let buried =
        |row: &MasterStatus| former.iter().find(|former| former.name == row.name && former.pod_uid == row.pod_uid);
    let mut rows: Vec<_> = status.iter().map(|row| buried(row).unwrap_or(row).clone()).collect();
    let others = former.iter().filter(|former| status.iter().all(|row| row.name != former.name));
    rows.extend(others.cloned());
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::fixtures::{DELAY, armed, at, quarantined, row};

    fn pod(name: &str, uid: &str) -> Pod {
        serde_json::from_value(
            json!({"metadata": {"name": name, "uid": uid}, "spec": {"nodeName": "n1", "containers": []}}),
        )
        .unwrap()
    }

    #[test]
    fn each_master_leaves_what_is_known_of_its_end() {
        let named = |row: MasterStatus, name: &str| MasterStatus { name: name.to_owned(), ..row };
        let machine = |row: MasterStatus| MasterStatus { boot_id: Some("boot-1".to_owned()), ..row };
        let recorded = [
            machine(armed()),
            machine(named(armed(), "votes-1")),
            named(quarantined(), "votes-2"),
            named(MasterStatus { pod_uid: Some("pod-3".to_owned()), ..row(MasterState::Starting) }, "votes-3"),
            named(row(MasterState::Starting), "votes-4"),
        ];
        let pods = [pod("votes-0", "pod-1"), pod("votes-1", "pod-1"), pod("votes-3", "pod-3")];
        let ends = [(&pods[0], End::Since(at(10))), (&pods[1], End::Unknown), (&pods[2], End::NeverArmed)];
        let rows = tombstone(&recorded, &ends, |_| DELAY);
        let kept: Vec<_> = rows
            .iter()
            .map(|row| {
                (
                    row.name.as_str(),
                    row.state,
                    row.restart_not_before.as_ref().map(|until| until.0),
                    row.boot_id.as_deref(),
                )
            })
            .collect();
        assert_eq!(
            kept,
            [
                ("votes-0", MasterState::Quarantined, Some(at(75)), Some("boot-1")),
                ("votes-1", MasterState::Vanished, None, Some("boot-1")),
                ("votes-2", MasterState::Quarantined, Some(at(65)), Some("boot-1")),
            ]
        );
        assert_eq!((rows[1].node_name.as_deref(), rows[1].run_id.as_deref()), (Some("n1"), Some("run-1")));
    }

    #[test]
    fn a_tombstone_keeps_what_it_says_of_masters_whose_objects_are_gone_meanwhile() {
        let named = |row: MasterStatus, name: &str| MasterStatus { name: name.to_owned(), ..row };
        let status = [named(armed(), "votes-0"), named(armed(), "votes-1")];
        let pods = [pod("votes-0", "pod-1"), pod("votes-1", "pod-1")];
        let stripped = [(&pods[0], End::Since(at(10))), (&pods[1], End::Since(at(11)))];
        let first = tombstone(&recorded(&status, &[]), &stripped, |_| DELAY);
        // One object is gone, then both: the status says still that both are armed.
        for left in [&stripped[1..], &[]] {
            assert_eq!(tombstone(&recorded(&status, &first), left, |_| DELAY), first);
        }
        // Without a status, as where the object of the cluster is gone.
        assert_eq!(tombstone(&recorded(&[], &first), &[], |_| DELAY), first);
    }

    #[test]
    fn an_armed_master_whose_object_vanished_before_is_buried_as_vanished() {
        let rows = tombstone(&[armed()], &[], |_| DELAY);
        assert_eq!(rows, [MasterStatus { state: MasterState::Vanished, ..armed() }]);
    }

    #[test]
    fn a_cluster_deleted_again_and_again_never_shortens_a_delay() {
        let pods = [pod("votes-0", "pod-9")];
        let until = MasterStatus { restart_not_before: Some(MicroTime(at(500))), ..armed() };
        let rows = tombstone(&[until], &[(&pods[0], End::Since(at(10)))], |_| DELAY);
        assert_eq!(rows[0].restart_not_before, Some(MicroTime(at(500))));
    }

    #[tokio::test]
    async fn what_is_known_already_is_not_asked_again() {
        let observed = ObservedPod::of(&pod("votes-0", "pod-1"));
        assert_eq!(end_of(&observed, Some(&quarantined()), None).await, End::Since(at(0)));
        assert_eq!(end_of(&observed, Some(&armed()), None).await, End::Unknown, "without a way to ask it");
        let never = MasterStatus { pod_uid: Some("pod-1".to_owned()), ..row(MasterState::Starting) };
        assert_eq!(end_of(&observed, Some(&never), None).await, End::NeverArmed);
        let ended = ObservedPod { stage: Stage::Ended, ..observed };
        assert!(matches!(end_of(&ended, None, None).await, End::Since(_)));
    }
}
