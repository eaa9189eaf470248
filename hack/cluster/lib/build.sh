# shellcheck shell=bash
# Builds the cluster's binaries from pinned Go modules into the cache.
#
# A part (one Go module: kubernetes, tools, coredns, netpol) is $CACHE/<part>-<key>/. The key is a hash of its pins and build
# flags: a changed pin rebuilds that part only, and checkouts with other pins coexist. A part appears by a rename when it is
# complete. Go's own cache keeps what was compiled before an interruption.

GO_PARTS=(kubernetes tools coredns netpol)
GO_SETTINGS=(CGO_ENABLED=0 GOFLAGS=-trimpath)

# hash_of: twelve characters of the hash of standard input.
hash_of() { sha256sum | cut -c1-12; }

part_key() {
  {
    cat "$HERE/$1"/go.mod "$HERE/$1"/go.sum "$HERE/$1"/tools.go
    echo "${GO_SETTINGS[@]}" "$(link_flags "$1")" "$(uname -m)"
  } | hash_of
}
part_dir() { echo "$CACHE/$1-$(part_key "$1")"; }

# The hash of everything that a running cluster was made of.
build_key() { { for part in "${GO_PARTS[@]}"; do part_key "$part"; done; for image in "${IMAGES[@]}"; do image_key "$image"; done; } | hash_of; }

tools_path() { echo "$(part_dir kubernetes):$(part_dir tools)"; }
add_tools_to_path() { PATH=$(tools_path):$(part_dir coredns):$(part_dir netpol):$PATH:/usr/local/sbin:/usr/sbin:/sbin; }

link_flags() { # PART: without debug information; Kubernetes reports the version that is set here
  local flags="-s -w"
  if [[ $1 == kubernetes ]]; then
    local version minor
    version=$(sed -n 's/^require k8s.io\/kubernetes \(v[0-9.]*\).*/\1/p' "$HERE/kubernetes/go.mod")
    minor=$(cut -d. -f2 <<<"$version")
    flags+=" -X k8s.io/component-base/version.gitVersion=$version"
    flags+=" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$minor"
  fi
  echo "$flags"
}

# build_all [PART...]: builds the missing of these parts; without a name, of all parts and images.
build_all() {
  local part wanted=("$@") missing=()
  (($#)) || wanted=("${GO_PARTS[@]}")
  for part in "${wanted[@]}"; do [[ -e $(part_dir "$part") ]] || missing+=("$part"); done
  ((${#missing[@]} == 0)) && { (($#)) || images_are_built; } && return
  check_go
  mkdir -p "$CACHE"
  (
    exec 8>>"$CACHE/build.lock"
    flock -n 8 || { say "waiting for another build into $CACHE"; flock 8; }
    local i=0
    for part in "${missing[@]}"; do
      i=$((i + 1))
      # The other build may have made it meanwhile.
      [[ -e $(part_dir "$part") ]] || build_part "$part" "part $i of ${#missing[@]}"
    done
    (($#)) || build_images
  )
}

# build_part PART PROGRESS. Builds the commands that the module's tools.go imports.
build_part() {
  local part=$1 progress=$2 dir started=$SECONDS log=$CACHE/build-$1.log
  dir=$(part_dir "$part")
  rm -rf "$CACHE/.tmp-$part-"* # of an interrupted build: the lock excludes any other
  local work=$CACHE/.tmp-$part-$$ packages total
  mkdir -p "$work"
  say "building $part, $progress: downloading its Go modules"
  cd "$HERE/$part" || return
  packages=$(sed -n 's/.*_ "\(.*\)"/\1/p' tools.go)
  : >"$log"
  # shellcheck disable=SC2086 # a list of packages
  total=$(with_ticker "$part" downloaded_modules "$log" go list -deps $packages | wc -l)
  ((total > 0)) || { tail -n 20 "$log" >&2; die "could not list or download the packages of $part" "The whole output is in $log."; }
  say "building $part, $progress: at most $total Go packages"
  : >"$log"
  # shellcheck disable=SC2086
  with_ticker "$part" compiled_packages "$log" \
    env "${GO_SETTINGS[@]}" nice go build -v -ldflags "$(link_flags "$part")" -o "$work/" $packages \
    || { tail -n 20 "$log" >&2; die "could not build $part" "The whole output is in $log. The next attempt continues from here."; }
  # Go names a command after the last element of its package's path.
  [[ ! -e $work/server ]] || mv "$work/server" "$work/etcd"
  mv -T "$work" "$dir"
  rm -f "$log"
  say "built $part in $(seconds_as_text $((SECONDS - started)))"
}
downloaded_modules() { printf '%d modules downloaded' "$(grep -c '^go: downloading' "$1")"; }
compiled_packages() { printf '%d packages compiled' "$(grep -c '^[a-z]' "$1")"; }
