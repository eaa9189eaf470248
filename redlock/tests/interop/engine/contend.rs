//! A contender that acquires a lock by our engine, in the test's own process or in one that can be killed.

use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;
use redlock_engine::{Client, Lease, LeaseOptions, LockKey, Released, Wait};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;

use crate::protocol::{Order, Report, Stamp};

/// How long one call waits for the lock before orders are read again.
const WAIT: Duration = Duration::from_secs(1);

pub struct Contender<R> {
    pub client: Client,
    pub key: LockKey,
    pub options: LeaseOptions,
    /// Claims sections without the lock.
    pub unlocked: bool,
    /// Source of the lengths of sections.
    pub random: StdRng,
    pub orders: UnboundedReceiver<Order>,
    pub report: R,
}

/// What it was told to do.
#[derive(Default)]
struct Told {
    contends: bool,
    keeps: bool,
}

impl<R: Fn(Report)> Contender<R> {
    /// Contends as ordered, until its input ends.
    pub async fn run(mut self) {
        let mut told = Told::default();
        loop {
            while !told.contends {
                let Some(order) = self.orders.recv().await else { return };
                self.obey(order, &mut told).await;
            }
            let lease = if self.unlocked {
                None
            } else {
                self.client.acquire(&self.key, &self.options, Wait::For(WAIT)).await.ok()
            };
            loop {
                match self.orders.try_recv() {
                    Ok(order) => self.obey(order, &mut told).await,
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            match lease {
                Some(lease) => {
                    self.section(lease, &mut told).await;
                    // Lets others have a turn.
                    let rest = self.random.random_range(0..300);
                    tokio::time::sleep(Duration::from_millis(rest)).await;
                }
                None if self.unlocked => self.section_without_lock().await,
                None => {}
            }
        }
    }

    async fn obey(&mut self, order: Order, told: &mut Told) {
        match order {
            Order::Clock => (self.report)(Report::Clock(Stamp::now())),
            Order::Contend => told.contends = true,
            Order::Keep => told.keeps = true,
            Order::Try => match self.client.try_acquire(&self.key, &self.options).await {
                Ok(lease) => {
                    told.keeps = true;
                    self.section(lease, told).await;
                }
                Err(_) => (self.report)(Report::Denied),
            },
            // The lock was lost meanwhile.
            Order::Extend | Order::Release => {}
        }
    }

    /// A section: reports its beginning and end, and how long the lease says that the lock is held.
    async fn section(&mut self, lease: Lease, told: &mut Told) {
        let (at, until) = validity(&lease);
        (self.report)(Report::Start { at, until, value: lease.owner().to_string() });
        let keeps = std::mem::take(&mut told.keeps);
        if keeps {
            (self.report)(Report::Kept);
        }
        let length = self.length();
        let (orders, report) = (&mut self.orders, &self.report);
        let section = async {
            if keeps {
                while !matches!(orders.recv().await, Some(Order::Release) | None) {}
            } else {
                tokio::time::sleep(length).await;
            }
        };
        let held = async {
            let mut state = lease.state();
            while state.changed().await.is_ok() && lease.is_held() {
                let (at, until) = validity(&lease);
                report(Report::Extended { at, until });
            }
        };
        tokio::select! {
            () = section => {}
            () = held => {}
        }
        (self.report)(Report::End(Stamp::now()));
        let released = lease.release().await;
        (self.report)(Report::Released(released == Released::Freed));
    }

    async fn section_without_lock(&mut self) {
        let at = Stamp::now();
        (self.report)(Report::Start { at, until: at + self.options.ttl, value: "unlocked".to_owned() });
        tokio::time::sleep(self.length()).await;
        (self.report)(Report::End(Stamp::now()));
    }

    /// How long a section lasts: sometimes so long that the lease is renewed in it.
    fn length(&mut self) -> Duration {
        if self.random.random_range(0..32) == 0 {
            self.options.ttl / 2
        } else {
            Duration::from_millis(self.random.random_range(1..=12))
        }
    }
}

/// Now, and the end of validity, on the machine's monotonic clock. The clock is read first: a pause between the two
/// readings makes the claim shorter, never longer.
fn validity(lease: &Lease) -> (Stamp, Stamp) {
    let now = Stamp::now();
    (now, now + lease.validity())
}
