#!/usr/bin/env bash
# Builds the operator's image without a network: the static binary by this machine's cargo, then the Dockerfile's `prebuilt`
# target around it. The result is an OCI archive (with IMAGE_BUILDER=docker also an image in Docker); its path is printed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/lib/say.sh

out=target/image
archive=$out/redlock-operator.tar
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
tag=docker.io/library/redlock-operator:$version
target=$(uname -m)-unknown-linux-gnu
builder=${IMAGE_BUILDER:-$(have buildah && echo buildah || echo docker)}
have "$builder" || die "an image needs buildah or docker, and neither is installed" "make setup installs buildah."

build_binary() {
  # A target directory of its own: other flags in the common one would make every debug build start afresh. And --target
  # keeps +crt-static away from build scripts and procedural macros.
  say "compiling the release binary (minutes at the first time)"
  CARGO_TARGET_DIR=$out RUSTFLAGS='-C target-feature=+crt-static' \
    cargo build --locked --release --bin redlock --target "$target" >&2
  binary=$out/$target/release/redlock
  ! ldd "$binary" >/dev/null 2>&1 || ldd "$binary" | grep -q 'statically linked' \
    || die "$binary needs shared libraries, but the image has none"
}

build_image() {
  local work
  work=$(mktemp -d "$out/context.XXXXXX")
  # shellcheck disable=SC2064 # the value of now
  trap "rm -rf '$work'" EXIT
  mkdir "$work/context"
  cp "$binary" "$work/context/redlock"
  case $builder in
    docker)
      docker build -q --target prebuilt -f Dockerfile -t "$tag" "$work/context" >&2
      docker save -o "$work/image.tar" "$tag"
      ;;
    *)
      # Storage that goes away: the archive is the product.
      local storage=(--root "$PWD/$work/storage" --runroot "$PWD/$work/run" --storage-driver vfs)
      if ! buildah "${storage[@]}" bud -q --target prebuilt -f Dockerfile -t "$tag" "$work/context" >"$work/log" 2>&1 \
        || ! buildah "${storage[@]}" push -q "$tag" "oci-archive:$work/image.tar:$tag" >>"$work/log" 2>&1; then
        cat "$work/log" >&2
        die "buildah could not build $tag"
      fi
      ;;
  esac
  mv "$work/image.tar" "$archive"
}

build_binary
build_image
say "built $tag, $(du -h "$archive" | cut -f1)"
echo "$archive"
