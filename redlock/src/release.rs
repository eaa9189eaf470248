//! Releases a claim on all masters: at once, and again as soon as it can be where one did not confirm it.

use std::future::Future;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::{Instant, sleep_until};

use crate::claim::Claim;
use crate::error::MasterError;
use crate::master::{Master, ReleaseAnswer};
use crate::masters::{Answers, Masters};
use crate::pending_releases::PendingRelease;
use crate::protocol::release::{ReleaseTally, Released};

/// Pending releases that are sent to a master at once.
const BATCH: usize = 256;

/// Releases a claim on all masters, and lets them tell the first contender in the queue. Ends as soon as a majority has
/// answered. Of `doubtful` masters it is not known whether the claim has reached them.
pub(crate) async fn release<M: Master>(
    masters: &Arc<Masters<M>>,
    claim: &Arc<Claim>,
    doubtful: Vec<usize>,
) -> Released {
    let answers = ask_release(masters, claim, 0..masters.count(), true);
    let mut releasing = Releasing { masters, claim, doubtful, wake: true, answers };
    let mut tally = ReleaseTally::new(masters.quorum());
    let released = loop {
        let Some(answer) = releasing.hear().await else { break Released::Unknown };
        if let Some(released) = tally.hear(answer) {
            break released;
        }
    };
    if tally.is_handed_on() {
        masters.hand_overs.note(claim.key(), Instant::now());
    }
    released
}

/// Releases what these masters may have of a claim, in the background. The requests are on their way when this returns,
/// so that a next attempt on the same connections comes after them. Of `doubtful` masters it
/// is not known whether the claim has reached them: it may still come where the release finds no key.
pub(crate) fn release_in_background<M: Master>(
    masters: &Arc<Masters<M>>,
    claim: &Arc<Claim>,
    indexes: Vec<usize>,
    doubtful: Vec<usize>,
    wake: bool,
) {
    // Outside a runtime (its shutdown drops leases) nothing can be sent: the keys expire.
    if tokio::runtime::Handle::try_current().is_err() {
        return;
    }
    let answers = ask_release(masters, claim, indexes, wake);
    let mut releasing = Releasing { masters, claim, doubtful, wake, answers };
    // Takes the answers that are there at once; above all it sends the requests.
    while let Some(Some(_)) = releasing.hear().now_or_never() {}
}

/// Asks some masters to delete what they have of a claim.
fn ask_release<M: Master, I: IntoIterator<Item = usize>>(
    masters: &Masters<M>,
    claim: &Arc<Claim>,
    indexes: I,
    wake: bool,
) -> Answers<impl Future<Output = Heard> + Send + 'static + use<M, I>> {
    let deadline = masters.call_deadline(Instant::now());
    masters.ask(indexes, |masters, index| {
        let claim = Arc::clone(claim);
        async move { (index, masters[index].release(&claim, wake, deadline).await) }
    })
}

/// A release under way. If it is dropped before all masters have answered, it goes on in the background.
struct Releasing<'a, M: Master, F: Future<Output = Heard> + Send + 'static> {
    masters: &'a Arc<Masters<M>>,
    claim: &'a Arc<Claim>,
    /// Masters that the claim may still reach by a connection that has broken.
    doubtful: Vec<usize>,
    wake: bool,
    answers: Answers<F>,
}

/// What a master answered, by its index.
type Heard = (usize, Result<ReleaseAnswer, MasterError>);

impl<M: Master, F: Future<Output = Heard> + Send + 'static> Releasing<'_, M, F> {
    /// The next answer, `None` once all have answered.
    async fn hear(&mut self) -> Option<Option<ReleaseAnswer>> {
        let heard = self.answers.next().await?;
        Some(usable(self.masters, self.claim, &self.doubtful, self.wake, heard))
    }
}

impl<M: Master, F: Future<Output = Heard> + Send + 'static> Drop for Releasing<'_, M, F> {
    fn drop(&mut self) {
        if self.answers.is_empty() || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let (masters, claim, wake) = (Arc::clone(self.masters), Arc::clone(self.claim), self.wake);
        let (mut answers, doubtful) = (std::mem::take(&mut self.answers), std::mem::take(&mut self.doubtful));
        self.masters.spawn(async move {
            while let Some(heard) = answers.next().await {
                usable(&masters, &claim, &doubtful, wake, heard);
            }
        });
    }
}

/// The answer, if it is usable. One that is not leaves the release pending.
fn usable<M: Master>(
    masters: &Arc<Masters<M>>,
    claim: &Arc<Claim>,
    doubtful: &[usize],
    wake: bool,
    (index, answer): Heard,
) -> Option<ReleaseAnswer> {
    let release = || PendingRelease::new(claim, wake, Instant::now());
    match &answer {
        Ok(ReleaseAnswer::NotOwner) if doubtful.contains(&index) => {
            keep_pending(masters, index, release().after_no_key(Instant::now()));
        }
        Ok(_) => {}
        Err(_) => keep_pending(masters, index, release()),
    }
    answer.ok()
}

// === pending releases ===

/// Keeps a release that a master has not confirmed, until it can be sent again. Such a master would keep the lock from
/// everybody until its TTL is over.
fn keep_pending<M: Master>(masters: &Arc<Masters<M>>, index: usize, release: PendingRelease) {
    if masters.pending_releases[index].keep(release) {
        let shared = Arc::clone(masters);
        masters.spawn(async move { send_pending(&shared, index).await });
    }
}

/// Sends a master its pending releases whenever it can be reached, until none is left. A shutdown lets it try once more.
///
/// They may come late and in any order: a release deletes the key only of its own owner, compared whole, and each claim
/// has an owner of its own. So a late one finds its own key, or changes nothing of a later claim.
async fn send_pending<M: Master>(masters: &Arc<Masters<M>>, index: usize) {
    let (master, pending) = (&masters.all()[index], &masters.pending_releases[index]);
    while let Some((due, end)) = pending.times(Instant::now()) {
        let is_last = tokio::select! {
            biased;
            () = masters.closing().cancelled() => true,
            () = async { sleep_until(due).await; master.reachable().await } => false,
            () = pending.added() => continue,
            () = sleep_until(end) => continue,
        };
        let now = Instant::now();
        let (batch, deadline) = if is_last {
            (pending.take_all(now), masters.call_deadline(now))
        } else {
            (pending.take(BATCH, now), masters.patient_deadline(now))
        };
        // Made together, they are written together.
        let mut answers: FuturesUnordered<_> = batch
            .into_iter()
            .map(async |release| {
                let answer = master.release(&release.claim, release.wake, deadline).await;
                (release, answer)
            })
            .collect();
        while let Some((release, answer)) = answers.next().await {
            match answer {
                Ok(ReleaseAnswer::Deleted | ReleaseAnswer::HandedOn) => {}
                Ok(ReleaseAnswer::NotOwner) => pending.put_back(release.after_no_key(Instant::now())),
                Err(error) => pending.put_back(release.after_failure(&error, Instant::now())),
            }
        }
        if is_last {
            return pending.give_up();
        }
    }
}
