#!/usr/bin/env bash
# image.sh [release|dev]: builds the operator's image without a network: a static binary by this machine's cargo, then the
# Dockerfile's target `prebuilt` around it. The result is an OCI archive (with IMAGE_BUILDER=docker also an image in Docker);
# its path is printed.
#   release   what is shipped; compiles everything once more (minutes the first time)
#   dev       for the end-to-end tests: links what `cargo test` has compiled (seconds)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/lib/say.sh

profile=${1:-release}
out=target/image
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
tag=docker.io/library/redlock-operator:$version
builder=${IMAGE_BUILDER:-$(have buildah && echo buildah || echo docker)}
have "$builder" || die "an image needs buildah or docker, and neither is installed" "make setup installs buildah."

build_release() {
  local target
  target=$(uname -m)-unknown-linux-gnu
  # Its own target directory: other flags in the common one would make every debug build start afresh. And --target
  # keeps +crt-static away from build scripts and procedural macros.
  say "compiling the release binary (minutes the first time)"
  CARGO_TARGET_DIR=$out RUSTFLAGS='-C target-feature=+crt-static' \
    cargo build --locked --release --bin redlock --target "$target" >&2
  binary=$out/$target/release/redlock
  archive=$out/redlock-operator.tar
}

# Cargo would compile most dependencies again, for the static flag or because tests enable more of their features. The
# library that the tests link is there already, so only main.rs is compiled here, and linked statically.
build_dev() {
  local library edition
  say "compiling the library as the tests do, and linking it statically"
  library=$(cargo test --locked --no-run --test e2e --message-format=json-render-diagnostics \
    | jq -r 'select(.reason == "compiler-artifact" and .target.name == "redlock_operator" and (.profile.test | not))
        | .filenames[] | select(endswith(".rlib"))')
  [[ -e $library ]] || die "cargo names no library redlock_operator"
  edition=$(sed -n 's/^edition = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
  binary=$out/dev/redlock
  archive=$out/redlock-operator-dev.tar
  mkdir -p "$out/dev"
  rustc --edition "$edition" --crate-name redlock src/main.rs --extern "redlock_operator=$library" \
    -L "dependency=$(dirname "$library")" -C target-feature=+crt-static -C strip=symbols -o "$binary" >&2
}

check_static() {
  ! ldd "$binary" >/dev/null 2>&1 || ldd "$binary" | grep -q 'statically linked' \
    || die "$binary needs shared libraries, but the image has none"
}

check_safe() {
  [[ $("$binary" --version) == "redlock $version" ]] || die "$binary is not a build for an image: $("$binary" --version)"
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
      # Temporary storage: the archive is the product.
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

case $profile in
  release) build_release ;;
  dev) build_dev ;;
  *) die "no such profile: $profile" "Known are release (the default) and dev." ;;
esac
check_static
check_safe
build_image
say "built $tag ($profile), $(du -h "$archive" | cut -f1)"
echo "$archive"
