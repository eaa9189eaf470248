//! The engine on real Redis servers.
