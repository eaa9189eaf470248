# shellcheck shell=bash
# The pinned cargo-deny: this machine's own where it has that version, else one in a cache folder. Needs say.sh.

CARGO_DENY_VERSION=0.20.2

# ensure_cargo_deny: puts it into PATH; builds it where it is missing.
ensure_cargo_deny() {
  [[ $(cargo deny --version 2>/dev/null) != "cargo-deny $CARGO_DENY_VERSION" ]] || return 0
  local root=${XDG_CACHE_HOME:-$HOME/.cache}/redlock-operator/cargo-deny-$CARGO_DENY_VERSION log
  PATH=$root/bin:$PATH
  [[ ! -x $root/bin/cargo-deny ]] || return 0
  log=$(mktemp)
  say "installing cargo-deny $CARGO_DENY_VERSION (about 3 minutes on 2 cores, once)"
  # Unoptimized: it builds in half the time, and checks this project in seconds all the same.
  CARGO_PROFILE_DEV_DEBUG=0 nice cargo install --quiet --locked --debug --version "$CARGO_DENY_VERSION" --root "$root" cargo-deny \
    >"$log" 2>&1 || { tail -n 20 "$log" >&2; die "could not install cargo-deny $CARGO_DENY_VERSION" "The whole output is in $log."; }
  rm -f "$log"
}
