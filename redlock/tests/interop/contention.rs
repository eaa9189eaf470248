//! All libraries contend for one lock while their processes and the masters are killed and paused: never two hold it.

use std::collections::HashMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::{IteratorRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::Instant;

use crate::arena::{Arena, Handle};
use crate::checker::{Contender, Entry, Library, Section, overlaps, sections, tokens};
use crate::protocol::{Order, Report, Stamp};

/// TTL of the lock: short, because each lost holder blocks the lock for so long.
const TTL: Duration = Duration::from_millis(600);
/// How long after the end of a dead holder's TTL the lock may stay free. Others ask for it at least every second; the rest
/// is for a busy machine.
const UNCLAIMED: Duration = Duration::from_secs(5);

/// What happens to a contender.
#[derive(Clone, Copy, Debug)]
enum Blow {
    /// It is killed while it holds the lock.
    KillHolder,
    /// It is paused while it holds the lock, for longer than its validity, and then tries to release it.
    PauseHolder,
    /// It is killed at a random moment.
    Kill,
}

/// What happens to a master meanwhile.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// It crashes, and stays away for the restart delay.
    Crash,
    /// It crashes and is back at once, empty, but is armed only after the restart delay.
    Restart,
    /// It hangs, then goes on, also with the requests that were sent to it meanwhile.
    Hang,
}

