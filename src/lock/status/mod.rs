//! The status of locks: what it shows, when its times are refreshed, and how it is written.
//!
//! # Layout
//! - [`compute`]: the status of one lock, as a pure function of what is known and of the time
//! - [`mod@write`]: writes that status to the API server
//! - [`schedule`]: which status is refreshed next; [`budget`]: how many writes a second

pub(crate) mod budget;
pub(crate) mod compute;
pub(crate) mod schedule;
#[cfg(test)]
mod tests;
pub(crate) mod write;

pub(crate) use compute::Now;
pub(crate) use schedule::StatusSchedule;
