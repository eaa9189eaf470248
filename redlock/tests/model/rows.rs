//! The searches: worlds with all rules, and worlds with one left out.

use crate::rules::{Adoption, Bounds, Clocks, Rules};
use crate::state::Promise;
use crate::steps::Event;

/// One search.
pub struct Row {
    pub group: Group,
    /// Its name: the world, or the rule that is left out.
    pub title: &'static str,
    /// What goes wrong, or why nothing does.
    pub remark: &'static str,
    pub rules: Rules,
    pub bounds: Bounds,
    /// The promises that are checked.
    pub promises: &'static [Promise],
    /// Which of them must be broken.
    pub breaks: Option<Promise>,
    /// Events that must happen in some state.
    pub happens: &'static [Event],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// With all rules.
    All,
    /// One rule is left out.
    LeftOut,
    /// An assumption does not hold.
    Assumption,
    /// A way to adopt the grant of another process.
    Adoption,
}

/// Promises of every schedule.
const PROMISED: &[Promise] =
    &[Promise::Exclusive, Promise::TokensRise, Promise::NothingRevived, Promise::NoWriteAfterLater];

/// Two clients that ask once each. Only delay and loss go wrong.
const BOUNDS: Bounds = Bounds {
    ttl: 2,
    attempts: [1, 1],
    rounds: [0, 0],
    deaths: 0,
    successions: 0,
    pauses: false,
    crashes: 0,
    rolling: false,
    late: 1,
    writes: 0,
    clocks: Clocks::Agree,
};
const TWICE: Bounds = Bounds { attempts: [2, 1], ..BOUNDS };
const RENEWAL: Bounds = Bounds { rounds: [1, 0], ..BOUNDS };
const RESTART: Bounds = Bounds { crashes: 1, ..BOUNDS };
/// A restart under a holder that has renewed, as one master after the other is restarted.
const ROLLING: Bounds = Bounds { crashes: 1, rolling: true, late: 0, clocks: Clocks::Any, ..RENEWAL };
const FENCING: Bounds = Bounds { clocks: Clocks::Any, writes: 1, ..BOUNDS };
const SUCCESSION: Bounds = Bounds { successions: 1, ..BOUNDS };
const PAUSE: Bounds = Bounds { pauses: true, ..SUCCESSION };

const ROW: Row = Row {
    group: Group::All,
    title: "",
    remark: "",
    rules: Rules::ALL,
    bounds: BOUNDS,
    promises: PROMISED,
    breaks: None,
    happens: &[Event::Granted],
};
const LEFT_OUT: Row = Row { group: Group::LeftOut, breaks: Some(Promise::Exclusive), ..ROW };
const ADOPTION: Row = Row { group: Group::Adoption, bounds: PAUSE, happens: &[Event::Adopted], ..ROW };

/// All searches of an ordinary run.
pub fn rows() -> Vec<Row> {
    [all_rules(), one_left_out(), assumptions(), adoptions()].into_iter().flatten().collect()
}

fn all_rules() -> Vec<Row> {
    use Event::{
        Granted, GrantedAfterRestart, HandedOverAfterDeath, LateRequest, Released, Renewed, SeedTaken,
        StaleTokenRefused, StaleWriteRefused, TooLate, VoteOfRestarted,
    };
    vec![
        Row {
            title: "voting",
            bounds: TWICE,
            happens: &[Granted, Released, LateRequest, TooLate, StaleTokenRefused],
            ..ROW
        },
        Row { title: "renewal", bounds: RENEWAL, happens: &[Granted, Renewed, SeedTaken, Released], ..ROW },
        Row {
            title: "death of a holder",
            bounds: Bounds { deaths: 1, ..BOUNDS },
            happens: &[Granted, HandedOverAfterDeath],
            ..ROW
        },
        Row {
            title: "restarts of masters",
            bounds: Bounds { crashes: 2, ..BOUNDS },
            happens: &[Granted, VoteOfRestarted, GrantedAfterRestart],
            ..ROW
        },
        Row {
            title: "fencing, whatever the wall clocks show",
            bounds: FENCING,
            happens: &[Granted, StaleTokenRefused, StaleWriteRefused],
            ..ROW
        },
        Row {
            title: "a restart under a holder, whatever the wall clocks show",
            bounds: ROLLING,
            happens: &[Granted, Renewed, SeedTaken, VoteOfRestarted, GrantedAfterRestart],
            ..ROW
        },
    ]
}

