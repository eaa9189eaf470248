//! Which replica of the operator decides: a `Lease` in its namespace.

use tokio::sync::watch;

/// Whether this process leads. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Leadership {
    state: watch::Receiver<bool>,
}

impl Leadership {
    /// A leadership that follows `state`. (The lease task owns the sender.)
    #[must_use]
    pub fn new(state: watch::Receiver<bool>) -> Self {
        Self { state }
    }

    /// Whether this process leads right now.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        *self.state.borrow()
    }
}
