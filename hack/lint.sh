#!/usr/bin/env bash
# Format and static checks of Rust, words, shell, dependencies and chart. Stops at the first failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/lib/say.sh
. hack/lib/cargo_deny.sh

say "rustfmt"
cargo fmt --check
say "words"
hack/words.sh
say "shellcheck"
mapfile -t scripts < <(find hack .ci redlock/benches -name '*.sh' -o -path .ci/run)
shellcheck "${scripts[@]}"
say "mutants apply"
hack/mutants.sh --check
say "clippy"
cargo clippy --quiet --workspace --all-targets --locked -- -D warnings
# Those that `cargo test` leaves out.
cargo clippy --quiet --locked --test e2e --test chaos --test scale -- -D warnings
say "rustdoc"
export RUSTDOCFLAGS='-D warnings'
# The engine as its users read it, the operator as those who work on it do.
cargo doc --quiet -p redlock-engine --no-deps --locked
cargo doc --quiet -p redlock-operator --no-deps --locked --document-private-items

for chart in charts/*/; do
  [[ -e $chart/Chart.yaml ]] || continue
  say "helm lint $chart"
  # The local cluster's build brings helm; an installed one does as well.
  if ! have helm; then
    hack/cluster/cluster.sh build tools
    eval "$(hack/cluster/cluster.sh env)"
  fi
  helm lint --quiet --strict "$chart"
done

say "cargo deny"
ensure_cargo_deny
cargo deny check bans licenses sources
# The advisories are a repository of their own, which not every machine can reach.
if cargo deny fetch db >/dev/null 2>&1; then
  cargo deny check advisories
else
  say "cargo deny: advisories skipped, their database cannot be fetched"
fi