fn one_left_out() -> Vec<Row> {
    let all = Rules::ALL;
    vec![
        Row {
            title: "restart delay",
            remark: "A master that restarted and is armed at once votes for a second holder.",
            rules: Rules { restart_delay: false, ..all },
            bounds: RESTART,
            ..LEFT_OUT
        },
        Row {
            title: "arming",
            remark: "A master that restarted or was flushed unseen votes for a second holder.",
            rules: Rules { arming: false, ..all },
            bounds: RESTART,
            ..LEFT_OUT
        },
        Row {
            title: "validity from before the question was sent",
            remark: "A holder that counts from the answer still counts on keys that have expired.",
            rules: Rules { validity_from_send: false, ..all },
            ..LEFT_OUT
        },
        Row {
            title: "compare on release",
            remark: "The end of a failed attempt deletes the key of the holder.",
            rules: Rules { compare_on_release: false, ..all },
            bounds: TWICE,
            ..LEFT_OUT
        },
        Row {
            title: "compare on renewal",
            remark: "A holder counts masters that have another's key in its own majority.",
            rules: Rules { compare_on_renew: false, ..all },
            bounds: RENEWAL,
            ..LEFT_OUT
        },
        Row {
            title: "majority of the configured masters",
            remark: "Each of two clients has a majority of the masters that it reaches.",
            rules: Rules { majority_of_configured: false, ..all },
            ..LEFT_OUT
        },
        Row {
            title: "renewing and seeding only while the own validity runs",
            remark: "A lease that had ended is held again, with a token below that of a grant in between.",
            rules: Rules { seed_while_valid: false, extend_while_valid: false, ..all },
            bounds: RENEWAL,
            promises: &[Promise::Exclusive, Promise::TokensRise],
            breaks: Some(Promise::TokensRise),
            ..LEFT_OUT
        },
        Row {
            title: "of these, seeding alone",
            remark: "Nothing: the key of a late seed extends no validity that has run out, and expires.",
            rules: Rules { seed_while_valid: false, ..all },
            bounds: Bounds { late: 0, ..RENEWAL },
            breaks: None,
            ..LEFT_OUT
        },
        Row {
            title: "the masters' vote on the fencing token",
            remark: "A later grant has a smaller token.",
            rules: Rules { fencing_vote: false, ..all },
            bounds: FENCING,
            breaks: Some(Promise::TokensRise),
            ..LEFT_OUT
        },
        Row {
            title: "renewals and seeds that carry the token",
            remark: "A master that has the key by a seed does not know the token, and one that restarts forgets it: both vote for a smaller one.",
            rules: Rules { renewals_carry_token: false, ..all },
            bounds: ROLLING,
            breaks: Some(Promise::TokensRise),
            ..LEFT_OUT
        },
        Row {
            title: "refusal of smaller tokens by the guarded resource",
            remark: "The write of a paused holder arrives after that of the next holder.",
            rules: Rules { guard: false, ..all },
            bounds: FENCING,
            breaks: Some(Promise::NoWriteAfterLater),
            ..LEFT_OUT
        },
        Row {
            title: "drawing the token no earlier than validity counts from",
            remark: "A token that was drawn long before is accepted by a master that has lost the larger token.",
            rules: Rules { token_drawn_at_send: false, ..all },
            bounds: RESTART,
            breaks: Some(Promise::TokensRise),
            ..LEFT_OUT
        },
    ]
}

fn assumptions() -> Vec<Row> {
    vec![
        Row {
            group: Group::Assumption,
            title: "wall clocks agree, where a master loses its data",
            remark: "The master that two majorities share has forgotten the larger token. One master is enough.",
            bounds: Bounds { clocks: Clocks::Any, ..RESTART },
            breaks: Some(Promise::TokensRise),
            ..ROW
        },
        Row {
            group: Group::Assumption,
            title: "the guarded resource has seen the later token",
            remark: "It can refuse the write of a paused holder only once the next holder has written.",
            bounds: FENCING,
            promises: &[Promise::NoWriteAfterGrant],
            breaks: Some(Promise::NoWriteAfterGrant),
            ..ROW
        },
    ]
}

