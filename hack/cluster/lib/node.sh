# shellcheck shell=bash
# A node: a process tree in its own network, mount, PID and host name namespaces. So one kill cuts its power (the kernel ends
# everything in it at once, also pods), and its mounts and files under /var and /run vanish with it. Its disk is
# $STATE/node<N>.

prepare_node() { # N: everything that survives a power cut
  local n=$1 dir=$STATE/node$1
  mkdir -p "$dir"/{cni,containerd,kubelet,volatile/containerd,var/{log,lib/kubelet,lib/cni}}
  cat >"$dir/cni/10-bridge.conflist" <<EOF
{"cniVersion":"1.0.0","name":"bridge","plugins":[
 {"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":false,"hairpinMode":true,
  "ipam":{"type":"host-local","dataDir":"$dir/volatile/ipam","ranges":[[{"subnet":"$PODS.$n.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}
EOF
  # restrict_oom_score_adj: where this machine's own processes have a raised oom_score_adj (a sandbox, a container), runc
  # may not give a container a lower one, and every pod would fail to start without it.
  cat >"$dir/containerd.toml" <<EOF
version = 2
root = "$dir/containerd"
state = "$dir/volatile/containerd"
[grpc]
  address = "$dir/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:dev"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$dir/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.internal.v1.opt"]
  path = "$dir/opt"
EOF
  cat >"$dir/kubelet.yaml" <<EOF
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $STATE/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $STATE/pki/node$n.crt
tlsPrivateKeyFile: $STATE/pki/node$n.key
cgroupDriver: cgroupfs
cgroupRoot: /kdev-node$n
containerRuntimeEndpoint: unix://$dir/containerd.sock
podLogsDir: $dir/var/log/pods
volumePluginDir: $dir/volume-plugins
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
seccompDefault: true
failSwapOn: false
serializeImagePulls: false
resolvConf: ""
nodeStatusUpdateFrequency: 4s
evictionHard: {memory.available: 50Mi, nodefs.available: "1%", imagefs.available: "1%"}
imageGCHighThresholdPercent: 99
imageGCLowThresholdPercent: 98
EOF
  # Zero leaves the limits of connection tracking alone: they belong to the whole kernel.
  cat >"$dir/proxy.yaml" <<EOF
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: $STATE/proxy.kubeconfig}
hostnameOverride: node$n
mode: nftables
clusterCIDR: $PODS.0.0/16
conntrack: {maxPerCore: 0, min: 0}
EOF
  make_node_cgroups "$n"
}

node_cgroups() { # N: its folder in every hierarchy
  local root
  if cgroups_are_v2; then
    echo "/sys/fs/cgroup/kdev-node$1"
  else
    for root in /sys/fs/cgroup/*/; do [[ -e $root/cgroup.procs && ! -L ${root%/} ]] && echo "${root}kdev-node$1"; done
  fi
  return 0
}

make_node_cgroups() { # N
  local group file
  if cgroups_are_v2; then
    # The kubelet expects its controllers in its own group, so the root must delegate them.
    for file in cpu cpuset memory pids; do echo "+$file" >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true; done
  fi
  for group in $(node_cgroups "$1"); do
    mkdir -p "$group"
    # A new cpuset of version 1 is empty and accepts no process.
    for file in cpuset.cpus cpuset.mems; do
      [[ ! -e $group/$file || -e /sys/fs/cgroup/cgroup.controllers ]] || cat "$group/../$file" >"$group/$file"
    done
  done
}

boot_node() { # N
  local n=$1 dir=$STATE/node$1
  ! pid_of "node$n" >/dev/null || die "node $n runs already"
  make_node_network "$n"
  start "node$n" nsenter "--net=/run/netns/$(node_namespace "$n")" \
    unshare --mount --uts --pid --fork --kill-child --mount-proc --propagation private \
    bash "$HERE/lib/node_init.sh" "$STATE" "$n" "$(node_address "$n")" "$STATE/log"
  wait_until 30 runtime "$n" version || log_and_die "node$n-containerd" "node $n's container runtime does not answer after 30 s"
}

runtime() { ctr -a "$STATE/node$1/containerd.sock" "${@:2}"; }

load_images() { # FILE...
  local n file loads=()
  for file; do [[ -r $file ]] || die "cannot read $file"; done
  for n in $(seq "$NODES"); do
    (for file; do runtime "$n" -n k8s.io images import "$file" >/dev/null || exit 1; done) &
    loads+=($!)
  done
  for n in "${loads[@]}"; do wait "$n" || die "could not load $* into every node" "Is the cluster up? See: cluster.sh status"; done
}

# agents N: the node's own processes (runtime, kubelet, proxy, policy), not its pods. They are children of its first process,
# as are orphaned shims, which do not count.
agents() {
  local outer init child
  outer=$(pid_of "node$1") || die "node $1 does not run"
  init=$(pgrep -P "$outer") || die "node $1 does not run"
  for child in $(pgrep -P "$init"); do
    case $(readlink "/proc/$child/exe") in
      */containerd | */kubelet | */kube-proxy | */kube-router) echo "$child" ;;
    esac
  done
}

cut_node() { ip -n "$CONTROL" link set "node$1" down; }
heal_node() { ip -n "$CONTROL" link set "node$1" up; }

freeze_node() {
  local pids
  pids=$(agents "$1")
  # shellcheck disable=SC2086 # a list of pids
  signal_pids STOP $pids
}
thaw_node() {
  local pids
  pids=$(agents "$1")
  # shellcheck disable=SC2086
  signal_pids CONT $pids
}

kill_node() {
  local pid
  pid=$(pid_of "node$1") || die "node $1 does not run"
  signal_pids KILL "$pid"
  wait_until 20 node_is_gone "$1" || die "node $1 does not end"
  remove_node_network "$1"
}

# True when no process of the node is left: neither one with our mark nor, by its control groups, one of a pod.
node_is_gone() {
  local pids group
  ! pid_of "node$1" || return 1
  for group in $(node_cgroups "$1"); do
    pids=$(find "$group" -name cgroup.procs -exec cat {} + 2>/dev/null)
    [[ -z $pids ]] || return 1
  done
}

node_state() { # N: one word for `status`
  local child frozen=0
  pid_of "node$1" >/dev/null || { echo off; return; }
  link_is_up "$1" || { echo cut; return; }
  for child in $(agents "$1"); do
    grep -q '^State:.*stopped' "/proc/$child/status" 2>/dev/null && frozen=1
  done
  if ((frozen)); then echo frozen; else echo running; fi
}

is_healthy() {
  local name n
  for name in etcd apiserver controllers scheduler; do pid_of "$name" >/dev/null || return 1; done
  for n in $(seq "$NODES"); do
    [[ $(node_state "$n") == running && $(agents "$n" | wc -l) == 4 ]] || return 1
  done
  kubectl get --raw /readyz --request-timeout=5s >/dev/null 2>&1 && nodes_are_ready
}

status() {
  local name n
  [[ -e $STATE/ready ]] || { echo "no cluster is up (state folder: $STATE)"; return 1; }
  for name in etcd apiserver controllers scheduler; do
    printf '%-12s %s\n' "$name" "$(pid_of "$name" >/dev/null && echo running || echo off)"
  done
  for n in $(seq "$NODES"); do printf '%-12s %s\n' "node$n" "$(node_state "$n")"; done
  kubectl get nodes --request-timeout=5s || true
  is_healthy
}
