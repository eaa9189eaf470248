#!/usr/bin/env bash
# From nothing to a lock that is acquired, renewed, handed over and released on a real Kubernetes, then a leader among three
# pods. Can be repeated. USE_EXISTING_CLUSTER=1: on $KUBECONFIG's cluster instead of the local one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/lib/say.sh
. hack/lib/target_cluster.sh

SYSTEM=redlock-system
DEMO=redlock-demo
started=$SECONDS
step=

# step TITLE: a heading, which also names the step in a failure.
step() {
  step=$1
  echo >&2
  say "$1"
}

# show COMMAND...: the command as a person would type it, then what it prints.
show() {
  printf '\n  $ %s\n' "$*"
  "$@" | sed 's/^/    /'
}

explain_failure() {
  local rc=$?
  ((rc)) || return 0
  echo >&2
  say "the demo failed (exit code $rc) at: $step"
  if [[ -n ${KUBECONFIG:-} ]] && have kubectl; then
    kubectl -n "$DEMO" get rlc,dlock,pods -o wide >&2 2>/dev/null || true
  fi
  cat >&2 <<EOF
  Where to look:
    eval "\$(hack/cluster/cluster.sh env)"
    hack/cluster/cluster.sh status                                     is the cluster healthy?
    kubectl -n $SYSTEM logs deploy/redlock-operator               the operator's log
    kubectl -n $DEMO get events --sort-by=.metadata.creationTimestamp
    kubectl -n $DEMO get rlc,dlock -o yaml                       status and conditions
  When it is repaired, make demo continues where it can; make cluster-down removes the cluster.
EOF
}
trap explain_failure EXIT

field() { kubectl -n "$DEMO" get "$1" -o "jsonpath={.status.$2}"; } # KIND/NAME FIELD
is_held() { [[ $(kubectl -n "$DEMO" get dlock "$1" -o 'jsonpath={.status.conditions[?(@.type=="Held")].status}') == True ]]; }
# The contender of the example that holds the lock.
find_holder() {
  local lock
  for lock in nightly-report nightly-report-standby; do
    if is_held "$lock" 2>/dev/null; then echo "$lock"; return; fi
  done
  return 1
}
# has_new_leader OLD: a pod other than OLD leads.
has_new_leader() { local holder; holder=$(field dlock/web-leader holder) && [[ -n $holder && $holder != "$1" ]]; }
# The pod of an identity, which may contain more than the pod's name.
pod_of() {
  local pod
  for pod in $(kubectl -n "$DEMO" get pods -l app=web -o 'jsonpath={.items[*].metadata.name}'); do
    [[ $1 != *"$pod"* ]] || { echo "$pod"; return; }
  done
  return 1
}
ask_pods() {
  local pod
  printf '\n  $ for each pod: wget -q -O - http://127.0.0.1:4040/\n'
  for pod in $(kubectl -n "$DEMO" get pods -l app=web --field-selector=status.phase=Running -o 'jsonpath={.items[*].metadata.name}'); do
    printf '    %s  %s\n' "$pod" "$(kubectl -n "$DEMO" exec "$pod" -c web -- timeout 2 wget -q -O - http://127.0.0.1:4040/ 2>/dev/null || echo '(not running)')"
  done
}

prepare() {
  step "set-up: installing what this machine lacks"
  hack/setup.sh
  step "a Kubernetes cluster (built from source the first time: about 20 minutes; later: seconds)"
  acquire_cluster
  show kubectl get nodes
  step "the operator's image"
  local archive
  archive=$(build_image release)
  load_image "$archive"
}

install() {
  step "helm install"
  local tag
  tag=$(image_tag)
  # A Secret of an interrupted helm would block every later one.
  kubectl -n "$SYSTEM" delete secret --ignore-not-found \
    -l 'owner=helm,name=redlock-operator,status in (pending-install,pending-upgrade,pending-rollback)' >/dev/null
  helm upgrade redlock-operator charts/redlock-operator --install --namespace "$SYSTEM" --create-namespace \
    --set "image.tag=${tag##*:}" ${REDIS_IMAGE:+--set "redis.image=$REDIS_IMAGE"} --wait --timeout 3m >/dev/null
  show kubectl -n "$SYSTEM" get pods
}

