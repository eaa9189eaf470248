//! What an error of the Redis library says about a master.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::endpoint::tls_error;
use crate::error::MasterError;

/// The error of a master, from an error of the Redis library.
pub(super) fn master_error(error: &RedisError) -> MasterError {
    // The text of an I/O or server error carries no password: the library keeps credentials out of its errors.
    match error.kind() {
        ErrorKind::Io => tls_error(error).unwrap_or_else(|| MasterError::Unreachable(error.to_string())),
        ErrorKind::AuthenticationFailed | ErrorKind::Server(ServerErrorKind::NoPerm) => {
            MasterError::Auth(error.to_string())
        }
        ErrorKind::Server(ServerErrorKind::BusyLoading) => {
            MasterError::Misconfigured("still loading its data".to_owned())
        }
        ErrorKind::Server(ServerErrorKind::ReadOnly) => {
            MasterError::Misconfigured("a replica, not a master".to_owned())
        }
        ErrorKind::RESP3NotSupported => MasterError::Misconfigured("Redis 6 or later is needed (RESP3)".to_owned()),
        _ => match error.code() {
            Some("NOAUTH" | "WRONGPASS") => MasterError::Auth(error.to_string()),
            Some("MISCONF" | "NOREPLICAS") => MasterError::Misconfigured(error.to_string()),
            Some("OOM") => MasterError::OutOfMemory,
            _ => MasterError::Protocol(error.to_string()),
        },
    }
}
