//! Adoption: continues a grant that another process made.

use std::sync::Arc;

use futures::stream::StreamExt as _;
use tokio::time::Instant;

use crate::claim::Claim;
use crate::error::Error;
use crate::key::LockKey;
use crate::lease::{Grant, Lease, LeaseOptions};
use crate::master::Master;
use crate::masters::Masters;
use crate::owner::Owner;
use crate::protocol::renewal::{RenewalTally, RenewalVerdict};
use crate::watchdog::{self, Granted};

/// Renews the grant once, and holds it if a majority still has it. Seeds nothing: this process has no validity of its
/// own yet that would permit it.
pub(crate) async fn adopt<M: Master>(
    masters: &Arc<Masters<M>>,
    key: &LockKey,
    owner: &Owner,
    options: &LeaseOptions,
) -> Result<Lease, Error> {
    options.validate()?;
    masters.check_open()?;
    let claim = Arc::new(Claim::new(key.clone(), owner.clone(), options.ttl));
    masters.observe_token(key, owner.token());
    let sent_at = Instant::now();
    let mut answers = masters.ask_renew(&claim, sent_at);
    let mut tally = RenewalTally::new(masters.quorum());
    while let Some((index, answer)) = answers.next().await {
        if tally.hear(index, answer) == RenewalVerdict::Taken {
            return Err(Error::Lost { held_elsewhere: tally.without_key(), masters: masters.count() });
        }
    }
    if !tally.is_renewed() {
        return Err(masters.no_quorum(tally.votes() + tally.without_key(), tally.take_failures()));
    }
    let grant = Grant::new(sent_at, options.ttl, tally.votes());
    if !grant.is_valid_at(Instant::now()) {
        return Err(Error::Expired);
    }
    // The other process may live.
    let options = LeaseOptions { is_shared: true, ..options.clone() };
    Ok(watchdog::start(masters, Granted { claim, grant, late: None, unsettled: Vec::new() }, &options))
}
