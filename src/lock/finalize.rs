//! The finalizer: added before anything is taken, removed when it is given back or surely ends by itself.

use kube::api::{Patch, PatchParams};
use kube::{Api, Resource as _};
use serde_json::{Value, json};

use super::decide::FINALIZER;
use super::error::{Error, within};
use super::notices::Notice;
use super::state::Ending;
use super::{Subject, Watched};
use crate::api::DistributedLock;
use redlock_engine::Released;

/// Adds the finalizer, unless `object` has it.
pub async fn add(api: &Api<DistributedLock>, subject: &Subject, object: &Watched) -> Result<(), Error> {
    let finalizers = object.meta().finalizers.clone().unwrap_or_default();
    if finalizers.iter().any(|f| f == FINALIZER) {
        return Ok(());
    }
    // Tested, so that another's finalizer that was added meanwhile is not lost.
    let patch = if finalizers.is_empty() {
        json!([
            {"op": "test", "path": "/metadata/finalizers", "value": null},
            {"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]},
        ])
    } else {
        json!([
            {"op": "test", "path": "/metadata/finalizers", "value": finalizers},
            {"op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER},
        ])
    };
    send(api, subject, "add the finalizer", patch).await
}

/// Removes the finalizer. An object that is gone has none.
pub async fn remove(api: &Api<DistributedLock>, subject: &Subject, object: &Watched) -> Result<(), Error> {
    let finalizers = object.meta().finalizers.as_deref().unwrap_or_default();
    let Some(index) = finalizers.iter().position(|f| f == FINALIZER) else { return Ok(()) };
    let at = format!("/metadata/finalizers/{index}");
    let patch = json!([{"op": "test", "path": at, "value": FINALIZER}, {"op": "remove", "path": at}]);
    match send(api, subject, "remove the finalizer", patch).await {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    }
}

/// What people are told of how a lock ended.
#[must_use]
pub fn notice(ending: Option<Ending>, may_be_held: bool) -> Option<Notice> {
    let expires = "too few masters could be asked: what they hold of the lock ends by itself after its ttl";
    let may_be_left = match ending {
        Some(Ending::Released(Released::Freed)) => return Some(Notice::Released),
        Some(Ending::Released(Released::AlreadyExpired)) => false,
        Some(Ending::Released(Released::Unknown)) => true,
        Some(Ending::Nothing | Ending::Abandoned) | None => may_be_held,
    };
    may_be_left.then(|| Notice::LeftToExpire(expires.to_owned()))
}

async fn send(api: &Api<DistributedLock>, subject: &Subject, action: &'static str, patch: Value) -> Result<(), Error> {
    let Value::Array(mut operations) = patch else { return Err(Error::Internal("a patch is a list of operations")) };
    // The object of the same name that was created since is another.
    operations.insert(0, json!({"op": "test", "path": "/metadata/uid", "value": subject.uid}));
    let patch = serde_json::from_value(Value::Array(operations))
        .map_err(|_| Error::Internal("a JSON patch of this program is one"))?;
    within(action, api.patch_metadata(&subject.name, &PatchParams::default(), &Patch::Json::<()>(patch))).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_given_back_is_told_and_nothing_else_is_made_up() {
        let released = |r| Some(Ending::Released(r));
        assert_eq!(notice(released(Released::Freed), true), Some(Notice::Released));
        assert_eq!(notice(released(Released::AlreadyExpired), true), None);
        assert_eq!(notice(None, false), None);
        assert_eq!(notice(Some(Ending::Nothing), false), None, "a contender has nothing to give back");
        for (ending, held) in [(released(Released::Unknown), false), (None, true)] {
            assert!(matches!(notice(ending, held), Some(Notice::LeftToExpire(_))), "{ending:?}");
        }
    }
}
