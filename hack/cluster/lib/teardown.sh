# shellcheck shell=bash
# Removes a cluster, complete or half started, running or crashed. It touches only what is certainly ours: processes with our
# mark or in our control groups, namespaces and links with our names, mounts under $STATE.

# The kernel's settings that a kubelet changes for the whole machine.
SYSCTLS=(vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys kernel.keys.root_maxbytes)

# Folders of the machine over which each node mounts its own; `ip netns` creates the last by itself.
MOUNT_POINTS=(/var/lib/kubelet /var/lib/cni /run/containerd /run/netns)

make_state() {
  local dir
  mkdir -p "$STATE"/{log,run}
  # `down` deletes the folder only if it has this file, which lists the mount points that were created for us.
  for dir in "${MOUNT_POINTS[@]}"; do [[ -e $dir ]] || { mkdir -p "$dir" && echo "$dir"; }; done >"$STATE/.kube-dev"
  sysctl "${SYSCTLS[@]}" >"$STATE/sysctls" 2>/dev/null || true
}

our_namespaces() { find /run/netns -maxdepth 1 \( -name "$CONTROL" -o -name 'kdev-node*' \) -printf '%f\n' 2>/dev/null || true; }
our_cgroups() { find /sys/fs/cgroup -depth -type d -path '*/kdev-node*' 2>/dev/null || true; }
our_mounts() { awk -v dir="$STATE/" 'index($2, dir) == 1 {print $2}' /proc/mounts | sort -r; }
leftovers() { [[ -n $(our_namespaces)$(our_cgroups)$(our_mounts)$(marked_pids) ]]; }

# A cluster of another state folder has the same names: whoever started it must stop it.
refuse_foreign_cluster() {
  local pid owner
  for pid in $(ip netns pids "$CONTROL" 2>/dev/null); do
    owner=$(tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | sed -n 's/^KUBE_DEV_OWNER=//p') || true
    [[ -z $owner || $owner == "$STATE" ]] || die "another local cluster runs on this machine, with its state in $owner" \
      "Stop it first: KUBE_DEV_STATE=$owner cluster.sh down"
  done
  [[ ! -e $STATE || -e $STATE/.kube-dev || -z $(ls -A "$STATE") ]] \
    || die "$STATE exists and is not a cluster's state folder" "Remove it, or choose another by KUBE_DEV_STATE."
}

tear_down() {
  end_processes
  local name mount
  for name in $(our_namespaces); do ip netns del "$name" 2>/dev/null || true; done
  # Normally it is gone with the namespace that holds its other end.
  ip link del kdev0 2>/dev/null || true
  for mount in $(our_mounts); do umount -l "$mount" 2>/dev/null || true; done
  wait_until 10 remove_cgroups || warn "control groups are left: $(our_cgroups | tr '\n' ' ')"
  [[ ! -e $STATE/sysctls ]] || sysctl -q -p "$STATE/sysctls" >/dev/null 2>&1 || true
  [[ -e $STATE/.kube-dev ]] || return 0
  while read -r mount; do
    [[ -n $(ls -A "$mount") ]] || umount -l "$mount" 2>/dev/null || true
    rmdir "$mount" 2>/dev/null || true
  done <"$STATE/.kube-dev"
  rm -rf --one-file-system "$STATE"
}

# Repeats until none is left, because a process may have started another one meanwhile.
end_processes() {
  local pids try
  for try in $(seq 100); do
    pids="$(marked_pids) $(our_cgroups | sed 's|$|/cgroup.procs|' | xargs -r cat 2>/dev/null || true)"
    [[ -n ${pids//[[:space:]]/} ]] || return 0
    # shellcheck disable=SC2086 # a list of pids
    signal_pids KILL $pids
    ((try < 20)) || sleep 0.1
    sleep 0.05
  done
  die "processes of the cluster do not end: $(tr '\n' ' ' <<<"$pids")"
}

remove_cgroups() {
  our_cgroups | xargs -r rmdir 2>/dev/null || true
  [[ -z $(our_cgroups) ]]
}
