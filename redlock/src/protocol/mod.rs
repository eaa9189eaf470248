//! The decisions of the protocol, as values: no I/O, no clock, no async.
//!
//! The engine sends requests, feeds each answer to one of these tallies, and acts on the verdict. A vote is counted in
//! [`vote`] and nowhere else. The model in `tests/model` runs on the same tallies.

pub(crate) mod contention;
pub mod reading;
pub mod release;
pub mod renewal;
pub mod vote;
pub(crate) mod waiting;
