# shellcheck shell=bash
# Certificates, etcd, API server, controller manager, scheduler, DNS.

CONFIG_USERS=(admin controllers scheduler proxy)

make_certificates() (
  mkdir -p "$STATE/pki" && cd "$STATE/pki" || exit
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365 -keyout ca.key -out ca.crt -subj /CN=kube-dev 2>/dev/null
  local n
  make_certificate apiserver /CN=kube-apiserver "IP:127.0.0.1,IP:10.96.0.1,IP:$API,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,DNS:localhost"
  make_certificate admin /O=system:masters/CN=admin
  make_certificate controllers /CN=system:kube-controller-manager
  make_certificate scheduler /CN=system:kube-scheduler
  make_certificate proxy /CN=system:kube-proxy
  make_certificate apiserver-kubelet /O=system:masters/CN=kube-apiserver-kubelet-client
  for n in $(seq "$NODES"); do
    make_certificate "node$n" "/O=system:nodes/CN=system:node:node$n" "DNS:node$n,IP:$(node_address "$n")"
    CONFIG_USERS+=("node$n")
  done
  openssl ecparam -name prime256v1 -genkey -noout -out sa.key 2>/dev/null
  openssl ec -in sa.key -pubout -out sa.pub 2>/dev/null
  local user
  for user in "${CONFIG_USERS[@]}"; do write_kubeconfig "$user"; done
)

make_certificate() { # NAME SUBJECT [ALTERNATIVE-NAMES], in the current folder
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2" 2>/dev/null
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -set_serial "0x$(openssl rand -hex 8)" -days 365 -out "$1.crt" \
    -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=clientAuth,serverAuth' "${3:-DNS:$1}") 2>/dev/null
}

write_kubeconfig() { # USER
  cat >"$STATE/$1.kubeconfig" <<EOF
apiVersion: v1
kind: Config
clusters: [{name: kube-dev, cluster: {server: "https://$API:6443", certificate-authority: $STATE/pki/ca.crt}}]
users: [{name: $1, user: {client-certificate: $STATE/pki/$1.crt, client-key: $STATE/pki/$1.key}}]
contexts: [{name: kube-dev, context: {cluster: kube-dev, user: $1}}]
current-context: kube-dev
EOF
  chmod 600 "$STATE/$1.kubeconfig"
}

start_control() { # NAME COMMAND...
  start "$1" nsenter "--net=/run/netns/$CONTROL" "${@:2}"
}

# Its data ends with the cluster, so etcd need not sync to disk; and as the only member it can elect itself quickly.
start_etcd() {
  start_control etcd etcd --data-dir "$STATE/etcd" --listen-client-urls http://127.0.0.1:2379 \
    --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync \
    --heartbeat-interval=50 --election-timeout=250
}

start_control_plane() {
  local pki=$STATE/pki
  start_control apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address="$API" --advertise-address="$API" \
    --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" --client-ca-file="$pki/ca.crt" \
    --service-account-key-file="$pki/sa.pub" --service-account-signing-key-file="$pki/sa.key" \
    --service-account-issuer=https://kubernetes.default.svc --authorization-mode=Node,RBAC \
    --service-cluster-ip-range=10.96.0.0/16 --allow-privileged=true --enable-admission-plugins=NodeRestriction \
    --kubelet-client-certificate="$pki/apiserver-kubelet.crt" --kubelet-client-key="$pki/apiserver-kubelet.key" \
    --kubelet-certificate-authority="$pki/ca.crt" --kubelet-preferred-address-types=InternalIP \
    --audit-policy-file="$HERE/manifests/audit-policy.yaml" --audit-log-path="$STATE/log/audit.log" \
    --audit-log-maxsize=200 --audit-log-maxbackup=1
  # The port first: a test of it is cheaper than a run of kubectl.
  wait_until 60 bash -c ": </dev/tcp/$API/6443" || log_and_die apiserver "the API server does not listen after 60 s"
  wait_until 60 kubectl get --raw /readyz || log_and_die apiserver "the API server is not ready after 60 s"
  # With its default limits the controller manager needs six seconds to start all controllers.
  start_control controllers kube-controller-manager --kubeconfig="$STATE/controllers.kubeconfig" --leader-elect=false \
    --service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/ca.crt" --use-service-account-credentials \
    --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" --node-monitor-grace-period=20s \
    --kube-api-qps=500 --kube-api-burst=500 --flex-volume-plugin-dir="$STATE/flexvolume"
  start_control scheduler kube-scheduler --kubeconfig="$STATE/scheduler.kubeconfig" --leader-elect=false
}

install_dns() {
  kubectl apply -f "$HERE/manifests/coredns.yaml" >/dev/null
}

wait_for_nodes() {
  wait_until 60 nodes_are_ready || log_and_die node1-kubelet "not all nodes are ready after 60 s: $(kubectl get nodes --no-headers 2>&1 | tr '\n' ';')"
  kubectl -n kube-system rollout status deploy/coredns --timeout=60s >/dev/null \
    || log_and_die node1-containerd "CoreDNS is not ready after 60 s"
}

nodes_are_ready() { [[ $(kubectl get nodes --no-headers --request-timeout=5s | grep -cw Ready) == "$NODES" ]]; }

log_and_die() { # LOG MESSAGE
  tail -n 15 "$STATE/log/$1.log" >&2 || true
  die "$2" "The last lines of $STATE/log/$1.log are above."
}
