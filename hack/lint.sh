#!/usr/bin/env bash
# Format and static checks of Rust, shell and chart. Ends at the first that fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/lib/say.sh

say "rustfmt"
cargo fmt --check
say "clippy"
cargo clippy --quiet --all-targets -- -D warnings
say "shellcheck"
mapfile -t scripts < <(find hack .ci redlock/benches -name '*.sh' -o -path .ci/run)
shellcheck "${scripts[@]}"

for chart in charts/*/; do
  [[ -e $chart/Chart.yaml ]] || continue
  say "helm lint $chart"
  # The cluster's build brings a helm; one of this machine's own does as well.
  if ! have helm; then
    hack/cluster/cluster.sh build tools
    eval "$(hack/cluster/cluster.sh env)"
  fi
  helm lint --quiet --strict "$chart"
done

if have cargo-deny; then
  say "cargo deny"
  cargo deny --all-features check bans licenses sources
  # The advisories are a repository of their own, which not every machine can reach.
  if cargo deny fetch db >/dev/null 2>&1; then
    cargo deny --all-features check advisories
  else
    say "cargo deny: advisories skipped, their database cannot be fetched"
  fi
else
  say "cargo deny: skipped, cargo-deny is not installed"
fi
