//! Releases a claim on all masters, and again where one did not answer in time.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::stream::StreamExt as _;
use tokio::time::Instant;

use crate::claim::Claim;
use crate::error::MasterError;
use crate::master::{Master, ReleaseAnswer};
use crate::masters::{Answers, Masters};
use crate::protocol::release::{ReleaseTally, Released};

/// Pauses before a release is sent again to masters that did not answer.
const RELEASE_PAUSES: [Duration; 3] =
    [Duration::from_millis(20), Duration::from_millis(100), Duration::from_millis(500)];

/// Releases a claim on all masters, and lets them tell the first contender in the queue. Ends as soon as a majority has
/// answered.
pub(crate) async fn release<M: Master>(masters: &Arc<Masters<M>>, claim: &Arc<Claim>) -> Released {
    let mut answers = ask_release(masters, claim, 0..masters.count(), true);
    let mut tally = ReleaseTally::new(masters.quorum());
    let released = loop {
        let Some((index, answer)) = answers.next().await else { break Released::Unknown };
        if let Some(released) = tally.hear(index, answer) {
            break released;
        }
    };
    let is_handed_on = tally.is_handed_on();
    finish_release(masters, claim, true, answers, tally);
    if is_handed_on {
        masters.hand_overs.note(claim.key(), Instant::now());
    }
    released
}

/// Releases what these masters may have of a claim, in the background. The requests are on their way when this returns,
/// so that a next attempt on the same connections comes after them.
pub(crate) fn release_in_background<M: Master>(
    masters: &Arc<Masters<M>>,
    claim: &Arc<Claim>,
    indexes: Vec<usize>,
    wake: bool,
) {
    // Outside a runtime (its shutdown drops leases) nothing can be sent: the keys expire.
    if tokio::runtime::Handle::try_current().is_err() {
        return;
    }
    let mut answers = ask_release(masters, claim, indexes, wake);
    let mut tally = ReleaseTally::new(masters.quorum());
    // Takes the answers that are there at once; above all it sends the requests.
    let _ = hear_rest(&mut answers, &mut tally).now_or_never();
    finish_release(masters, claim, wake, answers, tally);
}

/// Asks some masters to delete what they have of a claim.
fn ask_release<M: Master, I: IntoIterator<Item = usize>>(
    masters: &Masters<M>,
    claim: &Arc<Claim>,
    indexes: I,
    wake: bool,
) -> Answers<impl Future<Output = (usize, Result<ReleaseAnswer, MasterError>)> + Send + 'static + use<M, I>> {
    let deadline = masters.call_deadline(Instant::now());
    masters.ask(indexes, |masters, index| {
        let claim = Arc::clone(claim);
        async move { (index, masters[index].release(&claim, wake, deadline).await) }
    })
}

/// Waits in the background for the rest of a release's answers. Masters that did not answer in time are asked again, up
/// to three times: such a master would keep the lock from everybody until its TTL is over.
fn finish_release<M: Master, F>(
    masters: &Arc<Masters<M>>,
    claim: &Arc<Claim>,
    wake: bool,
    mut answers: Answers<F>,
    mut tally: ReleaseTally,
) where
    F: Future<Output = (usize, Result<ReleaseAnswer, MasterError>)> + Send + 'static,
{
    if answers.is_empty() && !tally.has_silent() {
        return;
    }
    let (shared, claim) = (Arc::clone(masters), Arc::clone(claim));
    masters.spawn(async move {
        let masters = shared;
        hear_rest(&mut answers, &mut tally).await;
        for pause in RELEASE_PAUSES {
            if !tally.has_silent() {
                return;
            }
            let Ok(_permit) = masters.releases_again.try_acquire() else { return };
            if masters.unless_closing(tokio::time::sleep(pause)).await.is_err() {
                return;
            }
            let mut answers = ask_release(&masters, &claim, tally.take_silent(), wake);
            hear_rest(&mut answers, &mut tally).await;
        }
    });
}

/// Counts the rest of the answers. Loses none when dropped.
async fn hear_rest<F>(answers: &mut Answers<F>, tally: &mut ReleaseTally)
where
    F: Future<Output = (usize, Result<ReleaseAnswer, MasterError>)>,
{
    while let Some((index, answer)) = answers.next().await {
        tally.hear(index, answer);
    }
}
