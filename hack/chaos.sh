#!/usr/bin/env bash
# chaos.sh [ARGUMENT...]: the storm of tests/chaos on the local cluster. CHAOS_MINUTES and CHAOS_SEED: of the long form.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/lib/say.sh
. hack/lib/packages.sh

need_go 'a contender of the storm' redlock/tests/interop/redsync/go.mod
mkdir -p target/interop
say "building the contender of redsync"
(cd redlock/tests/interop/redsync && go build -mod=readonly -o "$OLDPWD/target/interop/redsync" .)
E2E_TEST=chaos E2E_THREADS=1 exec hack/e2e.sh --nocapture "$@"
