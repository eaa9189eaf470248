# shellcheck shell=bash
# The network: one namespace with a bridge for the control plane, one for each node, and a single link to this machine.
# Routing, filters and sysctls are in these namespaces. This machine only gets the interface kdev0 and a route to the pods, and
# both vanish with the namespace. So another etcd or firewall on this machine does not interfere.

CONTROL=kdev-control
node_namespace() { echo "kdev-node$1"; }
node_address() { echo "$SUBNET.$(($1 + 10))"; }
# Fixed hardware addresses: stale neighbour entries would keep a restarted node from being reached.
hardware_address() { printf '02:00:0a:fa:00:%02x' "$1"; }

make_network() {
  local taken
  taken=$(ip -4 route show table all | grep -E "^(local |broadcast )?($SUBNET\.|$PODS\.)" || true)
  [[ -z $taken ]] || die "the addresses $SUBNET.0/24 or $PODS.0.0/16 are in use on this machine:" "$taken"
  ip netns add "$CONTROL"
  ip -n "$CONTROL" link set lo up
  ip -n "$CONTROL" link add br0 address "$(hardware_address 1)" type bridge
  ip -n "$CONTROL" addr add "$API/24" dev br0
  ip -n "$CONTROL" link set br0 up
  ip netns exec "$CONTROL" sysctl -qw net.ipv4.ip_forward=1
  ip link add kdev0 address "$(hardware_address 254)" type veth peer name host netns "$CONTROL"
  ip -n "$CONTROL" link set host master br0 up
  ip addr add "$SUBNET.254/24" dev kdev0
  ip link set kdev0 up
  ip route add "$PODS.0.0/16" via "$API"
}

make_node_network() { # N
  local n=$1 namespace
  namespace=$(node_namespace "$n")
  ip netns add "$namespace"
  ip -n "$namespace" link set lo up
  ip -n "$CONTROL" link add "node$n" type veth peer name eth0 address "$(hardware_address $((n + 10)))" netns "$namespace"
  ip -n "$CONTROL" link set "node$n" master br0 up
  ip -n "$namespace" addr add "$(node_address "$n")/24" dev eth0
  ip -n "$namespace" link set eth0 up
  ip -n "$namespace" route add default via "$API"
  # Bridged traffic between two pods of a node must pass the filters too, for Services and NetworkPolicy.
  ip netns exec "$namespace" sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1
  ip -n "$CONTROL" route replace "$PODS.$n.0/24" via "$(node_address "$n")"
}

remove_node_network() { # N
  ip -n "$CONTROL" link del "node$1" 2>/dev/null || true
  ip netns del "$(node_namespace "$1")" 2>/dev/null || true
}

link_is_up() { ip -n "$CONTROL" link show "node$1" 2>/dev/null | head -n 1 | grep -q '[<,]UP[,>]'; }
