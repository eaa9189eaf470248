//! Tests of the checker, on histories: what it finds, and what it does not complain about.

use std::time::Duration;

use redlock_test_servers::stamp::Stamp;

use crate::exclusion::{claims, falls, overlaps};
use crate::history::{Contender, ContenderFault, Entry, Event, MasterFault};
use crate::idle::{Cause, Idle, idle_times};
use crate::protocol::{Ending, Report, Said};

const A: Contender = Contender(0);
const B: Contender = Contender(1);

fn at(millis: u64) -> Stamp {
    Duration::from_millis(millis).as_nanos().to_string().parse().expect("a moment")
}

fn entry(when: u64, event: Event) -> Entry {
    Entry { at: at(when), event }
}

fn says(by: Contender, when: u64, what: Said) -> Entry {
    entry(when, Event::Reported(by, Report { lock: 0, at: at(when), what }))
}

fn start(by: Contender, when: u64, until: u64, token: u64) -> Entry {
    let owner = owner(by, token);
    says(by, when, Said::Start { until: at(until), ttl: Duration::from_secs(2), owner })
}

fn end(by: Contender, when: u64, ending: Ending) -> Entry {
    says(by, when, Said::End(ending))
}

fn released(by: Contender, when: u64, token: u64) -> Entry {
    says(by, when, Said::Released { owner: owner(by, token) })
}

fn owner(by: Contender, token: u64) -> String {
    format!("{by}@{token}.{token:016x}")
}

/// This owner has the lock on so many masters.
fn seen(when: u64, masters: usize, owner: Option<&str>) -> Vec<Entry> {
    (0..masters).map(|master| entry(when, Event::Seen { master, lock: 0, owner: owner.map(str::to_owned) })).collect()
}

/// All three masters are up.
fn up() -> Vec<Entry> {
    (0..3).map(|master| entry(0, Event::Up(master))).collect()
}

/// Who overlaps with whom.
fn overlapping(history: &[Entry]) -> Vec<(Contender, Contender)> {
    overlaps(&claims(history)).into_iter().map(|(one, other)| (one.by, other.by)).collect()
}

/// From when to when the lock is idle, in milliseconds, and why.
fn idle(history: Vec<Vec<Entry>>) -> Vec<(u128, u128, Cause)> {
    let mut history: Vec<_> = history.into_iter().flatten().collect();
    history.sort_by_key(|entry| entry.at);
    let found = idle_times(&history, &claims(&history), 0, 3);
    found.into_iter().map(|i| ((i.from - at(0)).as_millis(), (i.to - at(0)).as_millis(), i.cause)).collect()
}

#[test]
fn claims_that_overlap_are_found() {
    let release = |by, when| end(by, when, Ending::Release);
    assert_eq!(overlapping(&[start(A, 0, 100, 1), start(B, 49, 100, 2), release(A, 50)]), [(A, B)]);
    assert_eq!(overlapping(&[start(A, 0, 100, 1), release(A, 50), start(B, 50, 100, 2)]), []);
    // A process that is stopped claims the lock until its validity is over.
    let stopped = |from| {
        let halted = entry(10, Event::Halted(A, ContenderFault::LongStop));
        [
            start(A, 0, 100, 1),
            halted,
            start(B, from, 200, 2),
            entry(150, Event::Continued(A)),
            end(A, 160, Ending::Lost),
        ]
    };
    assert_eq!(overlapping(&stopped(99)), [(A, B)]);
    assert_eq!(overlapping(&stopped(100)), []);
    // One that is dead, only until its death.
    assert_eq!(overlapping(&[start(A, 0, 100, 1), entry(50, Event::Dead(A)), start(B, 60, 200, 2)]), []);
    // An extension counts only in time.
    let extended =
        |when| [start(A, 0, 100, 1), says(A, when, Said::Extended { until: at(300) }), start(B, 200, 250, 2)];
    assert_eq!(overlapping(&extended(90)), [(A, B)]);
    assert_eq!(overlapping(&extended(100)), []);
}

#[test]
fn claims_of_different_locks_do_not_overlap() {
    let mut other = start(B, 10, 100, 2);
    if let Event::Reported(_, report) = &mut other.event {
        report.lock = 1;
    }
    assert_eq!(overlapping(&[start(A, 0, 100, 1), other]), []);
}

#[test]
fn a_token_that_does_not_rise_is_found_and_excluded_only_where_data_was_lost_and_clocks_differ() {
    let found = |clock, fault, token| {
        let history = [
            entry(0, Event::Started(A, clock)),
            entry(0, Event::Started(B, 0)),
            start(A, 2000, 3000, 7),
            end(A, 2100, Ending::Release),
            entry(2200, Event::Down(0, fault)),
            start(B, 2300, 3000, token),
        ];
        falls(&claims(&history), &history).into_iter().map(|fall| fall.is_excluded).collect::<Vec<_>>()
    };
    assert_eq!(found(0, MasterFault::Crash, 8), []);
    assert_eq!(found(0, MasterFault::Crash, 7), [false]);
    assert_eq!(found(0, MasterFault::Flush, 6), [false]);
    assert_eq!(found(3600, MasterFault::Stop, 6), [false]);
    assert_eq!(found(3600, MasterFault::Flush, 6), [true]);
}