/// A run: its contenders, and the faults that hit them.
struct Run {
    arena: Arena,
    random: StdRng,
    contenders: Vec<Handle>,
    /// The longest time from the end of a holder until the next held the lock.
    longest_gap: Duration,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_two_libraries_hold_a_lock_whatever_is_killed() {
    let seed = seed();
    println!("seed {seed} (INTEROP_SEED={seed} draws the same faults)");
    let mut run = Run::start(seed).await;
    let mut plan = Vec::new();
    for library in Library::ALL {
        for (blow, fault) in [
            (Blow::KillHolder, Fault::None),
            (Blow::KillHolder, Fault::Crash),
            (Blow::PauseHolder, Fault::Restart),
            (Blow::PauseHolder, Fault::Hang),
            (Blow::Kill, Fault::None),
        ] {
            plan.push((library, blow, fault));
        }
    }
    plan.shuffle(&mut run.random);
    let rounds = plan.len();
    for (library, blow, fault) in plan {
        let began = Stamp::now();
        run.round(library, blow, fault).await;
        println!("{blow:?} of {library}, master fault: {fault:?}: {:.1?}", Stamp::now() - began);
    }
    let longest_gap = run.longest_gap;
    let sections = run.end().await;
    let counts = counts(&sections);
    println!(
        "seed {seed}: {}, {} overlaps in {rounds} rounds of faults; longest wait for a lost holder {longest_gap:.1?}",
        Library::ALL.map(|library| format!("{} sections of {library}", counts[&library])).join(", "),
        overlaps(&sections).len(),
    );
    assert_eq!(overlaps(&sections), [], "seed {seed}");
    let tokens = tokens(&sections);
    assert!(tokens.is_sorted_by(|a, b| a < b), "our fencing tokens rise: {tokens:?}");
    // Each library went on after each round.
    for library in Library::ALL {
        assert!(counts[&library] >= rounds, "{library}: {} sections", counts[&library]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contender_that_takes_no_lock_is_found() {
    let seed = seed();
    for cheat in Library::ALL {
        let arena = Arena::start(TTL, seed).await;
        let mut all = vec![arena.start_contender(Library::Redsync, TTL).await, arena.join(TTL)];
        all.push(arena.start_cheat(cheat, TTL).await);
        let since = arena.so_far();
        for handle in &all {
            handle.tell(Order::Contend);
        }
        // It claims the lock nearly all the time, so every real holder overlaps with it.
        for handle in &all {
            for _ in 0..3 {
                arena.section_of(handle.contender, since).await;
            }
        }
        let cheat = all[2].contender;
        for handle in all {
            arena.end(handle).await;
        }
        let found = overlaps(&sections(&arena.history()));
        assert!(!found.is_empty(), "{cheat:?} not found, seed {seed}");
        for (one, other) in found {
            assert!(one.by == cheat || other.by == cheat, "{one:?} and {other:?}");
        }
    }
}

/// The seed: from the environment, or random.
fn seed() -> u64 {
    std::env::var("INTEROP_SEED")
        .map_or_else(|_| rand::rng().random_range(0..1 << 31), |seed| seed.parse().expect("a number"))
}

fn counts(sections: &[Section]) -> HashMap<Library, usize> {
    let count = |library| sections.iter().filter(|s| s.by.library == library).count();
    Library::ALL.map(|library| (library, count(library))).into()
}

impl Run {
    async fn start(seed: u64) -> Self {
        let arena = Arena::start(TTL, seed).await;
        let mut contenders = vec![arena.join(TTL)];
        for library in Library::ALL.into_iter().chain([Library::Redsync, Library::Ours]) {
            contenders.push(arena.start_contender(library, TTL).await);
        }
        let since = arena.so_far();
        for contender in &contenders {
            contender.tell(Order::Contend);
        }
        arena.progress_of_all(since).await;
        Self { arena, random: StdRng::seed_from_u64(seed), contenders, longest_gap: Duration::ZERO }
    }

    /// Ends all contenders, and returns what they claimed.
    async fn end(self) -> Vec<Section> {
        for contender in self.contenders {
            self.arena.end(contender).await;
        }
        sections(&self.arena.history())
    }

    /// Hits one contender of a library, perhaps while a master has a fault. All libraries must go on after it.
    async fn round(&mut self, library: Library, blow: Blow, fault: Fault) {
        let master = self.random.random_range(0..self.arena.servers.len());
        let victim = self.choose(library);
        // Either the victim takes the lock without this master's vote, or it loses it.
        let begun = if self.random.random() { Some(self.begin(fault, master).await) } else { None };
        let hit = match blow {
            Blow::KillHolder | Blow::PauseHolder => Some(self.hold(&victim).await),
            Blow::Kill => None,
        };
        let begun = match begun {
            Some(begun) => begun,
            None => self.begin(fault, master).await,
        };
        match (blow, hit) {
            (Blow::PauseHolder, Some(hit)) => {
                victim.freeze();
                self.next_holder(&hit, Stamp::now()).await;
                self.release_late(&victim).await;
                self.contenders.push(victim);
            }
            (_, hit) => {
                if hit.is_none() {
                    let moment = self.random.random_range(0..100_000);
                    tokio::time::sleep(Duration::from_micros(moment)).await;
                }
                let died = self.arena.kill(victim).await;
                if let Some(hit) = hit {
                    self.next_holder(&hit, died).await;
                }
                let new = self.arena.start_contender(library, TTL).await;
                new.tell(Order::Contend);
                self.contenders.push(new);
            }
        }
        match fault {
            Fault::None => {}
            Fault::Crash => {
                self.arena.servers[master].restart().await;
                self.arena.rearm_master(master, begun).await;
            }
            Fault::Restart => self.arena.rearm_master(master, begun).await,
            Fault::Hang => self.arena.servers[master].thaw(),
        }
        self.arena.progress_of_all(self.arena.so_far()).await;
    }

    /// Begins a master's fault, and returns since when it is certain.
    async fn begin(&mut self, fault: Fault, master: usize) -> Instant {
        match fault {
            Fault::None => {}
            Fault::Crash => self.arena.servers[master].crash().await,
            Fault::Restart => {
                self.arena.servers[master].crash().await;
                let crashed = Instant::now();
                self.arena.servers[master].restart().await;
                return crashed;
            }
            Fault::Hang => self.arena.servers[master].freeze(),
        }
        Instant::now()
    }

    /// Takes one process of a library out of the contenders.
    fn choose(&mut self, library: Library) -> Handle {
        let of_library = (0..self.contenders.len()).filter(|&index| {
            let handle = &self.contenders[index];
            handle.contender.library == library && handle.is_process()
        });
        let chosen = of_library.choose(&mut self.random).expect("one of each library");
        self.contenders.swap_remove(chosen)
    }

    /// Lets a contender acquire and keep the lock, and returns its section.
    async fn hold(&self, victim: &Handle) -> Section {
        let since = self.arena.so_far();
        victim.tell(Order::Keep);
        self.arena.report_of(victim.contender, since, |report| (*report == Report::Kept).then_some(())).await;
        self.section_of(victim.contender)
    }

    /// The last section of a contender so far.
    fn section_of(&self, contender: Contender) -> Section {
        sections(&self.arena.history()).into_iter().rfind(|s| s.by == contender).expect("a section")
    }

    /// Waits until another holds the lock of the contender that was hit: not before its validity ends, and soon after.
    async fn next_holder(&mut self, hit: &Section, at: Stamp) {
        let next = self.arena.entry(0, "the next holder", |entry| match entry {
            Entry::Reported(by, Report::Start { at, .. }) if *by != hit.by && *at > hit.start => Some((*by, *at)),
            _ => None,
        });
        let (by, start) = next.await;
        let valid_until = self.section_of(hit.by).valid_until;
        assert!(start >= valid_until, "{by:?} held {:?} before the end of {:?}", valid_until - start, hit.by);
        let gap = start - at;
        assert!(gap <= TTL + UNCLAIMED, "the lock of {:?} stayed free for {gap:?}", hit.by);
        self.longest_gap = self.longest_gap.max(gap);
    }

    /// Wakes a paused holder, and has it release the lock that it has lost.
    async fn release_late(&self, paused: &Handle) {
        let since = self.arena.so_far();
        paused.thaw();
        paused.tell(Order::Release);
        let released = self.arena.report_of(paused.contender, since, |report| match report {
            Report::Released(held) => Some(*held),
            _ => None,
        });
        assert!(!released.await, "{:?} says that it released the lock of another", paused.contender);
    }
}
