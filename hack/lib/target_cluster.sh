# shellcheck shell=bash
# The cluster that demo and e2e run against: the local one, or with USE_EXISTING_CLUSTER=1 that of $KUBECONFIG. Run from the
# project's root; needs say.sh. Sets REDIS_IMAGE to what the Redis pods are to run, empty for the chart's own default.

CLUSTER_SH=hack/cluster/cluster.sh

uses_existing_cluster() { [[ ${USE_EXISTING_CLUSTER:-} == 1 ]]; }

image_tag() { echo "docker.io/library/redlock-operator:$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)"; }

acquire_cluster() {
  local environment
  if uses_existing_cluster; then
    [[ -n ${KUBECONFIG:-} ]] || die "USE_EXISTING_CLUSTER=1 needs KUBECONFIG to say which cluster"
    if ! have kubectl || ! have helm; then
      die "kubectl and helm are needed for a cluster of your own" "$CLUSTER_SH build kubernetes tools; eval \"\$($CLUSTER_SH env)\" in that order also brings them."
    fi
    kubectl version --request-timeout=10s >/dev/null || die "the cluster of KUBECONFIG=$KUBECONFIG does not answer"
    say "using the cluster of $KUBECONFIG"
  else
    environment=$("$CLUSTER_SH" up)
    eval "$environment"
    # Nothing can be pulled there; the local cluster brings this one along.
    REDIS_IMAGE=${REDIS_IMAGE:-localhost/redis:dev}
  fi
}

release_cluster() { uses_existing_cluster || "$CLUSTER_SH" down; }

load_image() { # ARCHIVE
  if uses_existing_cluster; then
    say "not loading $(image_tag): on a cluster of your own that is yours to do, e.g. by one of" \
      "'kind load image-archive $1', 'minikube image load $1'"
  else
    say "loading $(image_tag) into every node"
    "$CLUSTER_SH" load "$1"
    # An image built anew has the same tag: an operator that runs the old one, on a cluster that was kept up, is replaced.
    if kubectl -n redlock-system get deploy/redlock-operator >/dev/null 2>&1; then
      kubectl -n redlock-system rollout restart deploy/redlock-operator >/dev/null
    fi
  fi
}

# dump_cluster FOLDER: what helps to understand a failure; no Secret.
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
