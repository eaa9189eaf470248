//! The rules of the algorithm, each of which can be left out, and the bounds of the model.

use crate::state::CLIENTS;

/// How a successor of a dead process adopts its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adoption {
    /// Renews it, and holds it if a majority still has it.
    ByRenewal,
    /// The same, and masters refuse to set the key for an acquisition once the validity of its sender has ended.
    AcquisitionsEnd,
    /// The same, and they then refuse a seed too.
    RequestsEnd,
    /// Renews it, but a master that has seen a larger token refuses.
    FenceVote,
    /// Asks the masters that still have its key to replace the token by a new one, on which they vote as for each grant.
    NewToken,
}

impl Adoption {
    /// Whether masters refuse to set the key for an acquisition once the validity of its sender has ended.
    pub fn acquisitions_end(self) -> bool {
        matches!(self, Self::AcquisitionsEnd | Self::RequestsEnd)
    }
}

/// The rules that the world follows.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools)] // Each is an independent switch.
pub struct Rules {
    /// A master that restarted is armed only when every lease that it may have forgotten has ended.
    pub restart_delay: bool,
    /// A master that restarted unseen, or was flushed, has no vote: its marker names another process, or is gone.
    pub arming: bool,
    /// Validity counts from before the request was sent.
    pub validity_from_send: bool,
    /// A release deletes its own key only.
    pub compare_on_release: bool,
    /// A renewal extends its own key only.
    pub compare_on_renew: bool,
    /// A majority is a majority of the configured masters.
    pub majority_of_configured: bool,
    /// A holder seeds only while its validity runs.
    pub seed_while_valid: bool,
    /// A renewal that succeeds after the end of validity extends nothing.
    pub extend_while_valid: bool,
    /// A vote needs a token that is larger than all that the master has seen.
    pub fencing_vote: bool,
    /// A token is drawn no earlier than validity counts from.
    pub token_drawn_at_send: bool,
    /// A master that renews or takes a seed has seen the holder's token from then on.
    pub renewals_carry_token: bool,
    /// The guarded resource refuses tokens that are smaller than the largest it has seen.
    pub guard: bool,
    pub adoption: Adoption,
}

impl Rules {
    pub const ALL: Self = Self {
        restart_delay: true,
        arming: true,
        validity_from_send: true,
        compare_on_release: true,
        compare_on_renew: true,
        majority_of_configured: true,
        seed_while_valid: true,
        extend_while_valid: true,
        fencing_vote: true,
        token_drawn_at_send: true,
        renewals_carry_token: true,
        guard: true,
        adoption: Adoption::NewToken,
    };
}

/// How the wall clocks from which tokens are drawn relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// Each token is larger than those proposed before.
    Agree,
    /// A token may be any number.
    Any,
}

/// The bounds of the model.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// TTL of every lease, in ticks; also the restart delay.
    pub ttl: u8,
    /// How often each client asks for the lock.
    pub attempts: [u8; CLIENTS],
    /// How often each client renews.
    pub rounds: [u8; CLIENTS],
    /// Processes that die for good.
    pub deaths: u8,
    /// Processes that have a successor: 0 or 1.
    pub successions: u8,
    /// Whether a process that has a successor may be merely paused. It releases its lease when it finds that it has ended.
    pub pauses: bool,
    /// Restarts of masters, which lose all their data.
    pub crashes: u8,
    /// Whether a master restarts only while all others are armed and have the key of a holder.
    pub rolling: bool,
    /// Requests that may be under way at one time although their sender does not wait for them any more.
    pub late: u32,
    /// Writes of each client to the guarded resource: 0 or 1.
    pub writes: u8,
    pub clocks: Clocks,
}
