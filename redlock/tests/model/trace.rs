//! The steps to a broken promise, in words.

use std::fmt::Write as _;

use crate::explore::Violation;
use crate::state::{Kind, MASTERS, Phase, Promise, State, TOKENS, Token};
use crate::steps::{Fate, Release, Step};

/// The client of each token.
type Owners = [Option<usize>; TOKENS as usize + 1];

/// The steps of a violation, a line each, with the broken promise at the end.
pub fn tell(start: &State, violation: &Violation) -> Vec<String> {
    let mut owners = Owners::default();
    let mut before = *start;
    let mut lines = Vec::new();
    for &(step, after) in &violation.steps {
        if let Step::Draw(client, token) | Step::Acquire(client, token) | Step::Adopt(client, token) = step {
            owners[usize::from(token)] = Some(client);
        }
        let mut line = words(&owners, &before, step, &after);
        for client in 0..before.clients.len() {
            // A successor has its former process's token.
            let heir = before.clients[client].phase == Phase::Adopting;
            let holder = if heir { format!("{}'s successor", name(client)) } else { name(client).to_owned() };
            let (was, is) = (&before.clients[client], &after.clients[client]);
            if was.phase != Phase::Holding && is.phase == Phase::Holding {
                let _ = write!(line, "; **{holder} holds the lock** with token {}", is.token);
            } else if is.phase == Phase::Holding && is.left > was.left {
                let again = if was.left == 0 { " again" } else { "" };
                let _ = write!(line, "; **{holder} holds the lock{again}**, renewed");
            }
        }
        lines.push(line);
        before = after;
    }
    if let Some(last) = lines.last_mut() {
        let _ = write!(last, ": {}", wrong(violation.promise));
    }
    lines
}

/// A broken promise in words.
pub fn wrong(promise: Promise) -> &'static str {
    match promise {
        Promise::Exclusive => "two holders",
        Promise::TokensRise => "a token below one that was granted before",
        Promise::NothingRevived => "a lease that had ended is held again",
        Promise::NoWriteAfterLater => "a write of an earlier grant after one of a later grant",
        Promise::NoWriteAfterGrant => "a write of an earlier grant after a later grant",
    }
}

fn name(client: usize) -> &'static str {
    ["A", "B"][client]
}

