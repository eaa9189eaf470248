#!/usr/bin/env bash
# All tests, one after the other: lint, unit (with doc tests and the engine on real Redis), interop (beside other RedLock
# libraries), end to end on a real Kubernetes, and there a short storm. Stops at the first stage that fails. The last line is
# the sum over all test programs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/lib/say.sh

mkdir -p target
log=target/test.log
: >"$log"

# count passed|failed: the sum over the closing lines of all test programs.
count() {
  awk -v what="$1;" '/^test result:/ {for (i = 2; i <= NF; i++) if ($i == what) n += $(i - 1)} END {print n + 0}' "$log"
}
summary() {
  local rc=$?
  local failed
  failed=$(count failed)
  # A stage that could not even be built or started has no closing line.
  ((rc == 0 || failed > 0)) || failed=1
  ((rc == 0)) || say "failed in stage: $stage (all output: $log)"
  echo "$(count passed) passed, $failed failed"
}
trap summary EXIT

stage=setup
hack/setup.sh
for stage in lint unit interop e2e storm; do
  say "=== $stage"
  make --no-print-directory "$stage" 2>&1 | tee -a "$log"
done
stage=
