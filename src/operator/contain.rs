//! A panic in the reconcile of one object ends that reconcile, and nothing else.
//!
//! kube polls all reconciles of a controller in one task, and ends it with the first that panics. Then the process would end,
//! and with it the renewals of all locks, again and again for as long as that object exists.

use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;

use super::api_server::Error;

/// The result of `reconcile`, or [`Error::Panicked`]. The panic itself is in the log of the process.
///
/// What reconciles share stays usable: mutexes are entered also after a panic, and what they guard is changed by single
/// assignments.
pub(crate) async fn contain<T>(reconcile: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    AssertUnwindSafe(reconcile).catch_unwind().await.unwrap_or(Err(Error::Panicked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_of_its_own_kind() {
        assert_eq!(contain(async { Ok(7) }).await.ok(), Some(7));
        let panicked = contain(async { if true { panic!("broken") } else { Ok(()) } }).await.unwrap_err();
        assert_eq!(panicked.category().as_str(), "panic");
    }
}
