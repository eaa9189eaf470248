//! What the world must keep for the algorithm to hold. Each rule can be broken, to see that it is needed.

/// A rule of the world, or of what a master does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A master that went away, or was flushed, votes again only after the restart delay.
    RestartDelay,
    /// No master gives a lease that is longer than the restart delay.
    LongestTtl,
    /// Masters' clocks run as fast as holders' clocks, to within the drift.
    ClockRates,
    /// Masters' clocks jump forward only where a majority of masters that did not jump holds what the jumped one forgets.
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
    /// Renewals and seeds carry the token to masters that have lost it.
    RenewalsCarryTokens,
}

/// Which rule is broken, and what is checked nevertheless.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    pub broken: Option<Rule>,
    /// Two holders at once are tolerated: only what a resource that checks tokens accepts is looked at.
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
