//! What the agent answers to "who leads?". Pure: from what was proven or read, and when, on the agent's own monotonic clock.

use std::time::Duration;

use redlock_engine::{Observation, Owner};
use serde::Serialize;
use tokio::time::Instant;

/// The answer to `GET /`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Answer {
    /// The leader; empty if nobody leads, or if that is unknown.
    pub(crate) name: String,
    /// The identity of this pod. Equal to `name` only while this pod is proven to lead.
    #[serde(rename = "self")]
    pub(crate) self_: String,
    /// Fencing token of the leader's grant.
    pub(crate) token: Option<u64>,
    /// For how long the leader is proven to lead from now on, even if its lease is not renewed again.
    pub(crate) valid_for_ms: u64,
    /// Age of this answer's source; absent if there never was one.
    pub(crate) age_ms: Option<u64>,
}

/// The grant of this pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnGrant {
    /// Its fencing token.
    pub(crate) token: u64,
    /// When its last renewal was sent.
    pub(crate) renewed_at: Instant,
    /// Until when it is valid.
    pub(crate) valid_until: Instant,
}

/// What a majority of masters showed at the last reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Knowledge {
    /// The holder of the lock, if there is one.
    pub(crate) leader: Option<Leader>,
    /// When the reading was sent: it is at most this old.
    pub(crate) read_at: Instant,
}

/// A holder, as the masters show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    /// Its identity; the plain value of the key if another library holds it.
    pub(crate) name: String,
    /// Its fencing token; other libraries have none.
    pub(crate) token: Option<u64>,
    /// Until when it holds the lock at least.
    pub(crate) valid_until: Instant,
}

impl Knowledge {
    /// What an observation shows whose reading was sent at `read_at`. If the key never expires (it is not one of ours), its
    /// holder counts for `fresh`.
    #[must_use]
    pub(crate) fn of(observation: &Observation, read_at: Instant, fresh: Duration) -> Self {
        let leader = observation.holder.as_deref().map(|holder| {
            let owner: Option<Owner> = holder.parse().ok();
            Leader {
                name: owner.as_ref().map_or(holder, |o| o.identity()).to_owned(),
                token: owner.map(|o| o.token().get()),
                valid_until: observation
                    .remaining
                    .and_then(|left| read_at.checked_add(left))
                    .unwrap_or(read_at + fresh),
            }
        });
        Self { leader, read_at }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Answer {
    /// The answer of `identity` at `now`. Its own grant comes first. Without one, a reading that shows this identity is of an
    /// earlier process of the same name: this one does not lead.
    #[must_use]
    pub(crate) fn new(identity: &str, held: Option<&OwnGrant>, known: Option<&Knowledge>, now: Instant) -> Self {
        let answer = |name: &str, token, valid_until: Instant, since: Option<Instant>| Self {
            name: name.to_owned(),
            self_: identity.to_owned(),
            token,
            valid_for_ms: millis(valid_until.saturating_duration_since(now)),
            age_ms: since.map(|since| millis(now.saturating_duration_since(since))),
        };
        if let Some(held) = held.filter(|held| now < held.valid_until) {
            return answer(identity, Some(held.token), held.valid_until, Some(held.renewed_at));
        }
        let read_at = known.map(|known| known.read_at);
        match known.and_then(|known| known.leader.as_ref()) {
            Some(leader) if now < leader.valid_until && leader.name != identity => {
                answer(&leader.name, leader.token, leader.valid_until, read_at)
            }
            _ => answer("", None, now, read_at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn observed(holder: Option<&str>, remaining: Option<Duration>) -> Observation {
        Observation { holder: holder.map(str::to_owned), remaining, votes: 3, fence: None, failures: Vec::new() }
    }

    fn json(answer: &Answer) -> String {
        serde_json::to_string(answer).unwrap()
    }

    #[test]
    fn a_leader_answers_for_itself() {
        let now = Instant::now();
        let held = OwnGrant { token: 17, renewed_at: now, valid_until: now + 9 * SECOND };
        let answer = Answer::new("web-0", Some(&held), None, now + 2 * SECOND);
        assert_eq!(json(&answer), r#"{"name":"web-0","self":"web-0","token":17,"validForMs":7000,"ageMs":2000}"#);
    }

    #[test]
    fn a_follower_names_the_leader_as_long_as_it_is_proven() {
        let now = Instant::now();
        let known = Knowledge::of(&observed(Some("web-0@17.0000000000000001"), Some(5 * SECOND)), now, SECOND);
        let answer = |after| Answer::new("web-1", None, Some(&known), now + after);
        assert_eq!(
            json(&answer(Duration::from_millis(400))),
            r#"{"name":"web-0","self":"web-1","token":17,"validForMs":4600,"ageMs":400}"#
        );
        assert_eq!(json(&answer(5 * SECOND)), r#"{"name":"","self":"web-1","token":null,"validForMs":0,"ageMs":5000}"#);
    }

    #[test]
    fn without_knowledge_nobody_leads() {
        let now = Instant::now();
        let none = r#"{"name":"","self":"web-1","token":null,"validForMs":0,"ageMs":null}"#;
        assert_eq!(json(&Answer::new("web-1", None, None, now)), none);
        let free = Knowledge::of(&observed(None, None), now, SECOND);
        let answer = Answer::new("web-1", None, Some(&free), now);
        assert_eq!((answer.name.as_str(), answer.age_ms), ("", Some(0)));
    }

    #[test]
    fn an_expired_own_lease_is_not_shown() {
        let now = Instant::now();
        let held = OwnGrant { token: 17, renewed_at: now, valid_until: now + SECOND };
        let answer = Answer::new("web-0", Some(&held), None, now + SECOND);
        assert_eq!((answer.name.as_str(), answer.token), ("", None));
    }

    #[test]
    fn what_an_earlier_life_of_the_same_name_held_does_not_make_a_leader() {
        let now = Instant::now();
        let known = Knowledge::of(&observed(Some("web-0@17.0000000000000001"), Some(5 * SECOND)), now, SECOND);
        assert_eq!(Answer::new("web-0", None, Some(&known), now).name, "");
    }

    #[test]
    fn the_value_of_another_library_is_shown_as_it_is() {
        let now = Instant::now();
        let known = Knowledge::of(&observed(Some("6f1c2a"), None), now, SECOND);
        let answer = Answer::new("web-0", None, Some(&known), now);
        assert_eq!((answer.name.as_str(), answer.token, answer.valid_for_ms), ("6f1c2a", None, 1000));
    }

    #[test]
    fn a_time_beyond_the_clock_is_no_panic() {
        let now = Instant::now();
        let known = Knowledge::of(&observed(Some("6f1c2a"), Some(Duration::MAX)), now, SECOND);
        assert_eq!(Answer::new("web-0", None, Some(&known), now).name, "6f1c2a");
    }
}
