//! A server's clock, by which its keys expire: whether it runs, and whether it agrees with others.
//!
//! An armed server is compared with itself: between two polls its clock must advance as the operator's clocks do. Neither clock of
//! the operator suffices alone: its wall clock may be set, and its monotonic clock stands still while its machine is suspended. So a
//! movement counts as a fault only if it agrees with neither. Before arming, the time of day is compared with that of the operator and
//! of the other masters, so that a wrong clock of the operator alone keeps no master out.

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::AdminError;

/// How far two clocks may be apart before a server is armed, and how far a clock may jump while it is.
pub(crate) const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(5);
/// Shortest time between two readings that tell whether a clock runs.
pub(super) const LEAST_GAP: Duration = Duration::from_millis(50);

/// A server's time, and the operator's clocks when it was asked and when the answer was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockReading {
    pub(crate) server: Timestamp,
    pub(crate) asked: Moment,
    pub(crate) answered: Moment,
}

/// A moment by both clocks of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) monotonic: Instant,
    pub(crate) wall: Timestamp,
}

/// What is wrong with a server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockFault {
    /// It stands still: no key on this server expires.
    Stopped,
    /// It was set, forward or back: keys expire too early, so that held leases are forgotten, or too late.
    Jumped,
    /// The time of day differs from that of most others.
    Disagrees,
}

// === impl Moment ===

impl Moment {
    pub(crate) fn now() -> Self {
        Self { monotonic: Instant::now(), wall: Timestamp::now() }
    }

    /// Time since `earlier`, by the monotonic and by the wall clock.
    fn since(&self, earlier: &Self) -> [SignedDuration; 2] {
        let monotonic = self.monotonic.saturating_duration_since(earlier.monotonic);
        [SignedDuration::try_from(monotonic).unwrap_or(SignedDuration::MAX), self.wall.duration_since(earlier.wall)]
    }
}

// === impl ClockReading ===

impl ClockReading {
    /// The reading of what `TIME` answered: seconds, and microseconds of the second.
    pub(super) fn of(time: (i64, i64), asked: Moment, answered: Moment) -> Result<Self, AdminError> {
        let nanoseconds = i32::try_from(time.1.saturating_mul(1000)).ok();
        let server = nanoseconds.and_then(|nanoseconds| Timestamp::new(time.0, nanoseconds).ok());
        let server = server.ok_or_else(|| AdminError::Refused("a TIME that is none".to_owned()))?;
        Ok(Self { server, asked, answered })
    }

    /// How far the server's time of day is ahead of the operator's.
    pub(crate) fn ahead(&self) -> SignedDuration {
        let round_trip = self.answered.wall.duration_since(self.asked.wall);
        self.server.duration_since(self.asked.wall).saturating_sub(round_trip / 2)
    }

    /// What is wrong with the clock, given an earlier reading of the same server process.
    pub(crate) fn fault_since(&self, earlier: &Self) -> Option<ClockFault> {
        let bound = SignedDuration::try_from(MAX_CLOCK_DIFFERENCE).unwrap_or(SignedDuration::MAX);
        let gap = SignedDuration::try_from(LEAST_GAP).unwrap_or(SignedDuration::MAX);
        let advanced = self.server.duration_since(earlier.server);
        let (least, most) = (self.asked.since(&earlier.answered), self.answered.since(&earlier.asked));
        if least.iter().all(|least| *least >= gap && advanced.abs() <= *least / 10) {
            return Some(ClockFault::Stopped);
        }
        let jumped = |(least, most): (&SignedDuration, &SignedDuration)| {
            advanced < least.saturating_sub(bound) || advanced > most.saturating_add(bound)
        };
        least.iter().zip(&most).all(jumped).then_some(ClockFault::Jumped)
    }
}

/// The servers, by how far each is ahead of the operator, whose time of day differs from that of most others: of the other servers
/// and of the operator.
pub(crate) fn disagreeing(ahead: &[SignedDuration]) -> Vec<bool> {
    let apart =
        |one: SignedDuration, other: SignedDuration| one.saturating_sub(other).unsigned_abs() > MAX_CLOCK_DIFFERENCE;
    let all: Vec<_> = ahead.iter().copied().chain([SignedDuration::ZERO]).collect();
    let disagrees = |own: &SignedDuration| {
        let differing = all.iter().filter(|other| apart(*own, **other)).count();
        // Without the own clock, which never differs.
        2 * differing > all.len() - 1
    };
    ahead.iter().map(disagrees).collect()
}

