//! What this process remembers of a cluster besides its status: its own monotonic clock, its root key, and which users it has set.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use kube::ResourceExt;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::server::acl::Clients;
use super::server::fitness::Facts;
use crate::api::cluster::{MasterState, MasterStatus};
use crate::api::{RedisLockCluster, WatchedCluster};
use crate::contract::credentials::RootKey;
use crate::operator::watch::Watch;
use crate::operator::watch::locks::{ClusterObjectRef, reference_to};

/// Pause before a pod is created again after one that failed to start, and the longest: it doubles.
const SHORTEST_BACKOFF: Duration = Duration::from_secs(2);
const LONGEST_BACKOFF: Duration = Duration::from_secs(120);

/// What is remembered of one cluster. At the beginning of a term it is empty, as after a restart of the operator: then the status
/// alone decides.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// When this process last saw a master gone, by its monotonic clock.
    gone: HashMap<String, Instant>,
    /// Since when this process has known that a master waits for the end of its delay, by its monotonic clock.
    waiting: HashMap<String, Instant>,
    /// Since when this process has seen, without a break, that the master does not vote, by its monotonic clock.
    out: HashMap<String, Instant>,
    /// The version of the spec that the failed starts are of.
    generation: Option<i64>,
    /// Pods that could not be created, or ended before their servers were armed, in a row: by master.
    failed_starts: HashMap<String, FailedStarts>,
    /// The users that this process has set, by master: on which server process (its `run_id`), and for which clients.
    users: HashMap<String, (String, Clients)>,
    /// The root key, so that a Secret that is deleted by mistake can be restored.
    root_key: Option<RootKey>,
    /// When this process put new passwords of clients into force.
    rotated: Option<Instant>,
    /// The other operator that serves the cluster.
    served_by: Option<String>,
    /// Pods, by uid, whose servers the monitor found stuck, and how.
    stuck: HashMap<String, String>,
}

/// Failed starts of a master, in a row.
#[derive(Debug)]
struct FailedStarts {
    count: u32,
    last: Instant,
    /// UID of the pod that failed last; `None` if it could not be created.
    pod: Option<String>,
}

/// The memories of all clusters.
///
/// They are of one term: what this process saw in an earlier one says nothing of what another leader has done since.
#[derive(Debug, Default)]
pub(crate) struct Memories(std::sync::Mutex<OfTerm>);

/// The memories of a term.
#[derive(Debug, Default)]
struct OfTerm {
    term: u64,
    /// By the UID of the cluster.
    clusters: HashMap<String, OfCluster>,
}

/// The memory of a cluster, and which that is.
type OfCluster = (ClusterObjectRef, Arc<Mutex<Memory>>);

// === impl Memory ===

impl Memory {
    /// Time since this process last saw the master gone; `None` if it did not.
    pub(crate) fn since_gone(&self, master: &str) -> Option<Duration> {
        self.gone.get(master).map(Instant::elapsed)
    }

    /// Time since this process has known that the master waits for the end of its delay; `None` if it does not.
    pub(crate) fn since_waiting(&self, master: &str) -> Option<Duration> {
        self.waiting.get(master).map(Instant::elapsed)
    }

    /// The records show which masters wait for the end of their delay.
    pub(crate) fn note_waiting(&mut self, rows: &[MasterStatus]) {
        let waits = |row: &&MasterStatus| row.restart_not_before.is_some();
        let before = std::mem::take(&mut self.waiting);
        let since = |row: &MasterStatus| before.get(&row.name).copied().unwrap_or_else(Instant::now);
        self.waiting = rows.iter().filter(waits).map(|row| (row.name.clone(), since(row))).collect();
    }

    /// The master is gone, as of now.
    pub(crate) fn note_gone(&mut self, master: &str) {
        self.gone.insert(master.to_owned(), Instant::now());
    }

    /// For how long this process has seen that the master does not vote; `None` if it did not.
    pub(crate) fn out_for(&self, master: &str) -> Option<Duration> {
        self.out.get(master).map(Instant::elapsed)
    }

    /// Notes which masters do not vote, and forgets what was noted of those that are armed by now, or exist no more.
    pub(crate) fn note_states(&mut self, rows: &[MasterStatus]) {
        let is_out = |master: &String| rows.iter().any(|row| row.name == *master && row.state != MasterState::Armed);
        self.out.retain(|master, _| is_out(master));
        for row in rows.iter().filter(|row| row.state != MasterState::Armed) {
            self.out.entry(row.name.clone()).or_insert_with(Instant::now);
        }
        self.gone.retain(|master, _| is_out(master));
        self.failed_starts.retain(|master, _| is_out(master));
    }

    /// The spec has this version now. Pods of a changed one may be accepted, and may start: they are created at once.
    pub(crate) fn note_generation(&mut self, generation: Option<i64>) {
        if self.generation != generation {
            self.generation = generation;
            self.failed_starts.clear();
        }
    }