#[test]
fn a_lock_is_idle_from_its_release_until_the_next_grant_while_somebody_waits() {
    let hold = vec![start(A, 100, 3000, 1), end(A, 200, Ending::Release), released(A, 210, 1)];
    let next = vec![start(B, 2000, 3000, 2)];
    let waits = |when| vec![says(B, when, Said::Waits)];
    assert_eq!(idle(vec![up(), hold.clone(), waits(150), next.clone()]), [(200, 2000, Cause::NotTried)]);
    // From when it waits.
    assert_eq!(idle(vec![up(), hold.clone(), waits(500), next.clone()]), [(500, 2000, Cause::NotTried)]);
    assert_eq!(idle(vec![up(), hold.clone(), next.clone()]), []);
    // Not while no majority is up, nor while the waiter is stopped.
    let down = |from, to| {
        let down = |master| [entry(from, Event::Down(master, MasterFault::Stop)), entry(to, Event::Up(master))];
        (0..2).flat_map(down).collect::<Vec<_>>()
    };
    let pauses = idle(vec![up(), hold.clone(), waits(150), down(300, 900), next.clone()]);
    // Clients are connected again after about as long as the masters were away.
    assert_eq!(pauses, [(200, 300, Cause::NotTried), (1500, 2000, Cause::NotTried)]);
    let pauses = idle(vec![up(), hold.clone(), waits(150), down(300, 301), next.clone()]);
    assert_eq!(pauses, [(200, 300, Cause::NotTried), (601, 2000, Cause::NotTried)]);
    let stop = vec![entry(400, Event::Halted(B, ContenderFault::ShortStop)), entry(600, Event::Continued(B))];
    let pauses = idle(vec![up(), hold, waits(150), stop, next]);
    assert_eq!(pauses, [(200, 400, Cause::NotTried), (600, 2000, Cause::NotTried)]);
}

#[test]
fn a_lease_of_a_dead_holder_is_not_idle_time_until_its_ttl_is_over() {
    let killed = |owner: Option<&str>| {
        let hold = vec![
            start(A, 100, 3000, 1),
            entry(200, Event::Halted(A, ContenderFault::Kill)),
            entry(201, Event::Dead(A)),
        ];
        vec![up(), hold, vec![says(B, 150, Said::Waits)], seen(120, 3, owner), vec![start(B, 6000, 7000, 2)]]
    };
    // The longest TTL, and what was under way.
    assert_eq!(idle(killed(Some(&owner(A, 1)))), [(4501, 6000, Cause::KeysReleased)]);
    // Also the attempt that nobody has heard of.
    assert_eq!(idle(killed(Some(&owner(A, 5)))), [(4501, 6000, Cause::KeysOfAttempts)]);
    assert_eq!(idle(killed(None)), [(201, 6000, Cause::NotTried)]);
}

#[test]
fn a_release_that_was_reported_but_not_sent_is_idle_time_also_of_a_dead_holder() {
    let hold =
        vec![start(A, 100, 3000, 1), end(A, 200, Ending::Release), released(A, 200, 1), entry(200, Event::Dead(A))];
    let waits = vec![says(B, 150, Said::Waits)];
    let found = idle(vec![up(), hold, waits, seen(120, 3, Some(&owner(A, 1))), vec![start(B, 3500, 5000, 2)]]);
    assert_eq!(found, [(200, 3500, Cause::KeysReleased)]);
}

#[test]
fn an_abandoned_lease_is_not_idle_time_until_its_ttl_is_over() {
    let hold = vec![start(A, 100, 3000, 1), end(A, 200, Ending::Abandon)];
    let waits = vec![says(B, 150, Said::Waits)];
    let found = idle(vec![up(), hold, waits, seen(120, 2, Some(&owner(A, 1))), vec![start(B, 4000, 5000, 2)]]);
    assert_eq!(found, [(2500, 4000, Cause::KeysReleased)]);
}

#[test]
fn idle_time_is_too_long_from_a_second_on_with_what_the_timers_were_late() {
    let idle = |millis, late| {
        let late = Duration::from_millis(late);
        Idle { lock: 0, from: at(0), to: at(millis), late, cause: Cause::NotTried }.is_too_long()
    };
    assert_eq!([idle(1150, 0), idle(1151, 0), idle(1250, 100), idle(1251, 100)], [false, true, false, true]);
}