/// Whether the operator's own time of day differs from that of most servers, given how far each is ahead of it.
pub(crate) fn is_operator_wrong(ahead: &[SignedDuration]) -> bool {
    2 * ahead.iter().filter(|ahead| ahead.unsigned_abs() > MAX_CLOCK_DIFFERENCE).count() > ahead.len()
}

impl fmt::Display for ClockFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClockFault: ")?;
        match self {
            Self::Stopped => f.write_str("its clock stands still, so that no key on it expires"),
            Self::Jumped => write!(f, "its clock jumped by more than {}s", MAX_CLOCK_DIFFERENCE.as_secs()),
            Self::Disagrees => write!(
                f,
                "its clock differs by more than {}s from the operator's and most masters'",
                MAX_CLOCK_DIFFERENCE.as_secs()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Moment, monotonic: i64, wall: i64) -> Moment {
        Moment {
            monotonic: start.monotonic + Duration::from_millis(monotonic.unsigned_abs()),
            wall: start.wall + SignedDuration::from_millis(wall),
        }
    }

    /// The fault between two polls, in milliseconds: how far the clocks moved meanwhile. Each answer takes 10 ms.
    fn fault(server: i64, monotonic: i64, wall: i64) -> Option<ClockFault> {
        let start = Moment::now();
        let earlier = ClockReading { server: start.wall, asked: start, answered: at(start, 10, 10) };
        let later = ClockReading {
            server: start.wall + SignedDuration::from_millis(server),
            asked: at(start, monotonic, wall),
            answered: at(start, monotonic + 10, wall + 10),
        };
        later.fault_since(&earlier)
    }

    #[test]
    fn a_clock_that_stands_still_or_jumps_is_a_fault_and_one_that_is_slewed_is_none() {
        assert_eq!(fault(1_000, 1_000, 1_000), None);
        assert_eq!(fault(0, 1_000, 1_000), Some(ClockFault::Stopped));
        assert_eq!(fault(400, 1_000, 1_000), None, "set back by 0.6 s");
        assert_eq!(fault(3_601_000, 1_000, 1_000), Some(ClockFault::Jumped));
        assert_eq!(fault(-3_599_000, 1_000, 1_000), Some(ClockFault::Jumped));
        assert_eq!(fault(5_900, 1_000, 1_000), None, "within the bound");
        assert_eq!(fault(0, 20, 20), None, "two readings at once tell nothing");
    }

    #[test]
    fn neither_a_wall_clock_that_is_set_nor_a_suspended_operator_makes_its_masters_faulty() {
        for wall in [-3_600_000, 1_000, 3_600_000] {
            assert_eq!(fault(1_000, 1_000, wall), None, "the operator's wall clock moved by {wall}");
        }
        assert_eq!(fault(600_000, 1_000, 600_000), None, "the operator's machine slept for 10 minutes");
    }

    #[test]
    fn the_clock_that_differs_from_most_is_the_one_that_is_wrong() {
        let seconds = |all: &[i64]| disagreeing(&all.iter().map(|s| SignedDuration::from_secs(*s)).collect::<Vec<_>>());
        assert_eq!(seconds(&[0, 1, -1]), [false; 3]);
        assert_eq!(seconds(&[0, 3600, 1]), [false, true, false]);
        assert_eq!(seconds(&[3600, 3600, 3601]), [false; 3], "the operator's own is wrong");
        assert_eq!(seconds(&[3600]), [true], "nobody else tells which is right");
        assert_eq!(seconds(&[3600, 3600]), [false; 2]);
        assert_eq!(seconds(&[]), [false; 0]);
    }

    #[test]
    fn the_operator_is_wrong_where_most_servers_say_another_time() {
        let seconds = |all: &[i64]| all.iter().map(|&ahead| SignedDuration::from_secs(ahead)).collect::<Vec<_>>();
        for (ahead, is_wrong) in [
            (&[][..], false),
            (&[5], false),
            (&[6], true),
            (&[0, 3600], false),
            (&[0, -3600, -3600], true),
            (&[3600, 0, -3600], true),
            (&[0, 1, -2, 3600, 3600], false),
        ] {
            assert_eq!(is_operator_wrong(&seconds(ahead)), is_wrong, "{ahead:?}");
        }
    }
}