    /// Whether the last pods of the master could not be created, or ended before its server was armed.
    pub(crate) fn has_failed_to_start(&self, master: &str) -> bool {
        self.failed_starts.contains_key(master)
    }

    /// The pod `pod` of the master ended before its server was armed; `None`: it could not be created.
    pub(crate) fn note_failed_start(&mut self, master: &str, pod: Option<&str>) {
        let last = Instant::now();
        let first = || FailedStarts { count: 0, last, pod: None };
        let failed = self.failed_starts.entry(master.to_owned()).or_insert_with(first);
        // One that is seen again until its object is gone failed once.
        if pod.is_none() || failed.pod.as_deref() != pod {
            *failed = FailedStarts { count: failed.count.saturating_add(1), last, pod: pod.map(str::to_owned) };
        }
    }

    /// How long to wait before the pod of the master is created again; `None` if it may be now.
    pub(crate) fn backoff(&self, master: &str) -> Option<Duration> {
        let failed = self.failed_starts.get(master)?;
        let pause =
            SHORTEST_BACKOFF.saturating_mul(2_u32.saturating_pow(failed.count.saturating_sub(1))).min(LONGEST_BACKOFF);
        Some(pause.saturating_sub(failed.last.elapsed())).filter(|left| !left.is_zero())
    }

    /// This other operator serves the cluster. Returns whether that is news.
    pub(crate) fn note_served_by(&mut self, operator: &str) -> bool {
        self.served_by.replace(operator.to_owned()).as_deref() != Some(operator)
    }

    /// The pods whose servers are stuck now, by the monitor.
    pub(crate) fn note_stuck(&mut self, stuck: HashMap<String, String>) {
        self.stuck = stuck;
    }

    /// How the server of this pod is stuck, if it is.
    pub(crate) fn stuck(&self, pod_uid: &str) -> Option<&str> {
        self.stuck.get(pod_uid).map(String::as_str)
    }

    /// Whether this process has set the users of `clients` on this very server process.
    pub(crate) fn has_set_users(&self, master: &str, facts: &Facts, clients: &Clients) -> bool {
        self.users.get(master).is_some_and(|(run_id, set)| *run_id == facts.run_id && set == clients)
    }

    /// This process has set the users of `clients`.
    pub(crate) fn note_users(&mut self, master: &str, facts: &Facts, clients: &Clients) {
        self.users.insert(master.to_owned(), (facts.run_id.clone(), clients.clone()));
    }

    /// Time since this process put new passwords into force; `None` if it did not.
    pub(crate) fn since_rotation(&self) -> Option<Duration> {
        self.rotated.map(|at| at.elapsed())
    }

    /// New passwords come into force, as of now.
    pub(crate) fn note_rotation(&mut self) {
        self.rotated = Some(Instant::now());
    }

    /// The root key, as far as this process knows it.
    pub(crate) fn root_key(&self) -> Option<&RootKey> {
        self.root_key.as_ref()
    }

    /// This is the root key. One with which a server let the operator in (`is_proven`) replaces another; one that no server has
    /// accepted yet is better than none.
    pub(crate) fn note_root_key(&mut self, key: &RootKey, is_proven: bool) {
        if is_proven || self.root_key.is_none() {
            self.root_key = Some(key.clone());
        }
    }
}

// === impl Memories ===

impl Memories {
    /// The memory of `cluster` in this term. Memories of clusters that do not exist any more, and of earlier terms, are dropped.
    /// (A task of an earlier term gets an empty one of its own: it can write nothing any more.)
    pub(crate) fn of(
        &self,
        cluster: &RedisLockCluster,
        existing: &Watch<WatchedCluster>,
        term: u64,
    ) -> Arc<Mutex<Memory>> {
        let uid = cluster.uid().unwrap_or_default();
        let mut of_term = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if of_term.term > term {
            return Arc::default();
        }
        if of_term.term < term {
            *of_term = OfTerm { term, clusters: HashMap::new() };
        }
        let all = &mut of_term.clusters;
        if !all.contains_key(&uid) {
            let existing: HashSet<_> = existing.store().state().iter().filter_map(|cluster| cluster.uid()).collect();
            all.retain(|uid, _| existing.contains(uid));
        }
        let (_, memory) = all.entry(uid).or_insert_with(|| (reference_to(cluster), Arc::default()));
        Arc::clone(memory)
    }

