//! Randomness of a schedule: all of it from one seed, the same on every machine.

use std::time::Duration;

/// A generator of random numbers (`SplitMix64`): quick also where nothing is optimized.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Numbers that depend on `seed` alone.
    pub fn new(seed: u64) -> Self {
        let mut random = Self(seed);
        // Neighbouring seeds have nothing in common from here on.
        random.0 = random.draw();
        random
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, or 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.draw()) * u128::from(bound);
        // The upper half of a product of two numbers of 64 bits has 64 bits.
        u64::try_from(wide >> 64).expect("64 bits")
    }

    /// An index below `count`.
    pub fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).expect("below a usize")
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// A time below `bound`, in whole microseconds.
    pub fn time(&mut self, bound: Duration) -> Duration {
        Duration::from_micros(self.below(u64::try_from(bound.as_micros()).expect("a short time")))
    }
}
