//! Tests on a real Kubernetes.

fn main() {}
