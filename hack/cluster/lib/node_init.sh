#!/usr/bin/env bash
# The first process of a node (see node.sh), already inside its namespaces: mounts the node's own folders over the machine's,
# starts the agents, and reaps processes that end. When it ends, the kernel ends everything else in the node.
set -euo pipefail
state=$1 number=$2 address=$3 logs=$4
name=node$number dir=$state/node$number

hostname "$name"
# kubelet, CNI and runc's shims have fixed paths, which all nodes would otherwise share with each other and the machine.
mount --bind "$dir/var/lib/kubelet" /var/lib/kubelet
mount --bind "$dir/var/lib/cni" /var/lib/cni
mount --bind "$dir/var/log" /var/log
# As after a boot: everything under /run is gone, also the addresses of pods.
rm -rf "$dir/volatile"
mkdir -p "$dir/volatile"
mount -t tmpfs -o mode=755 tmpfs "$dir/volatile"
mount -t tmpfs -o mode=755 tmpfs /run/containerd

declare -A agents=(
  [containerd]="containerd -c $dir/containerd.toml"
  [kubelet]="kubelet --kubeconfig=$state/$name.kubeconfig --config=$dir/kubelet.yaml --hostname-override=$name --node-ip=$address --root-dir=$dir/kubelet"
  [proxy]="kube-proxy --config=$dir/proxy.yaml"
  [netpol]="kube-router --kubeconfig=$state/admin.kubeconfig --hostname-override=$name --run-firewall=true --run-router=false --run-service-proxy=false --health-port=0 --metrics-port=0"
)
declare -A running # pid → agent
launch() {
  # shellcheck disable=SC2086 # the words of a command line
  ${agents[$1]} >>"$logs/$name-$1.log" 2>&1 &
  running[$!]=$1
}

launch containerd
# The kubelet exits if there is no runtime yet.
until ctr -a "$dir/containerd.sock" version >/dev/null 2>&1; do sleep 0.1; done
for agent in kubelet proxy netpol; do launch "$agent"; done

# An agent that ends is restarted, as by a service manager. bash also reaps orphaned shims.
while :; do
  ended=
  wait -n -p ended || true
  [[ -n $ended && -n ${running[$ended]:-} ]] || continue
  agent=${running[$ended]}
  unset "running[$ended]"
  sleep 1
  launch "$agent"
done
