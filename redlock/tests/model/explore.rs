//! Visits every reachable state, breadth first, so that each state is found by the fewest steps.
//!
//! States are compared whole, not by a hash, so that "every state" means every state.

use crate::state::{Packed, Promise, State};
use crate::steps::Step;
use crate::world::World;

/// The result of a search.
pub struct Outcome {
    /// Different states that were reached.
    pub states: usize,
    /// Steps to the farthest of them.
    pub depth: usize,
    /// A bit for each [`Event`](crate::steps::Event) that happened.
    pub events: u32,
    pub violation: Option<Violation>,
}

/// The first broken promise, and the steps to it from the start.
pub struct Violation {
    pub promise: Promise,
    pub steps: Vec<(Step, State)>,
}

/// Visits all states of a world, or all up to the first broken promise.
pub fn explore(world: &World) -> Outcome {
    let mut visited = Visited::default();
    visited.add(world.start().pack(), 0);
    let (mut steps, mut depth) = (Vec::new(), 0);
    let (mut next, mut end_of_level) = (0, 1);
    let mut violation = None;
    'search: while next < visited.states.len() {
        if next == end_of_level {
            end_of_level = visited.states.len();
            depth += 1;
        }
        let state = State::unpack(visited.states[next]);
        world.steps(&state, &mut steps);
        for step in steps.drain(..) {
            let after = world.apply(&state, step);
            if visited.add(after.pack(), next) && after.broken.is_some() {
                violation = after.broken;
                depth += 1;
                break 'search;
            }
        }
        next += 1;
    }
    let violation = violation.map(|promise| Violation { promise, steps: retrace(world, &visited.way_to_last()) });
    Outcome { states: visited.states.len(), depth, events: world.events.get(), violation }
}

/// The steps along packed states. Names of masters and clients stay the same from step to step.
fn retrace(world: &World, way: &[Packed]) -> Vec<(Step, State)> {
    let mut state = world.start();
    let mut steps = Vec::new();
    way.iter()
        .skip(1)
        .map(|packed| {
            steps.clear();
            world.steps(&state, &mut steps);
            let step = steps.iter().copied().find(|&step| world.apply(&state, step).pack() == *packed);
            let step = step.expect("renaming changes no behaviour");
            state = world.apply(&state, step);
            (step, state)
        })
        .collect()
}

/// States by the order in which they were found, and a hash table of their positions.
#[derive(Default)]
struct Visited {
    states: Vec<Packed>,
    /// From which state each was reached.
    from: Vec<u32>,
    /// Open addressing; 0 is free, else one more than a position.
    table: Vec<u32>,
}

impl Visited {
    /// Adds a state, and returns whether it is new.
    fn add(&mut self, state: Packed, from: usize) -> bool {
        if self.states.len() * 2 >= self.table.len() {
            self.grow();
        }
        let slot = self.slot(&state);
        if self.table[slot] != 0 {
            return false;
        }
        self.states.push(state);
        self.from.push(from as u32);
        self.table[slot] = u32::try_from(self.states.len()).expect("bounds that keep it small");
        true
    }

    /// Where a state is, or would be.
    fn slot(&self, state: &Packed) -> usize {
        let mask = self.table.len() - 1;
        let mut slot = hash(state) as usize & mask;
        while self.table[slot] != 0 && self.states[self.table[slot] as usize - 1] != *state {
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn grow(&mut self) {
        self.table = vec![0; (self.table.len() * 4).max(1 << 16)];
        for position in 0..self.states.len() {
            let slot = self.slot(&self.states[position]);
            self.table[slot] = position as u32 + 1;
        }
    }

    fn way_to_last(&self) -> Vec<Packed> {
        let mut position = self.states.len() - 1;
        let mut way = vec![self.states[position]];
        while position != 0 {
            position = self.from[position] as usize;
            way.push(self.states[position]);
        }
        way.reverse();
        way
    }
}

/// Spreads states over the table.
fn hash(state: &Packed) -> u64 {
    let mixed =
        state.iter().fold(0, |hash: u64, word| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
    mixed ^ mixed >> 32
}
