//! What a server must be to keep locks, as it describes itself.

use redis::aio::{ConnectionLike as _, MultiplexedConnection};

use super::endpoint::Marker;
use super::error::master_error;
use crate::error::MasterError;

/// The sections of INFO that are needed. Each is asked for by itself: Redis before 7 takes one at a time. No more than
/// these: thousands of clients may connect to a server at once. That it is loading its data it says itself to any script.
const SECTIONS: [&str; 4] = ["server", "replication", "memory", "cluster"];

/// Checks that the server is fit, and returns the name of its process, which may be empty without a marker.
pub(super) async fn check(connection: &mut MultiplexedConnection, marker: Marker) -> Result<String, MasterError> {
    let mut commands = redis::Pipeline::new();
    for section in SECTIONS {
        commands.cmd("INFO").arg(section);
    }
    let answers =
        connection.req_packed_commands(&commands, 0, SECTIONS.len()).await.map_err(|error| master_error(&error))?;
    let mut text = String::new();
    for answer in answers {
        let answer = answer.extract_error().map_err(|error| master_error(&error))?;
        let section: String =
            redis::from_redis_value(answer).map_err(|error| MasterError::Protocol(error.to_string()))?;
        text.push_str(&section);
        text.push('\n');
    }
    judge(&redis::InfoDict::new(&text), marker)
}

fn judge(info: &redis::InfoDict, marker: Marker) -> Result<String, MasterError> {
    let field = |name: &str| info.get::<String>(name).unwrap_or_default();
    let unfit = |why: String| Err(MasterError::Misconfigured(why));
    if field("role") == "slave" {
        return unfit("a replica, not a master".to_owned());
    }
    let mode = field("redis_mode");
    if mode == "cluster" || field("cluster_enabled") == "1" {
        return unfit("in cluster mode: a master must be a server on its own".to_owned());
    }
    if mode == "sentinel" {
        return unfit("a sentinel, not a master".to_owned());
    }
    // Any other policy would evict a lock that somebody holds once memory is short.
    let policy = field("maxmemory_policy");
    if !matches!(policy.as_str(), "noeviction" | "") {
        return unfit(format!("its maxmemory-policy is {policy}, and has to be noeviction"));
    }
    let run_id = field("run_id");
    if run_id.is_empty() && marker == Marker::Required {
        return unfit("its INFO shows no run_id, which the armed marker must name: is there a proxy?".to_owned());
    }
    Ok(run_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_would_lose_or_share_locks_is_refused_with_the_reason() {
        let fit = "run_id:abc\nrole:master\nredis_mode:standalone\ncluster_enabled:0\nmaxmemory_policy:noeviction";
        let judged = |text: &str| judge(&redis::InfoDict::new(text), Marker::Required);
        assert_eq!(judged(fit), Ok("abc".to_owned()));
        for (from, to, why) in [
            ("role:master", "role:slave", "a replica"),
            ("redis_mode:standalone", "redis_mode:cluster", "cluster mode"),
            ("redis_mode:standalone", "redis_mode:sentinel", "a sentinel"),
            ("cluster_enabled:0", "cluster_enabled:1", "cluster mode"),
            ("noeviction", "volatile-ttl", "maxmemory-policy is volatile-ttl"),
            ("run_id:abc", "", "no run_id"),
        ] {
            let Err(MasterError::Misconfigured(said)) = judged(&fit.replace(from, to)) else { panic!("{to} is fit") };
            assert!(said.contains(why), "{said}");
        }
        let unnamed = fit.replace("run_id:abc", "");
        assert_eq!(judge(&redis::InfoDict::new(&unnamed), Marker::Unused), Ok(String::new()));
    }
}
