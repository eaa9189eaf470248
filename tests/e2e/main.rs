//! The operator's promises, on a real Kubernetes cluster with real Redis servers.
//!
//! `make e2e` starts both and runs this. Each module has one subject, each function tests one promise. Each scenario has a
//! namespace and a cluster of its own. Scenarios that disturb the operator run alone.

// A test fails by a panic, and a scenario's future is polled in one place only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::large_futures)]
// Durations of constants: a difference below zero fails the test.
#![allow(clippy::unchecked_time_subtraction)]

#[allow(dead_code)] // Some of it is of use to the other programs on a real Kubernetes only.
mod harness;

mod api_server_gone;
mod chart;
mod crds;
mod dead_machines;
mod deletion;
mod drains;
mod election;
mod gone_masters;
mod held;
mod lost_majority;
mod lost_masters;
mod operator_gone;
mod passwords;
mod refusals;
mod refused_pods;
mod retirement;
mod two_operators;
mod uninstall;
mod waiting;
