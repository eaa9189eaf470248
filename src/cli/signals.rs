//! SIGTERM and SIGINT, by which a command is asked to end.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both signals.
pub(super) struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    /// Catches both from now on.
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    /// The name of the next one.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }
}