    /// The root key of a cluster of this name that does not exist any more, if this process still knows it.
    pub(crate) async fn root_key_of(&self, gone: &ClusterObjectRef) -> Option<RootKey> {
        let memories: Vec<_> = {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.clusters.values().filter(|(cluster, _)| cluster == gone).map(|(_, memory)| Arc::clone(memory)).collect()
        };
        // More than one, and there is no telling which of them the pods had.
        let [memory] = memories.as_slice() else { return None };
        memory.lock().await.root_key().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fixtures;
    use crate::operator::watch::Watches;

    #[tokio::test(start_paused = true)]
    async fn a_master_that_waits_is_known_since_its_record_was_first_seen() {
        let mut memory = Memory::default();
        let rows = [crate::cluster::fixtures::quarantined()];
        for passed in [0, 3, 6] {
            memory.note_waiting(&rows);
            assert_eq!(memory.since_waiting("votes-0"), Some(Duration::from_secs(passed)));
            tokio::time::advance(Duration::from_secs(3)).await;
        }
        memory.note_waiting(&[crate::cluster::fixtures::armed()]);
        assert_eq!(memory.since_waiting("votes-0"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_fails_to_start_is_created_again_ever_more_rarely_until_the_master_is_armed() {
        let mut memory = Memory::default();
        assert_eq!(memory.backoff("votes-0"), None);
        for pause in [2, 4, 8, 16, 32, 64, 120, 120] {
            memory.note_failed_start("votes-0", None);
            assert_eq!(memory.backoff("votes-0"), Some(Duration::from_secs(pause)));
        }
        assert_eq!(memory.backoff("votes-1"), None);
        tokio::time::advance(Duration::from_secs(119)).await;
        assert_eq!(memory.backoff("votes-0"), Some(Duration::from_secs(1)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(memory.backoff("votes-0"), None);
        memory.note_states(&[MasterStatus::new("votes-0", MasterState::Armed)]);
        for _ in 0..3 {
            memory.note_failed_start("votes-0", Some("pod-1"));
            assert_eq!(memory.backoff("votes-0"), Some(Duration::from_secs(2)), "one pod fails once");
        }
        memory.note_failed_start("votes-0", Some("pod-2"));
        assert_eq!(memory.backoff("votes-0"), Some(Duration::from_secs(4)));
        memory.note_generation(Some(2));
        assert_eq!(memory.backoff("votes-0"), None, "the spec has changed");
        memory.note_failed_start("votes-0", None);
        memory.note_generation(Some(2));
        assert_eq!(memory.backoff("votes-0"), Some(Duration::from_secs(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn how_long_a_master_is_out_counts_from_when_it_was_first_seen_not_to_vote() {
        let mut memory = Memory::default();
        let second = Duration::from_secs(1);
        for (state, out_for) in [
            (MasterState::Armed, None),
            (MasterState::Terminating, Some(Duration::ZERO)),
            (MasterState::Quarantined, Some(second)),
            (MasterState::Starting, Some(2 * second)),
            (MasterState::Armed, None),
            (MasterState::Unreachable, Some(Duration::ZERO)),
        ] {
            memory.note_states(&[MasterStatus::new("votes-0", state)]);
            assert_eq!(memory.out_for("votes-0"), out_for, "{state:?}");
            tokio::time::advance(second).await;
        }
        memory.note_states(&[]);
        assert_eq!(memory.out_for("votes-0"), None);
    }

    #[tokio::test]
    async fn the_root_key_of_a_cluster_that_is_gone_is_known_by_its_name_as_long_as_one_had_that() {
        let (watches, mut feeds) = Watches::new();
        feeds.clusters.list([]);
        let (memories, first) = (Memories::default(), fixtures::cluster(3));
        let gone = reference_to(&first);
        assert_eq!(memories.root_key_of(&gone).await, None);
        let key = RootKey::generate();
        memories.of(&first, &watches.clusters, 1).lock().await.note_root_key(&key, true);
        assert_eq!(memories.root_key_of(&gone).await, Some(key));
        assert_eq!(memories.root_key_of(&ClusterObjectRef::new("votes").within("billing")).await, None);
        let mut second = fixtures::cluster(3);
        second.metadata.uid = Some("another".to_owned());
        memories.of(&second, &watches.clusters, 1);
        assert_eq!(memories.root_key_of(&gone).await, None, "the memory of the first is dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_term_begins_without_what_an_earlier_one_saw() {
        let (watches, mut feeds) = Watches::new();
        let cluster = fixtures::cluster(3);
        feeds.clusters.list([kube::core::DeserializeGuard(Ok(cluster.clone()))]);
        let memories = Memories::default();
        let first = memories.of(&cluster, &watches.clusters, 1);
        first.lock().await.note_gone("votes-0");
        let again = memories.of(&cluster, &watches.clusters, 1);
        assert_eq!(again.lock().await.since_gone("votes-0"), Some(Duration::ZERO));
        let second = memories.of(&cluster, &watches.clusters, 2);
        assert_eq!(second.lock().await.since_gone("votes-0"), None, "another leader may have brought it back since");
        second.lock().await.note_gone("votes-1");
        let late = memories.of(&cluster, &watches.clusters, 1);
        assert_eq!(late.lock().await.since_gone("votes-1"), None);
        late.lock().await.note_gone("votes-2");
        let third = memories.of(&cluster, &watches.clusters, 2);
        assert_eq!(
            third.lock().await.since_gone("votes-2"),
            None,
            "what a task of the former term notes counts no more"
        );
        assert!(third.lock().await.since_gone("votes-1").is_some());
    }
}
