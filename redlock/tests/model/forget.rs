//! Forgets what cannot matter any more: fewer states, the same behaviour.

use crate::rules::Clocks;
use crate::state::{Answer, CLIENTS, Kind, Phase, State, TOKENS, request, requests_of};
use crate::steps::Event;
use crate::world::World;

impl World {
    /// Forgets what cannot matter any more.
    pub fn forget(&self, state: &mut State) {
        for index in 0..CLIENTS {
            let client = &state.clients[index];
            let waits = matches!(client.phase, Phase::Asking | Phase::Adopting);
            let in_vain = waits && client.window == 0 && self.rules.validity_from_send;
            let decided = client.phase == Phase::Holding && !client.round;
            for master in &mut state.masters {
                let answer = &mut master.answers[index];
                let idle = match answer {
                    Answer::None => continue,
                    // Only seeds need to know which masters lack the key; only a renewal, which have another's.
                    Answer::Missing => waits,
                    Answer::No => waits && self.rules.majority_of_configured || decided,
                    Answer::Yes | Answer::SlowYes => in_vain || decided,
                };
                if idle {
                    if in_vain && *answer == Answer::SlowYes {
                        self.note(Event::TooLate);
                    }
                    *answer = Answer::None;
                }
            }
        }
        // The largest tokens seen, where every token that can still be compared with them is larger.
        if self.bounds.clocks == Clocks::Agree && self.bounds.successions == 0 {
            let drawn =
                state.clients.iter().filter(|c| c.phase == Phase::Drawn).fold(0, |all, c| all | 1 << (c.token - 1));
            for master in &mut state.masters {
                let compared = master.requests & 0b11111 | drawn;
                if master.fence > 0 && compared & ((1 << master.fence) - 1) == 0 {
                    master.fence = 0;
                }
            }
            if state.clients.iter().all(|c| c.current() == 0 || c.current() >= state.granted) {
                state.granted = 0;
            }
        }
        if state.former_left > 0 {
            let release = request(Kind::Release, state.inherited);
            if state.masters.iter().all(|master| master.requests & release == 0) {
                state.former_left = 0;
            }
        }
        // Requests that compare with a token that a master does not have and cannot get, and whose answer nobody needs.
        let mut pointless = 0;
        if self.rules.compare_on_release {
            pointless |= request(Kind::Release, 1) * 0b11111;
        }
        if self.rules.compare_on_renew {
            pointless |= request(Kind::Renew, 1) * 0b11111;
        }
        let current = state.clients.iter().fold(0, |all, c| all | requests_of(c.current()));
        for master in &mut state.masters {
            let requests = master.requests & pointless & !current & !requests_of(master.owner);
            if requests != 0 {
                let creates = (master.requests | master.requests >> (Kind::Seed as u8 * TOKENS)) & 0b11111;
                master.requests &= !(requests & !(creates * 0b1_00001_00001_00001_00001));
            }
        }
    }
}
