#!/usr/bin/env bash
# e2e.sh [NAME]: the tests on a real Kubernetes, those whose name contains NAME. Starts the local cluster and stops it at the
# end, also after a failure or Ctrl-C, unless KEEP=1. USE_EXISTING_CLUSTER=1: uses $KUBECONFIG's cluster instead.
# E2E_FULL=1 also runs the tests that wait about a minute until Kubernetes gives a dead machine up.
# E2E_TEST=scale runs that test program instead, E2E_FEATURES compiles it with features.
# IMAGE_PROFILE=release tests the operator as it is shipped, instead of what the tests have compiled already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/lib/say.sh
. hack/lib/target_cluster.sh

finish() {
  local rc=$?
  trap - EXIT INT TERM
  if ((rc)); then
    local dump
    dump=target/e2e-failure-$(date +%Y%m%d-%H%M%S)
    dump_cluster "$dump" || true
    say "e2e failed; the cluster's objects, events and logs are in $dump"
  fi
  if [[ ${KEEP:-} == 1 ]]; then
    say "KEEP=1: the cluster stays up; eval \"\$(hack/cluster/cluster.sh env)\" points kubectl to it, make cluster-down stops it"
  else
    release_cluster
  fi
  exit "$rc"
}

image=$(build_image "${IMAGE_PROFILE:-dev}")
trap finish EXIT
trap 'exit 130' INT TERM
acquire_cluster
load_image "$image"
say "end-to-end tests: ${E2E_TEST:-e2e}"
# Without -p: the same features of dependencies as in `cargo test`, so that nothing is compiled twice.
slow=()
[[ ${E2E_FULL:-} != 1 ]] || slow=(--include-ignored)
features=()
[[ -z ${E2E_FEATURES:-} ]] || features=(--features "$E2E_FEATURES")
E2E_OPERATOR_IMAGE=$(image_tag) E2E_REDIS_IMAGE=${REDIS_IMAGE:-} \
  cargo test --locked "${features[@]}" --test "${E2E_TEST:-e2e}" -- --test-threads="${E2E_THREADS:-4}" "${slow[@]}" "$@"
