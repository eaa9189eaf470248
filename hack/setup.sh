#!/usr/bin/env bash
# Installs what a fresh machine lacks to build, test and demonstrate this project; does nothing where all is there.
# hack/cluster/cluster.sh installs what only the local cluster needs; hack/lint.sh installs cargo-deny.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/lib/say.sh
. hack/lib/packages.sh

toolchain=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)

install_rust() {
  PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
  if ! have rustup && ! have cargo; then
    if apt-cache policy rustup 2>/dev/null | grep -q 'Candidate: [0-9]'; then
      install_packages rustup
    else
      die "Rust is not installed, and this system has no package of rustup" \
        "Install rustup from the Rust project, open a new shell, and run this again." \
        "It then installs Rust $toolchain by itself, as rust-toolchain.toml says."
    fi
  fi
  # rustup reads the toolchain file in this folder. Some versions install it by themselves, others have to be asked.
  if have rustup && ! cargo --version >/dev/null 2>&1; then
    say "installing Rust $toolchain"
    rustup toolchain install "$toolchain" --profile minimal --component rustfmt,clippy >&2 \
      || die "rustup could not install Rust $toolchain" "Check the network, or install it by hand: rustup toolchain install $toolchain"
  fi
  local found
  found=$(cargo --version | cut -d' ' -f2)
  [[ $(printf '%s\n' "$toolchain" "$found" | sort -V | head -n 1) == "$toolchain" ]] \
    || die "Rust $found is too old: this project needs $toolchain or newer" "With rustup installed, the right version is used automatically."
  if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
    die "rustfmt or clippy is missing" "Install them: rustup component add rustfmt clippy"
  fi
}

check_nodejs() {
  local wanted found
  wanted=$(sed -n 's/.*"node": ">=\([0-9]*\)".*/\1/p' redlock/tests/interop/node-redlock/package.json)
  found=$(node --version)
  found=${found#v}
  ((${found%%.*} >= wanted)) || die "Node.js $found is too old: an interop test needs Node.js $wanted or newer" \
    "Where the system's own package is older, install Node.js from its makers and put it into PATH."
}

need_packages make:make gcc:gcc 'libc6-dev:/usr/lib/*/libc.a' ca-certificates:/etc/ssl/certs/ca-certificates.crt \
  git:git shellcheck:shellcheck redis-server:redis-server redis-tools:redis-cli jq:jq nodejs:node npm:npm \
  'libfaketime:/usr/lib/*/faketime/libfaketimeMT.so.1' prometheus:promtool
install_rust
need_go 'an interop test' redlock/tests/interop/redsync/go.mod
check_nodejs
if [[ ${USE_EXISTING_CLUSTER:-} != 1 ]]; then
  hack/cluster/cluster.sh requirements
elif ! have docker; then
  need_packages buildah:buildah # for the operator's image
fi
