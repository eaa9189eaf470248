//! The rules of the world on which the algorithm relies. Each can be broken, to show that it is needed.

/// A rule of the world, or of what a master does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A master that crashed or was flushed votes again only after the restart delay.
    RestartDelay,
    /// No master grants a lease that is longer than the restart delay.
    LongestTtl,
    /// Masters' clocks run as fast as holders' clocks, to within the drift.
    ClockRates,
    /// A master's clock jumps forward only if a majority of masters that do not jump have the keys that it loses.
    ClockJumps,
    /// Wall clocks of contenders agree to within the restart delay.
    WallClocks,
    /// There is one copy of each master.
    OneCopy,
    /// All clients know the same masters.
    SameMasters,
    /// A release touches only its own owner's key.
    ComparesOwner,
    /// Masters vote on the token.
    VotesOnTokens,
    /// A server has one vote, also where two addresses of a client lead to it.
    OneServerOneVote,
    /// A release that did not arrive is sent once the master is reachable again.
    ReleasesAreKept,
    /// Renewals and seeds carry the token to masters that have lost it.
    RenewalsCarryTokens,
}

/// Which rule is broken, and how much is checked then.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    pub broken: Option<Rule>,
    /// Two holders at once are tolerated: only the writes that a resource with token checks accepts are checked.
    pub guarded: bool,
    /// Wall clocks differ by more than the restart delay, and masters go away one after the other: only while the other
    /// masters that have a holder's key are enough for every majority to have one of them.
    pub rolling: bool,
}

impl Rules {
    pub fn without(rule: Rule) -> Self {
        Self { broken: Some(rule), ..Self::default() }
    }
}
