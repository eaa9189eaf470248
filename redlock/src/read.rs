//! Reads a lock on all masters: who holds it, as a majority shows it.

use std::sync::Arc;

use futures::stream::StreamExt as _;
use tokio::time::Instant;

use crate::error::{Error, MasterError};
use crate::fence::Token;
use crate::key::LockKey;
use crate::master::{Master, Reading};
use crate::masters::Masters;
use crate::protocol::reading::Observation;

/// Reads who holds the lock.
pub(crate) async fn read<M: Master>(masters: &Arc<Masters<M>>, key: &LockKey) -> Result<Observation, Error> {
    let sent_at = Instant::now();
    let readings = read_all(masters, key).await;
    let failed = (0..).zip(&readings).filter_map(|(index, reading)| Some((index, reading.as_ref().err()?.clone())));
    Observation::of(masters.quorum(), &readings, masters.name_failures(failed), sent_at.elapsed())
}

/// The error of an attempt that lost its vote: who holds the lock, where that can be read.
pub(crate) async fn contended<M: Master>(masters: &Arc<Masters<M>>, key: &LockKey) -> Error {
    match read(masters, key).await {
        Ok(Observation { holder: None, .. }) => Error::Split,
        Ok(Observation { holder, remaining, .. }) => Error::Contended { holder, remaining },
        Err(_) => Error::Contended { holder: None, remaining: None },
    }
}

/// What each master knows of the lock. Takes note of the tokens that they show. The largest that there is counts for this
/// lock alone: it must not use up the tokens of others.
pub(crate) async fn read_all<M: Master>(masters: &Arc<Masters<M>>, key: &LockKey) -> Vec<Result<Reading, MasterError>> {
    let deadline = masters.call_deadline(Instant::now());
    let mut answers = masters.ask(0..masters.count(), |masters, index| {
        let key = key.clone();
        async move { (index, masters[index].read(&key, deadline).await) }
    });
    let mut readings = vec![Err(MasterError::Timeout); masters.count()];
    while let Some((index, reading)) = answers.next().await {
        if let Ok(Reading { fence: Some(token), .. }) = reading
            && token.get() < Token::MAX
        {
            masters.observe_token(key, token);
        }
        readings[index] = reading;
    }
    readings
}
