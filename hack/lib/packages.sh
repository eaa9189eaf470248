# shellcheck shell=bash
# Installs the Debian packages that a machine lacks, and only those; checks the requirements that are no such packages. Needs
# say.sh.

# need_packages NAME:FILE-OR-COMMAND...: each package with a command, or an absolute path, that proves it is installed.
need_packages() {
  local pair package proof missing=()
  for pair; do
    package=${pair%%:*} proof=${pair#*:}
    if [[ $proof == /* ]]; then
      compgen -G "$proof" >/dev/null || missing+=("$package")
    else
      have "$proof" || missing+=("$package")
    fi
  done
  ((${#missing[@]})) || return 0
  install_packages "${missing[@]}"
}

install_packages() {
  have apt-get || die "missing on this machine: $*" \
    "These are Debian's package names, and there is no apt-get here: install the equivalents by hand and run this again."
  [[ $(id -u) == 0 ]] || die "missing on this machine: $*" "Run this as root, or first: sudo apt-get install -y $*"
  say "installing with apt: $*"
  local log
  log=$(mktemp)
  # An old package list names versions which are no longer served: refresh it once, then install.
  if ! { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends -o DPkg::Lock::Timeout=120 "$@"; } \
    >"$log" 2>&1 </dev/null; then
    tail -n 15 "$log" >&2
    die "apt could not install: $*" "The whole output is in $log."
  fi
  rm -f "$log"
}

# need_go WHAT GO_MOD...: Go is installed, in a version that all these modules accept. From 1.21 on, Go fetches newer versions
# by itself.
need_go() {
  local what=$1 wanted found module
  shift
  wanted=$(sed -n 's/^go \([0-9.]*\)$/\1/p' "$@" | sort -V | tail -n 1)
  have go || die "Go is not installed; $what needs Go $wanted or newer" \
    "Debian's own package is too old: install Go from its makers and put it into PATH."
  found=$(GOTOOLCHAIN=local go env GOVERSION)
  found=${found#go}
  [[ $(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1) == "$wanted" ]] && return
  for module; do
    (cd "$(dirname "$module")" && go list -m) >/dev/null 2>&1 \
      || die "Go $found is too old: $what needs Go $wanted or newer, and fetching that by GOTOOLCHAIN=auto failed"
  done
}
