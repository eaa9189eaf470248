# shellcheck shell=bash
# The cluster that demo and e2e use: the local one, or with USE_EXISTING_CLUSTER=1 that of $KUBECONFIG. Run from the project's
# root; needs say.sh. Sets REDIS_IMAGE to the image of the Redis pods; empty for the chart's own default.

CLUSTER_SH=hack/cluster/cluster.sh

uses_existing_cluster() { [[ ${USE_EXISTING_CLUSTER:-} == 1 ]]; }

image_tag() { echo "docker.io/library/redlock-operator:$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)"; }

acquire_cluster() {
  local environment
  if uses_existing_cluster; then
    [[ -n ${KUBECONFIG:-} ]] || die "USE_EXISTING_CLUSTER=1 needs KUBECONFIG, which names the cluster"
    if ! have kubectl || ! have helm; then
      die "kubectl and helm are needed for a cluster of your own" "Or build them: $CLUSTER_SH build kubernetes tools; eval \"\$($CLUSTER_SH env)\""
    fi
    kubectl version --request-timeout=10s >/dev/null || die "the cluster of KUBECONFIG=$KUBECONFIG does not answer"
    say "using the cluster of $KUBECONFIG"
  else
    environment=$("$CLUSTER_SH" up)
    eval "$environment"
    # The local cluster can pull nothing, and has this one.
    REDIS_IMAGE=${REDIS_IMAGE:-localhost/redis:dev}
  fi
}

release_cluster() { uses_existing_cluster || "$CLUSTER_SH" down; }

# build_image PROFILE: prints the archive; nothing on a cluster of your own, where the image must be already.
build_image() { uses_existing_cluster || hack/image.sh "$1"; }

load_image() { # ARCHIVE
  if uses_existing_cluster; then
    say "the cluster must have $(image_tag) already: make image builds it, 'kind load image-archive" \
      "target/image/redlock-operator.tar' loads it"
  else
    say "loading $(image_tag) into every Kubernetes node"
    "$CLUSTER_SH" load "$1"
    # A rebuilt image has the same tag: on a cluster that was kept up, an operator that runs the old one is replaced.
    if kubectl -n redlock-system get deploy/redlock-operator >/dev/null 2>&1; then
      kubectl -n redlock-system rollout restart deploy/redlock-operator >/dev/null
    fi
  fi
}

# dump_cluster FOLDER: objects, Events and logs, to understand a failure; no Secrets.
dump_cluster() {
  local dir=$1 pod namespace
  mkdir -p "$dir/pods"
  kubectl get nodes,pods,services,deployments,jobs,leases.coordination.k8s.io -A -o wide >"$dir/objects.txt" 2>&1
  kubectl get rlc,dlock -A -o yaml >"$dir/redlock.yaml" 2>&1
  kubectl get events -A --sort-by=.metadata.creationTimestamp >"$dir/events.txt" 2>&1
  kubectl describe pods -A >"$dir/pods.txt" 2>&1
  kubectl get pods -A --no-headers -o custom-columns=:.metadata.namespace,:.metadata.name 2>/dev/null \
    | while read -r namespace pod; do
      kubectl -n "$namespace" logs "$pod" --all-containers --prefix --tail=5000 >"$dir/pods/$namespace.$pod.log" 2>&1 </dev/null
      kubectl -n "$namespace" logs "$pod" --all-containers --prefix --previous >"$dir/pods/$namespace.$pod.previous.log" 2>/dev/null </dev/null
    done
  uses_existing_cluster || cp -r "${KUBE_DEV_STATE:-/tmp/kube-dev}/log" "$dir/cluster" 2>/dev/null
  find "$dir" -empty -delete
}