fn words(owners: &Owners, before: &State, step: Step, after: &State) -> String {
    let of = |token: Token| owners[usize::from(token)].map_or("nobody", name);
    match step {
        Step::Tick => "a tick passes".to_owned() + &expiries(owners, before, after),
        Step::Draw(client, token) => format!("{} draws token {token}", name(client)),
        Step::Acquire(client, token) => format!("{} asks for the lock with token {token}", name(client)),
        Step::Deliver { master, kind, token, slow } => {
            let (was, is) = (&before.masters[master], &after.masters[master]);
            let (client, master) = (of(token), master + 1);
            let has = if was.owner == 0 { "no key".to_owned() } else { format!("{}'s key", of(was.owner)) };
            let late = before.clients.iter().all(|c| c.current() != token);
            let late = if late && kind != Kind::Release { "late, " } else { "" };
            let done = match kind {
                _ if !was.is_armed() => format!("master {master} is not armed and refuses {client}"),
                Kind::Acquire if was.owner != 0 => format!("{late}master {master} refuses {client}: it has {has}"),
                Kind::Acquire if was.fence >= token => {
                    format!("{late}master {master} sets {client}'s key, but has seen a larger token")
                }
                Kind::Acquire => format!("{late}master {master} sets {client}'s key"),
                Kind::Renew if was.owner == 0 => format!("{late}master {master} has no key of {client} to renew"),
                Kind::Renew if is.left >= was.left && is.owner == was.owner && was.owner == token => {
                    format!("{late}master {master} renews {client}'s key")
                }
                Kind::Renew => format!("{late}master {master}, asked by {client} to renew, has {has}"),
                Kind::Seed if is.owner == token => format!("{late}master {master} takes the seed: {client}'s key"),
                Kind::Seed => format!("{late}master {master} refuses the seed: it has {has}"),
                Kind::Release if token == before.inherited && was.owner != is.owner => {
                    format!(
                        "{client}'s former process finds that its lease has ended and deletes {has} on master {master}"
                    )
                }
                Kind::Release if was.owner != is.owner => {
                    format!("a release that {client} had sent deletes {has} on master {master}")
                }
                Kind::Release => format!("a release that {client} had sent changes nothing on master {master}"),
                Kind::Adopt if is.owner == token => {
                    format!("{late}master {master} lets {client}'s successor adopt the grant")
                }
                Kind::Adopt => format!("{late}master {master} refuses {client}'s successor: it has {has}"),
            };
            done + if slow { "; its answer is under way" } else { "" }
        }
        Step::Hear(client, master) => format!("master {}'s answer reaches {}", master + 1, name(client)),
        Step::CountReachable(client) => {
            format!("{} waits no longer and counts the masters that answered", name(client))
        }
        Step::Renew(client) => format!("{} asks to renew", name(client)),
        Step::Seed(client, master) => format!("{} sends its key to master {}", name(client), master + 1),
        Step::End(client, fates) => {
            let what = match before.clients[client].phase {
                Phase::Holding if before.clients[client].left > 0 => "releases the lock",
                Phase::Holding => "finds that its lease has ended",
                _ => "gives up",
            };
            format!("{} {what}{}", name(client), remains(before, after, client, fates))
        }
        Step::Die { client, successor, fates } => {
            let paused = successor && fates.iter().any(|fate| fate.release == Release::UnderWay);
            let what = match (successor, paused) {
                (true, true) => "is paused; a successor takes its place",
                (true, false) => "dies; a successor takes its place",
                (false, _) => "dies",
            };
            let fates = fates.map(|fate| Fate { release: Release::NotSent, ..fate });
            format!("{}'s process {what}{}", name(client), remains(before, after, client, fates))
        }
        Step::Adopt(client, token) if token == before.inherited => {
            format!("{}'s successor asks to adopt the grant with token {token}", name(client))
        }
        Step::Adopt(client, token) => {
            format!("{}'s successor asks to adopt the grant under the new token {token}", name(client))
        }
        Step::BeginWrite(client) => format!("{} checks that it holds the lock, and is about to write", name(client)),
        Step::Write(client) => {
            format!("{}'s write with token {} arrives", name(client), before.clients[client].writing)
        }
        Step::Restart(master) | Step::RestartUnseen(master) => {
            let unnoticed = if matches!(step, Step::RestartUnseen(_)) { ", unnoticed" } else { "" };
            let armed = if after.masters[master].is_armed() { ", and may vote at once" } else { "" };
            format!("master {} restarts empty{unnoticed}{armed}", master + 1)
        }
        Step::Arm(master) => format!("master {} is armed again", master + 1),
    }
}

fn expiries(owners: &Owners, before: &State, after: &State) -> String {
    let mut said = String::new();
    for (master, (was, is)) in before.masters.iter().zip(&after.masters).enumerate() {
        if was.owner != 0 && is.owner == 0 {
            let of = owners[usize::from(was.owner)].map_or("nobody", name);
            let _ = write!(said, "; {of}'s key on master {} expires", master + 1);
        }
    }
    for (client, (was, is)) in before.clients.iter().zip(&after.clients).enumerate() {
        if was.holds() && !is.holds() {
            let _ = write!(said, "; {} holds the lock no longer", name(client));
        }
    }
    said
}

/// What becomes of a client's requests.
fn remains(before: &State, after: &State, client: usize, fates: [Fate; MASTERS]) -> String {
    let mut said = String::new();
    let token = before.clients[client].token;
    for (master, fate) in fates.iter().enumerate() {
        let (was, is) = (&before.masters[master], &after.masters[master]);
        let master = master + 1;
        match fate.release {
            Release::Arrives if was.owner != 0 && was.owner != token && is.owner == 0 => {
                let _ = write!(said, "; that deletes another's key on master {master}");
            }
            Release::UnderWay => {
                let _ = write!(said, "; its release to master {master} is under way");
            }
            Release::Lost => {
                let _ = write!(said, "; its release to master {master} is lost");
            }
            Release::Arrives | Release::NotSent => {}
        }
        if fate.kept {
            let _ = write!(said, "; its request to master {master} is under way");
        }
    }
    said
}
