#!/usr/bin/env bash
# e2e.sh [NAME]: the tests on a real Kubernetes, those whose name contains NAME. Brings up the local cluster and takes it
# down at the end, also after a failure or Ctrl-C, unless KEEP=1. USE_EXISTING_CLUSTER=1: uses $KUBECONFIG's instead.
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
    say "KEEP=1: the cluster stays up; eval \"\$(hack/cluster/cluster.sh env)\" points kubectl to it, make cluster-down ends it"
  else
    release_cluster
  fi
  exit "$rc"
}

image=$(hack/image.sh)
trap finish EXIT
trap 'exit 130' INT TERM
acquire_cluster
load_image "$image"
say "end-to-end tests"
E2E_OPERATOR_IMAGE=$(image_tag) E2E_REDIS_IMAGE=${REDIS_IMAGE:-} \
  cargo test -p redlock-operator --test e2e -- --test-threads="${E2E_THREADS:-4}" "$@"