fn adoptions() -> Vec<Row> {
    let by = |adoption| Rules { adoption, ..Rules::ALL };
    vec![
        Row {
            title: "renew it under the same owner",
            remark: "Its former process, paused until then, finds that its lease has ended, and releases the successor's lease with it.",
            rules: by(Adoption::ByRenewal),
            breaks: Some(Promise::Exclusive),
            ..ADOPTION
        },
        Row {
            title: "the same, and a process releases nothing once its lease has ended",
            remark: "A late `SET` of its acquisition arrives after another was granted the lock and has released it.",
            rules: by(Adoption::ByRenewal),
            bounds: SUCCESSION,
            breaks: Some(Promise::TokensRise),
            ..ADOPTION
        },
        Row {
            title: "the same, and masters refuse a `SET` once the validity of its sender has ended",
            remark: "A late seed does what the late `SET` did.",
            rules: by(Adoption::AcquisitionsEnd),
            bounds: Bounds { rounds: [1, 0], late: 0, ..SUCCESSION },
            breaks: Some(Promise::TokensRise),
            ..ADOPTION
        },
        Row {
            title: "the same, and they then refuse a seed too",
            remark: "Nothing, but each master must know by its own clock when the validity of another process ends.",
            rules: by(Adoption::RequestsEnd),
            bounds: SUCCESSION,
            ..ADOPTION
        },
        Row {
            title: "renew it, which a master that has seen a larger token refuses; nothing is released",
            remark: "Nothing while masters keep their data. But if another has asked meanwhile, nobody can adopt the grant.",
            rules: by(Adoption::FenceVote),
            bounds: SUCCESSION,
            ..ADOPTION
        },
        Row {
            title: "replace its token by a new one, on which the masters vote",
            remark: "Nothing, whatever the former process still sends or releases.",
            rules: by(Adoption::NewToken),
            happens: &[Event::Adopted, Event::AdoptedBesideContender],
            ..ADOPTION
        },
    ]
}

/// Searches of more states, with all rules unless stated. They take minutes, and run only when asked for.
pub fn wide_rows() -> Vec<Row> {
    vec![
        Row { title: "two attempts of both clients", bounds: Bounds { attempts: [2, 2], late: 0, ..BOUNDS }, ..ROW },
        Row { title: "a TTL of three ticks, two late requests", bounds: Bounds { ttl: 3, late: 2, ..TWICE }, ..ROW },
        Row { title: "both clients renew", bounds: Bounds { rounds: [1, 1], late: 0, ..BOUNDS }, ..ROW },
        Row { title: "two renewals", bounds: Bounds { rounds: [2, 0], ..BOUNDS }, ..ROW },
        Row { title: "renewal and a restart", bounds: Bounds { crashes: 1, ..RENEWAL }, ..ROW },
        Row {
            title: "two restarts under a holder, one after the other",
            bounds: Bounds { crashes: 2, rounds: [2, 0], ..ROLLING },
            ..ROW
        },
        Row { title: "three restarts, two attempts", bounds: Bounds { crashes: 3, late: 0, ..TWICE }, ..ROW },
        Row { title: "fencing, two attempts", bounds: Bounds { attempts: [2, 1], late: 0, ..FENCING }, ..ROW },
        Row { title: "a successor and a restart", bounds: Bounds { crashes: 1, ..PAUSE }, ..ROW },
        Row { title: "a successor and a renewal", bounds: Bounds { rounds: [1, 0], late: 0, ..SUCCESSION }, ..ROW },
        Row {
            title: "a fence vote of successors, and a restart",
            rules: Rules { adoption: Adoption::FenceVote, ..Rules::ALL },
            bounds: Bounds { crashes: 1, ..SUCCESSION },
            promises: &[Promise::TokensRise],
            breaks: Some(Promise::TokensRise),
            ..ROW
        },
    ]
}
