#!/usr/bin/env bash
# A real Kubernetes on one Linux machine: a control plane and NODES workers, each in namespaces of its own, with
# containerd, runc, CNI, kube-proxy, CoreDNS and NetworkPolicy enforced. See README.md beside this file.
#
#   cluster.sh up                start it (seconds, once built); prints the environment for kubectl and helm
#   cluster.sh down              stop it and remove everything, also after a crash
#   cluster.sh status            processes and the state of each node; exit code 0: all healthy
#   cluster.sh env               the lines that `up` prints: eval "$(cluster.sh env)"
#   cluster.sh build [PART...]   build missing parts into the cache (about 20 minutes on 2 cores, once); `tools`: only helm, etcd
#   cluster.sh requirements      install the Debian packages that it needs
#   cluster.sh load FILE.tar...  import OCI archives into every node
#   cluster.sh cut N | heal N      disconnect node N from the network, connect it again
#   cluster.sh freeze N | thaw N   pause node N's kubelet and runtime, resume them; its pods run all the time
#   cluster.sh kill N | boot N     cut node N's power; start it again with its disk
#
# KUBE_DEV_STATE (/tmp/kube-dev), KUBE_DEV_CACHE (~/.cache/kube-dev) and KUBE_DEV_NODES (3) change the defaults.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${KUBE_DEV_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kube-dev}
STATE=${KUBE_DEV_STATE:-/tmp/kube-dev}
NODES=${KUBE_DEV_NODES:-3}
# The addresses: node N is $SUBNET.(10+N) and its pods are $PODS.N.*; the API server is $API, this machine $SUBNET.254.
SUBNET=10.250.0
PODS=10.244
API=$SUBNET.1
export KUBECONFIG=$STATE/admin.kubeconfig

. "$HERE/../lib/say.sh"
. "$HERE/../lib/packages.sh"
. "$HERE/lib/requirements.sh"
. "$HERE/lib/build.sh"
. "$HERE/lib/images.sh"
. "$HERE/lib/processes.sh"
. "$HERE/lib/network.sh"
. "$HERE/lib/control_plane.sh"
. "$HERE/lib/node.sh"
. "$HERE/lib/teardown.sh"

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

# One start or stop at a time on this machine. Descriptor 9 is closed in all processes that stay (see `start`), but not in
# those that an `up` forks for its own work: after a kill -9 the next `down` waits until these have ended and start nothing more.
lock_cluster() {
  mkdir -p "$CACHE"
  exec 9>>"$CACHE/cluster.lock"
  flock -n 9 || { say "waiting for another cluster.sh, which starts or stops the cluster"; flock 9; }
}

print_env() {
  echo "export KUBECONFIG=$KUBECONFIG"
  echo "export PATH=$(tools_path):\$PATH"
}

up() {
  install_requirements
  check_kernel
  build_all
  lock_cluster
  if [[ -e $STATE/ready && $(cat "$STATE/ready") == "$(build_key)" ]] && is_healthy; then
    say "the cluster is up already"
    print_env
    return
  fi
  refuse_foreign_cluster
  if [[ -e $STATE ]] || leftovers; then
    if [[ -e $STATE/ready && $(cat "$STATE/ready") != "$(build_key)" ]]; then
      say "removing a cluster of other versions"
    else
      say "removing the remains of an earlier cluster"
    fi
    tear_down
  fi
  local started=$SECONDS
  trap 'warn "the cluster did not come up; logs: $STATE/log. cluster.sh up starts afresh, cluster.sh down cleans up."' EXIT
  say "starting a control plane and $NODES nodes"
  make_state
  make_network
  start_etcd
  make_certificates
  start_control_plane &
  local control=$!
  local n nodes=()
  for n in $(seq "$NODES"); do
    prepare_node "$n"
    boot_node "$n" &
    nodes+=($!)
  done
  # A separate wait for each, so that the failure of any of them ends the script.
  for n in "${nodes[@]}"; do wait "$n"; done
  load_images "$(image_file pause)" "$(image_file coredns)" "$(image_file redis)" "$(image_file busybox)"
  wait "$control"
  install_dns
  wait_for_nodes
  build_key >"$STATE/ready"
  trap - EXIT
  say "up after $((SECONDS - started)) s: $(kubectl version -o json 2>/dev/null | sed -n '/serverVersion/,/}/s/.*"gitVersion": "\(.*\)".*/Kubernetes \1/p'), $NODES nodes"
  print_env
}

down() {
  need_root
  lock_cluster
  refuse_foreign_cluster
  tear_down
  say "the cluster is down"
}

load() {
  (($#)) || die "load: no archive given"
  load_images "$@"
}

main() {
  local command=${1:-}
  shift || true
  case $command in
    requirements) install_requirements ;;
    build)
      install_requirements
      build_all "$@"
      ;;
    up) up ;;
    down) down ;;
    status) status ;;
    load) load "$@" ;;
    env) print_env ;;
    cut | heal | freeze | thaw | kill | boot)
      [[ ${1:-} =~ ^[0-9]+$ && $1 -ge 1 && $1 -le $NODES ]] || die "$command: which node? 1 to $NODES"
      [[ -e $STATE/ready ]] || die "no cluster is up (no $STATE/ready)"
      "${command}_node" "$1" ;;
    help | -h | --help) usage ;;
    *) usage >&2; exit 2 ;;
  esac
}

add_tools_to_path
main "$@"
exit