take_lock() {
  step "kubectl apply -f examples/: five Redis masters, two contenders for one lock, three pods that elect a leader"
  # The second contender of an earlier run may still hold the lock.
  kubectl -n "$DEMO" delete dlock --all --ignore-not-found >/dev/null 2>&1 || true
  show kubectl apply -f examples/
  show kubectl -n "$DEMO" wait --for=condition=Ready rlc/main --timeout=2m
  wait_until 60 find_holder || die "no contender got the lock within a minute"
  holder=$(find_holder)
  show kubectl -n "$DEMO" wait --for=condition=Held "dlock/$holder" --timeout=1m
  show kubectl get rlc,dlock -A -o wide
}

lose_a_master() {
  step "one of the five masters dies: the lock stays held, and the master is kept out until its restart delay is over"
  local before after
  before=$(field "dlock/$holder" fencingToken)
  show kubectl -n "$DEMO" delete pod main-1 --now
  wait_until 30 test_returning || die "status.returning names no master after 30 s"
  show kubectl -n "$DEMO" get rlc main -o wide
  # Before the first renewal without the lost master, the validity of the last one could still run.
  renewed=$(field "dlock/$holder" renewTime)
  wait_until 30 is_renewed || die "dlock/$holder was not renewed within 30 s"
  show kubectl -n "$DEMO" get dlock "$holder" -o wide
  after=$(field "dlock/$holder" fencingToken)
  is_held "$holder" || die "the lock was lost: dlock/$holder is not held"
  [[ $before == "$after" ]] || die "the lock was lost in between: token $before before, $after after"
  say "still held: renewed by the other four; same holder, same fencing token $after"
}
is_renewed() { [[ $(field "dlock/$holder" renewTime) > $renewed && $(field "dlock/$holder" votes) == 4/5 ]]; }
test_returning() { [[ -n $(field rlc/main returning) ]]; }

hand_over() {
  step "the holder is deleted and its lock released: the second contender acquires it"
  local other before after began
  other=nightly-report
  [[ $holder != nightly-report ]] || other=nightly-report-standby
  before=$(field "dlock/$holder" fencingToken)
  began=$(date +%s%N)
  show kubectl -n "$DEMO" delete dlock "$holder"
  show kubectl -n "$DEMO" wait --for=condition=Held "dlock/$other" --timeout=1m
  say "handed over in $((($(date +%s%N) - began) / 1000000)) ms"
  show kubectl -n "$DEMO" get dlock "$other" -o wide
  after=$(field "dlock/$other" fencingToken)
  ((after > before)) || die "the new fencing token $after is not larger than $before"
  say "the fencing token grew from $before to $after: the guarded resource can refuse late writes of the old holder"
}

elect_leader() {
  step "three pods elect a leader, through their sidecars and without the operator"
  kubectl -n "$DEMO" rollout status deploy/web --timeout=2m >/dev/null
  wait_until 60 has_new_leader "" || die "no leader after a minute"
  local leader began pod
  leader=$(field dlock/web-leader holder)
  pod=$(pod_of "$leader") || die "the leader $leader is none of the pods"
  show kubectl -n "$DEMO" get dlock web-leader -o wide
  ask_pods
  step "the leader's pod is killed: another one leads"
  began=$(date +%s%N)
  show kubectl -n "$DEMO" delete pod "$pod" --now --wait=false
  wait_until 60 has_new_leader "$leader" || die "no new leader after a minute"
  say "$(field dlock/web-leader holder) leads, $((($(date +%s%N) - began) / 1000000)) ms after the kill"
  kubectl -n "$DEMO" rollout status deploy/web --timeout=1m >/dev/null
  show kubectl -n "$DEMO" get dlock web-leader -o wide
  ask_pods
}

say_what_next() {
  step "the whole picture"
  show kubectl get rlc,dlock -A -o wide
  echo
  say "done in $(seconds_as_text $((SECONDS - started)))"
  echo "  Look around:"
  uses_existing_cluster || echo "    eval \"\$(hack/cluster/cluster.sh env)\""
  cat <<EOF
    kubectl -n $DEMO get rlc main -o yaml          each master: its state, crashes, and until when it is kept out
    kubectl -n $DEMO get dlock -w                  then, in another shell: kubectl -n $DEMO delete pod -l app=web
    kubectl -n $DEMO get events --sort-by=.metadata.creationTimestamp
EOF
  uses_existing_cluster || echo '    hack/cluster/cluster.sh kill 2                       cut the power of a Kubernetes node; boot 2 starts it again'
  if uses_existing_cluster; then
    echo "
  Clean up:
    kubectl delete -f examples/ --ignore-not-found && helm uninstall redlock-operator -n $SYSTEM && kubectl delete namespace $SYSTEM"
  else
    echo '
  Clean up:
    make cluster-down'
  fi
}

prepare
install
take_lock
lose_a_master
hand_over
elect_leader
say_what_next
