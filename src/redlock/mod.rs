//! The lock engine: leases on a majority of independent Redis masters, by the RedLock algorithm. Knows nothing of Kubernetes.
//!
//! # Layout
//! - [`quorum`]: how many votes make a majority, and when an outcome is decided
//! - [`validity`]: until when a grant is proven, on the holder's own monotonic clock
//! - [`fence`]: fencing tokens and the clock that proposes them
//! - [`key`]: names of locks and what they are called on a node; [`owner`]: who holds a key
//! - [`error`]: what can go wrong, which node said so, and the bounded words for it
//! - [`environment`]: wall clock and randomness
//! - [`node`]: what the engine asks of a node; [`redis_node`]: a Redis server as such
//! - [`client`]: acquire, renew, release and read by majority; its private parts `vote` (one vote on a grant), `wait` (for
//!   a lock that another holds) and `line` (of this process's contenders)
//! - [`lease`]: a held lock, as its holder sees it; its private part `watchdog` keeps it; [`reentrant`]: locks that their
//!   holder may take again

pub mod client;
pub mod environment;
pub mod error;
pub mod fence;
pub mod key;
pub mod lease;
mod line;
mod look;
pub mod node;
pub mod owner;
pub mod quorum;
pub mod read;
pub mod redis_node;
pub mod reentrant;
pub mod release;
pub mod validity;
mod vote;
mod wait;
mod watchdog;

pub use client::{Client, Wait};
pub use environment::{Environment, System};
pub use error::{Error, NodeError, Reason};
pub use fence::Token;
pub use key::LockKey;
pub use lease::{Grant, Lease, LeaseOptions, LeaseState, Loss, Renewal};
pub use owner::Owner;
pub use read::Observation;
pub use redis_node::{Address, ClientCertificate, Credentials, Endpoint, Health, Marker, RedisNode, TlsFiles};
pub use reentrant::{Hold, Reentrant};
pub use release::Released;
