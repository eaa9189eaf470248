//! A process: one client, which its contenders share.

use std::sync::{Arc, Mutex, PoisonError};

use redlock_engine::Client;

use crate::master::{SimEnvironment, SimMaster};
use crate::plan::CALL_TIMEOUT;
use crate::rules::Rule;
use crate::world::World;

/// A process of the simulated world.
pub struct Process {
    world: World,
    number: usize,
    client: Mutex<Client<SimMaster>>,
}

impl Process {
    pub fn new(world: World, number: usize) -> Self {
        let client = Mutex::new(connect(&world, number));
        Self { world, number, client }
    }

    /// Its client.
    pub fn client(&self) -> Client<SimMaster> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Shuts its client down and makes another.
    pub async fn shut_down(&self) {
        self.world.note(|| format!("process {} shuts its client down", self.number));
        self.client().shutdown().await;
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = connect(&self.world, self.number);
    }
}

fn connect(world: &World, client: usize) -> Client<SimMaster> {
    let (masters, rules) = {
        let state = world.now();
        (state.plan.masters, state.plan.rules)
    };
    // Where clients know different masters, every second client knows only the first two.
    let known = |master: &usize| rules.broken != Some(Rule::SameMasters) || client.is_multiple_of(2) || *master < 2;
    let masters: Vec<_> =
        (0..masters).filter(known).map(|master| SimMaster::new(world.clone(), client, master)).collect();
    Client::with_environment(masters, CALL_TIMEOUT, Arc::new(SimEnvironment { world: world.clone(), client }))
        .expect("valid settings")
}
