#!/usr/bin/env bash
# interop.sh [NAME]: tests of the engine beside other RedLock libraries, those whose name contains NAME. Builds the libraries'
# contenders, as pinned in redlock/tests/interop, into target/interop.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/lib/say.sh

build=$PWD/target/interop
mkdir -p "$build/node-redlock"

say "building the contender of redsync"
(cd redlock/tests/interop/redsync && go build -mod=readonly -o "$build/redsync" .)

say "installing the contender of node-redlock"
cp redlock/tests/interop/node-redlock/{main.js,package.json,package-lock.json} "$build/node-redlock/"
# A copy of the lock file, made when all its packages are installed.
installed=$build/node-redlock/node_modules/.installed
if ! cmp -s "$build/node-redlock/package-lock.json" "$installed"; then
  (cd "$build/node-redlock" && npm ci --no-audit --no-fund --loglevel=error)
  cp "$build/node-redlock/package-lock.json" "$installed"
fi

say "interop tests"
# Without -p: the same features of dependencies as in `cargo test`, so that nothing is compiled twice.
cargo build --locked --example interop-contender
cargo test --locked --test interop -- --show-output "$@"
