# shellcheck shell=bash
# Builds the container images of the local cluster from files of this machine (nothing is pulled), as OCI archives in the
# cache: $CACHE/image-<name>-<key>.tar. The key is a hash of the recipe and of its input files.

IMAGES=(pause coredns redis busybox)
APPLETS=(sh ash cat cp cut date echo env false find grep head hostname id kill ls mkdir mv nc nslookup printf ps pwd rm
  sed sleep sort stat tail tar tee test timeout touch tr true uname vi wc wget which whoami xargs)
BASE_PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

image_tag() { if [[ $1 == busybox ]]; then echo docker.io/library/busybox:1.35; else echo "localhost/$1:dev"; fi; }
image_file() { echo "$CACHE/image-$1-$(image_key "$1").tar"; }
image_key() {
  {
    declare -f "recipe_$1" build_image copy_with_libraries add_busybox
    echo "${APPLETS[@]}" "$BASE_PATH"
    "inputs_$1"
  } | hash_of
}
images_are_built() {
  local image
  for image in "${IMAGES[@]}"; do [[ -e $(image_file "$image") ]] || return 1; done
}
build_images() {
  local image file
  for image in "${IMAGES[@]}"; do
    file=$(image_file "$image")
    [[ -e $file ]] || build_image "$image" "$file"
  done
}

# build_image NAME FILE: uncompressed, since each node unpacks it at every start of the cluster. The recipe fills a context folder
# with a Dockerfile. Buildah's storage is temporary, so that nothing accumulates on the machine.
build_image() {
  local name=$1 file=$2 work
  work=$(mktemp -d "$CACHE/.tmp-image-XXXXXX")
  say "building image $(image_tag "$name")"
  mkdir "$work/context"
  "recipe_$name" "$work/context"
  local storage=(--root "$work/storage" --runroot "$work/run" --storage-driver vfs)
  if ! { buildah "${storage[@]}" bud -q -t "$(image_tag "$name")" "$work/context" \
    && buildah "${storage[@]}" push -q --disable-compression "$(image_tag "$name")" "oci-archive:$work/image.tar:$(image_tag "$name")"; } >"$work/log" 2>&1; then
    cat "$work/log" >&2
    rm -rf "$work"
    die "could not build the image $name"
  fi
  # Other checkouts may use other versions; a version that was not built for a week is cheap to rebuild.
  find "$CACHE" -maxdepth 1 -name "image-$name-*.tar" -mtime +7 -delete
  mv "$work/image.tar" "$file"
  rm -rf "$work"
}

inputs_pause() { cat "$HERE/images/pause.c"; }
recipe_pause() {
  gcc -static -Os -s -o "$1/pause" "$HERE/images/pause.c"
  printf 'FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT ["/pause"]\n' >"$1/Dockerfile"
}

inputs_coredns() { part_key coredns; }
recipe_coredns() {
  cp "$(part_dir coredns)/coredns" "$1/"
  printf 'FROM scratch\nCOPY coredns /coredns\nENTRYPOINT ["/coredns"]\n' >"$1/Dockerfile"
}

inputs_busybox() { sha256sum /bin/busybox; }
recipe_busybox() {
  local root=$1/root
  mkdir -p "$root"/{tmp,home}
  add_busybox "$root"
  echo 'root:x:0:0:root:/:/bin/sh' >"$root/etc/passwd"
  chmod 1777 "$root/tmp"
  printf 'FROM scratch\nCOPY root /\nENV PATH=%s\nCMD ["sh"]\n' "$BASE_PATH" >"$1/Dockerfile"
}

inputs_redis() { sha256sum "$HERE/images/redis-entrypoint.sh" /bin/busybox "$(readlink -f "$(command -v redis-server)")" "$(readlink -f "$(command -v redis-cli)")" | cut -d' ' -f1; }
recipe_redis() {
  local root=$1/root
  mkdir -p "$root"/{tmp,usr/local/bin} "$1/data"
  copy_with_libraries "$root" redis-server redis-cli
  add_busybox "$root"
  install -m 755 "$HERE/images/redis-entrypoint.sh" "$root/usr/local/bin/docker-entrypoint.sh"
  printf 'root:x:0:0:root:/:/bin/sh\nredis:x:999:999:redis:/data:/bin/sh\n' >"$root/etc/passwd"
  printf 'root:x:0:\nredis:x:999:\n' >"$root/etc/group"
  chmod 1777 "$root/tmp"
  cat >"$1/Dockerfile" <<EOF
FROM scratch
COPY root /
COPY --chown=999:999 data /data
ENV PATH=$BASE_PATH
WORKDIR /data
USER 999:999
EXPOSE 6379
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["redis-server"]
EOF
}

# copy_with_libraries ROOT COMMAND...: each command, under its own name, and the shared libraries that it loads.
copy_with_libraries() {
  local root=$1 command library
  shift
  for command; do
    install -D "$(readlink -f "$(command -v "$command")")" "$root/usr/bin/$command"
    for library in $(ldd "$root/usr/bin/$command" | grep -o '/[^ ]*'); do
      install -D "$(readlink -f "$library")" "$root$library"
    done
  done
}

# add_busybox ROOT: the binary and a link for each applet. Debian's static build crashes on `wget -T SECONDS` and on https: use
# `timeout SECONDS wget` instead.
add_busybox() {
  local applet
  mkdir -p "$1"/{bin,etc}
  cp /bin/busybox "$1/bin/"
  for applet in "${APPLETS[@]}"; do ln -s busybox "$1/bin/$applet"; done
}
