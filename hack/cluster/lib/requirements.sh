# shellcheck shell=bash
# Requirements of the machine: packages (installed when missing), root, a Go toolchain, and some features of its kernel.

need_root() { [[ $(id -u) == 0 ]] || die "a cluster needs root: it makes namespaces, mounts and network links" "Run it with sudo -E."; }

install_requirements() {
  [[ $(uname -s)/$(uname -m) == Linux/x86_64 || $(uname -s)/$(uname -m) == Linux/aarch64 ]] \
    || die "the local cluster runs on Linux (x86_64 or aarch64), this is $(uname -s)/$(uname -m)" \
      "Use a cluster of your own: see README.md beside cluster.sh."
  need_root
  need_packages util-linux:nsenter iproute2:ip procps:sysctl openssl:openssl \
    containerd:containerd runc:runc 'containernetworking-plugins:/usr/lib/cni/bridge' \
    iptables:iptables ipset:ipset nftables:nft conntrack:conntrack \
    buildah:buildah gcc:gcc 'libc6-dev:/usr/lib/*/libc.a' redis-server:redis-server redis-tools:redis-cli \
    'busybox-static:/usr/share/doc/busybox-static' ca-certificates:/etc/ssl/certs/ca-certificates.crt
}

check_go() { need_go "the local cluster, which is built from source," "$HERE"/*/go.mod; }

# Tries each feature, in namespaces that end with the attempt: a container or a locked-down machine can forbid a feature that
# the kernel's configuration has.
check_kernel() {
  local module
  if have modprobe; then
    for module in overlay bridge br_netfilter veth nf_tables nf_conntrack ip_set; do modprobe -q "$module" 2>/dev/null || true; done
  fi
  local no="this kernel (or the container that this runs in) does not permit"
  local hint="Use another machine, or a cluster of your own: see README.md beside cluster.sh."
  local dir missing
  dir=$(mktemp -d "$(dirname "$STATE")/kube-dev-check.XXXXXX")
  mkdir "$dir"/{lower,upper,work,merged}
  missing=$(unshare --mount --uts --pid --net --fork bash -s "$dir" 2>/dev/null <<'EOF' || echo "new mount, PID and network namespaces"
    try() { "${@:2}" >/dev/null 2>&1 || { echo "$1"; exit 0; }; }
    try "veth links" ip link add kdev-a type veth peer name kdev-b
    try "network bridges" ip link add kdev-c type bridge
    try "filters on bridges (module br_netfilter)" test -e /proc/sys/net/bridge/bridge-nf-call-iptables
    try "nftables" nft add table inet t
    try "ip sets, which NetworkPolicy needs" ipset create t hash:ip
    try "overlay mounts under ${1%/*}; KUBE_DEV_STATE names a folder elsewhere" \
      mount -t overlay -o "lowerdir=$1/lower,upperdir=$1/upper,workdir=$1/work" none "$1/merged"
EOF
  )
  rm -rf "$dir"
  [[ -z $missing ]] || die "$no $missing" "$hint"
  check_cgroups || die "$no control groups with cpu, memory and pids under /sys/fs/cgroup" "$hint"
}

cgroups_are_v2() { [[ -e /sys/fs/cgroup/cgroup.controllers ]]; }

check_cgroups() {
  local controller
  for controller in cpu memory pids; do
    if cgroups_are_v2; then
      grep -qw "$controller" /sys/fs/cgroup/cgroup.controllers || return 1
    else
      [[ -w /sys/fs/cgroup/$controller/cgroup.procs ]] || return 1
    fi
  done
}
