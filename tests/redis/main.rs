//! The engine on real Redis servers, which the tests start on loopback and end by their process.

mod acquire;
mod agent;
mod faults;
mod keep;
mod server;
mod waiting;
