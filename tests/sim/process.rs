//! A process: one client, which its contenders share.

use std::sync::{Arc, Mutex, PoisonError};

use redlock_operator::redlock::Client;

use crate::node::{SimNode, Surroundings};
use crate::plan::NODE_TIMEOUT;
use crate::rules::Rule;
use crate::world::World;

/// A process of the simulated world.
pub struct Process {
    world: World,
    number: usize,
    client: Mutex<Client<SimNode>>,
}

impl Process {
    pub fn new(world: World, number: usize) -> Self {
        let client = Mutex::new(connect(&world, number));
        Self { world, number, client }
    }

    /// Its client.
    pub fn client(&self) -> Client<SimNode> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Shuts its client down, and has another from then on.
    pub async fn shut_down(&self) {
        self.world.note(|| format!("process {} shuts its client down", self.number));
        self.client().shutdown().await;
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = connect(&self.world, self.number);
    }
}

fn connect(world: &World, client: usize) -> Client<SimNode> {
    let (nodes, rules) = {
        let state = world.now();
        (state.plan.nodes, state.plan.rules)
    };
    // Some know only the first and the last.
    let known = |node: &usize| rules.broken != Some(Rule::SameNodes) || client.is_multiple_of(2) || *node < 2;
    let nodes: Vec<_> = (0..nodes).filter(known).map(|node| SimNode::new(world.clone(), client, node)).collect();
    Client::with_environment(nodes, NODE_TIMEOUT, Arc::new(Surroundings { world: world.clone(), client }))
}
