//! How a contender uses one lock: it waits, holds, renews, releases, drops, abandons and cancels, each for a drawn time.

use std::time::Duration;

use nix::sys::signal::{Signal, raise};
use rand::RngExt as _;
use rand::rngs::StdRng;
use redlock_engine::{Client, Lease, LeaseOptions, LockKey, Released, Wait};
use redlock_test_servers::stamp::Stamp;
use tokio::time::{sleep, timeout};

use crate::Cheat;
use crate::protocol::{Ending, Report, Said};

/// TTL of a lease, in milliseconds: short, because each lost holder keeps the lock from others for so long.
const TTL: std::ops::RangeInclusive<u64> = 1500..=4000;

pub struct Contender {
    pub client: Client,
    pub key: LockKey,
    /// The lock in reports.
    pub lock: usize,
    pub identity: String,
    pub random: StdRng,
    pub cheat: Option<Cheat>,
}

impl Contender {
    pub async fn run(mut self) {
        loop {
            if self.cheat == Some(Cheat::Unlocked) {
                self.claim_without_lock().await;
                continue;
            }
            let options = LeaseOptions::new(self.identity.clone(), self.draw(TTL));
            if let Some(lease) = self.acquire(&options).await {
                self.hold(lease, options.ttl).await;
            }
            // Lets others have a turn.
            let rest = self.draw(0..=60);
            sleep(rest).await;
        }
    }

    /// One attempt, which may be cancelled at any moment.
    async fn acquire(&mut self, options: &LeaseOptions) -> Option<Lease> {
        match self.random.random_range(0..16) {
            // Takes it if it is free, and does not wait.
            0 => self.client.try_acquire(&self.key, options).await.ok(),
            drawn => {
                let patience = if drawn <= 3 { self.draw(0..=800) } else { self.draw(8_000..=20_000) };
                self.say(Said::Waits);
                let waits = self.client.acquire(&self.key, options, Wait::Forever);
                let lease = timeout(patience, waits).await.ok().and_then(Result::ok);
                if lease.is_none() {
                    self.say(Said::GaveUp);
                }
                lease
            }
        }
    }

    /// A hold: reports its beginning, each renewal and its end, before it does anything about the end.
    async fn hold(&mut self, lease: Lease, ttl: Duration) {
        let owner = lease.owner().to_string();
        let (at, until) = validity(&lease);
        self.say_at(at, Said::Start { until, ttl, owner: owner.clone() });
        let length = self.length(ttl);
        let renewals = async {
            let mut state = lease.state();
            while state.changed().await.is_ok() && lease.is_held() {
                let (at, until) = validity(&lease);
                self.say_at(at, Said::Extended { until });
            }
        };
        let is_lost = tokio::select! {
            () = sleep(length) => !lease.is_held(),
            _ = lease.ended() => true,
            () = renewals => true,
        };
        if self.cheat == Some(Cheat::Unsent) {
            self.say(Said::End(Ending::Release));
            self.say(Said::Released { owner: owner.clone() });
            // Nothing runs after this.
            raise(Signal::SIGKILL).expect("a signal to itself");
        }
        let ending = match self.random.random_range(0..16) {
            _ if is_lost => Ending::Lost,
            0..=1 => Ending::Drop,
            2 => Ending::Abandon,
            _ => Ending::Release,
        };
        self.say(Said::End(ending));
        match ending {
            Ending::Release | Ending::Lost => {
                // Without that answer the release is still to be sent: who is killed before that leaves a lease that nobody can
                // release.
                if lease.release().await == Released::Freed {
                    self.say(Said::Released { owner });
                }
            }
            Ending::Drop => drop(lease),
            Ending::Abandon => lease.abandon(),
        }
    }

    /// How long a hold lasts: sometimes so long that the lease is renewed in it.
    fn length(&mut self, ttl: Duration) -> Duration {
        match self.random.random_range(0..32) {
            0 => ttl.mul_f64(self.random.random_range(0.3..2.5)),
            1..=6 => self.draw(20..=400),
            _ => self.draw(1..=30),
        }
    }

    async fn claim_without_lock(&mut self) {
        let (at, ttl) = (Stamp::now(), self.draw(TTL));
        let owner = format!("{}@{}", self.identity, at);
        self.say_at(at, Said::Start { until: at + ttl, ttl, owner });
        let length = self.draw(20..=400);
        sleep(length).await;
        self.say(Said::End(Ending::Release));
    }

    /// A time in milliseconds.
    fn draw(&mut self, millis: std::ops::RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.random.random_range(millis))
    }

    fn say(&self, what: Said) {
        self.say_at(Stamp::now(), what);
    }

    fn say_at(&self, at: Stamp, what: Said) {
        crate::report(&Report { lock: self.lock, at, what });
    }
}

/// Now, and the end of validity, on the machine's monotonic clock. The clock is read first: a pause between the two
/// readings makes the claim shorter, never longer.
fn validity(lease: &Lease) -> (Stamp, Stamp) {
    let now = Stamp::now();
    (now, now + lease.validity())
}
