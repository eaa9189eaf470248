//! Many schedules, on all cores, and their sums.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::rules::Rules;
use crate::schedule::{Report, run};

/// The sums of a campaign's reports.
#[derive(Debug, Default)]
pub struct Sum {
    pub schedules: u64,
    pub total: Report,
}

/// A schedule that broke a promise.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    pub seed: u64,
    pub violation: String,
}

impl Sum {
    fn add(&mut self, report: &Report) {
        self.schedules += 1;
        let (sum, one) = (&mut self.total.counts, &report.counts);
        sum.grants += one.grants;
        sum.adoptions += one.adoptions;
        sum.losses += one.losses;
        sum.writes += one.writes;
        sum.refused += one.refused;
        sum.dropped += one.dropped;
        sum.overlaps += one.overlaps;
        sum.longest_wait = sum.longest_wait.max(one.longest_wait);
        sum.longest_free = sum.longest_free.max(one.longest_free);
        let (sum, one) = (&mut self.total.tally, &report.tally);
        sum.events += one.events;
        sum.calls += one.calls;
        sum.crashes += one.crashes;
        sum.flushes += one.flushes;
        sum.reconnects += one.reconnects;
        sum.jumps += one.jumps;
        sum.pauses += one.pauses;
        // The order in which schedules end does not matter.
        sum.digest = sum.digest.wrapping_add(one.digest);
    }
}

/// Runs `count` schedules from seed `first` on, on this number of threads. The error has the smallest seed that fails: all
/// schedules below it have been run.
pub fn run_all(first: u64, count: u64, rules: Rules, threads: usize, progress: bool) -> Result<Sum, Failure> {
    let (next, end) = (AtomicU64::new(first), AtomicU64::new(first + count));
    let (sum, failure, began) = (Mutex::new(Sum::default()), Mutex::new(None::<Failure>), Instant::now());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end.load(Ordering::Relaxed) {
                return;
            }
            match run(seed, rules, false) {
                Ok(report) => sum.lock().expect("no panic").add(&report),
                Err(violation) => {
                    end.fetch_min(seed, Ordering::Relaxed);
                    let mut failure = failure.lock().expect("no panic");
                    if failure.as_ref().is_none_or(|known| seed < known.seed) {
                        *failure = Some(Failure { seed, violation });
                    }
                }
            }
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut printed = Instant::now();
        while progress && !threads.iter().all(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(50));
            if printed.elapsed() > Duration::from_secs(5) {
                printed = Instant::now();
                let done = sum.lock().expect("no panic").schedules;
                println!("{done} of {count} schedules, {} a second", a_second(done, began));
            }
        }
    });
    let sum = sum.into_inner().expect("no panic");
    if progress {
        println!("{} schedules in {:.1?}: {} a second", sum.schedules, began.elapsed(), a_second(sum.schedules, began));
    }
    failure.into_inner().expect("no panic").map_or(Ok(sum), Err)
}

fn a_second(done: u64, since: Instant) -> u128 {
    u128::from(done) * 1000 / since.elapsed().as_millis().max(1)
}

/// All cores of this machine.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(2, usize::from)
}
