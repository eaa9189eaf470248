#!/usr/bin/env bash
# Starts Redis servers on loopback, runs lock libraries against them, prints a
# table and writes one JSON line per measurement. See README.md.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
all_peers=(redsync redsync-failfast redlock4 redlock5 rslock redisson-redlock redisson-multilock
  redisson jedis-setnx rueidislock curator curator3)
multi_peers=(redsync redsync-failfast redlock4 redlock5 rslock redisson-redlock redisson-multilock)

usage() {
  cat <<EOF
usage: run.sh [options]
  --masters N          Redis servers to start (default 5)
  --seconds S          measured seconds per cell (default 3)
  --cells LIST         WORKLOAD/CLIENTS without a fault (default uncontended/1,uncontended/16,uncontended/64,
                       contended/16,contended/64,handoff/2); handoff always has 2 clients
  --faults LIST        of down, dead, slow=MS, each also as FAULT@mid: well until the middle of the window (default none)
  --fault-cells LIST   WORKLOAD/CLIENTS with each fault (default uncontended/16,handoff/2)
  --fault-at K         which master is faulty, from 1 (default the last)
  --rounds R           measure every cell so often, round after round (default 1)
  --ttl-ms T           lock time to live (default 10000)
  --warmup W           seconds before measuring, passed to each program (default: its own; 3 with a fault @mid)
  --only LIST          peers to run, or none (default all): ${all_peers[*]}
  --extra CMD          one more program that obeys the same flags; may be repeated
  --extra-name NAME    its name if it prints nothing (default extra)
  --extra-cells LIST   WORKLOAD/CLIENTS/SECONDS/TTL_MS cells that only the extra programs are run for
  --out FILE           JSON lines go there (default peers.jsonl in the current folder)
  --append             add to that file rather than replace it
  --no-ceiling         leave out redis-benchmark's round trips
  --no-build           use what an earlier run built
  --build-only         build and stop
EOF
}

masters=5 seconds=3 ttl=10000 rounds=1 only="" extras=() extra_name=extra out=peers.jsonl append=0
cells=uncontended/1,uncontended/16,uncontended/64,contended/16,contended/64,handoff/2
faults="" fault_cells=uncontended/16,handoff/2 fault_at=0 extra_cells=""
warmup="" ceiling=1 build=1 build_only=0
while (($#)); do
  case $1 in
    --masters) masters=$2; shift ;;
    --seconds) seconds=$2; shift ;;
    --cells) cells=$2; shift ;;
    --faults) faults=$2; shift ;;
    --fault-cells) fault_cells=$2; shift ;;
    --fault-at) fault_at=$2; shift ;;
    --rounds) rounds=$2; shift ;;
    --ttl-ms) ttl=$2; shift ;;
    --warmup) warmup=$2; shift ;;
    --only) only=$2; shift ;;
    --extra) extras+=("$2"); shift ;;
    --extra-name) extra_name=$2; shift ;;
    --extra-cells) extra_cells=$2; shift ;;
    --out) out=$2; shift ;;
    --append) append=1 ;;
    --no-ceiling) ceiling=0 ;;
    --no-build) build=0 ;;
    --build-only) build_only=1 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
((fault_at)) || fault_at=$masters

build_dir=${PEERS_BUILD_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/lock-peers}
mkdir -p "$build_dir"
tool=$build_dir/go/peers

fail() {
  echo "run.sh: $*" >&2
  exit 1
}

has() { # has WORD LIST...: is the word in the list
  local word=$1 item
  shift
  for item; do [[ $item == "$word" ]] && return 0; done
  return 1
}

list() { # list SEPARATOR ITEM...
  local IFS=$1
  shift
  echo "$*"
}

calc() { awk "BEGIN { printf \"%d\", $1 }"; }

selected=()
if [[ -z $only ]]; then
  selected=("${all_peers[@]}")
elif [[ $only != none ]]; then
  IFS=, read -ra selected <<<"$only"
fi
for peer in "${selected[@]}"; do
  has "$peer" "${all_peers[@]}" || fail "no such peer: $peer"
done
for cell in ${cells//,/ } ${fault_cells//,/ }; do
  [[ $cell =~ ^(uncontended|contended|handoff)/[0-9]+$ ]] || fail "no cell: $cell"
done
for fault in ${faults//,/ }; do
  [[ $fault =~ ^(down|dead|slow=[0-9]+)(@mid)?$ ]] || fail "no such fault: $fault"
done

family() { # the folder whose program runs that peer
  case $1 in
    redsync* | rueidislock) echo go ;;
    redlock*) echo node ;;
    rslock) echo rust ;;
    *) echo java ;;
  esac
}

build_family() {
  echo "building $1" >&2
  case $1 in
    go) (cd "$here/go" && mkdir -p "$build_dir/go" && nice -n 10 go build -mod=readonly -o "$tool" .) ;;
    node)
      mkdir -p "$build_dir/node"
      cp "$here"/node/package.json "$here"/node/package-lock.json "$here"/node/bench.js "$build_dir/node/"
      (cd "$build_dir/node" && nice -n 10 npm ci --silent --no-audit --no-fund)
      ;;
    rust) (cd "$here/rust" && CARGO_TARGET_DIR=$build_dir/rust nice -n 10 cargo build --quiet --release --locked) ;;
    java)
      (cd "$here/java" && nice -n 10 mvn -B -q "-Dpeers.build=$build_dir/java" compiler:compile \
        dependency:copy-dependencies "-DoutputDirectory=$build_dir/java/lib")
      (cd "$build_dir/java/lib" && sha256sum --quiet --check "$here/java/deps.sha256")
      ;;
  esac
}

if ((build)); then
  build_family go # its tools serve every run
  for f in node rust java; do
    for peer in "${selected[@]}"; do
      if [[ $(family "$peer") == "$f" ]]; then build_family "$f"; break; fi
    done
  done
fi
((build_only)) && exit 0

work=$(mktemp -d)
pids=() # of what this script started and has not ended yet
cleanup() {
  local pid
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

mapfile -t ports < <("$tool" freeports --count "$((masters + 1))")
fault_port=${ports[masters]}
ports=("${ports[@]:0:masters}")
redis_pids=()
for port in "${ports[@]}"; do
  mkdir "$work/redis-$port"
  redis-server --port "$port" --bind 127.0.0.1 --save "" --appendonly no --dir "$work/redis-$port" \
    >"$work/redis-$port/log" 2>&1 &
  pids+=($!)
  redis_pids+=($!)
done
for port in "${ports[@]}"; do
  for ((i = 0; i < 100; i++)); do
    [[ $(redis-cli -p "$port" ping 2>/dev/null) == PONG ]] && break
    sleep 0.1
  done
  ((i < 100)) || fail "Redis on port $port did not start"
done
redis_servers=$(list , "${redis_pids[@]}")
well_masters=$(list , "${ports[@]/#/127.0.0.1:}")

java_run=(java -cp "$build_dir/java/classes:$build_dir/java/lib/*" peers.Main)

start_zookeeper() { # start_zookeeper COUNT: sets zk_pid and zk_masters; it stays until the end, idle between its cells
  local dir=$work/zk$1
  if [[ ! -d $dir ]]; then
    mkdir "$dir"
    java "-Djava.io.tmpdir=$dir" -cp "$build_dir/java/classes:$build_dir/java/lib/*" peers.Main zkserver "$1" \
      >"$dir/address" 2>"$dir/log" &
    pids+=($!)
    echo $! >"$dir/pid"
    for ((i = 0; i < 300; i++)); do
      [[ -s $dir/address ]] && break
      sleep 0.1
    done
    ((i < 300)) || fail "ZooKeeper did not start"
  fi
  zk_pid=$(<"$dir/pid")
  zk_masters=$(<"$dir/address")
}

stop_pid() { # ends one process that this script started
  local keep=() pid
  kill "$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
  for pid in "${pids[@]}"; do [[ $pid == "$1" ]] || keep+=("$pid"); done
  pids=("${keep[@]}")
}

proxy_pid=""
start_fault() { # start_fault FAULT WARMUP: a fresh proxy for each cell, so that a fault @mid counts anew
  local mode=${1%%[=@]*} delay=0 after=0
  [[ $1 == down ]] && return # nothing listens there
  : >"$work/proxy"
  [[ $1 =~ ^slow=([0-9]+) ]] && delay=${BASH_REMATCH[1]}
  [[ $1 == *@mid ]] && after=$(calc "($2 + $seconds / 2) * 1000")
  "$tool" faultproxy --listen "127.0.0.1:$fault_port" --target "127.0.0.1:${ports[fault_at - 1]}" \
    --mode "$mode" --delay-ms "$delay" --after-ms "$after" >"$work/proxy" &
  proxy_pid=$!
  pids+=("$proxy_pid")
  for ((i = 0; i < 100; i++)); do
    [[ -s $work/proxy ]] && return # it says so when it listens
    sleep 0.02
  done
  fail "the fault proxy did not start"
}

stop_fault() {
  [[ -z $proxy_pid ]] || stop_pid "$proxy_pid"
  proxy_pid=""
}

((append)) || : >"$out"
mkdir -p "$(dirname "$out")"
out=$(realpath "$out")
started=$(wc -l <"$out")

busy_jiffies() { awk '/^cpu / { print $2 + $3 + $4 + $7 + $8 + $9 }' /proc/stat; }
busy0=$(busy_jiffies)
sleep 2
others=$(($(busy_jiffies) - busy0)) # hundredths of a second in 2 s
printf '{"meta":{"cores":%d,"cpu":"%s","redis":"%s","background_cores":%s,"seconds":%s,"rounds":%d,"date":"%s"}}\n' "$(nproc)" \
  "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" "$(redis-server --version | sed 's/.* v=\([^ ]*\).*/\1/')" \
  "$(awk "BEGIN { printf \"%.2f\", $others / 200 }")" "$seconds" "$rounds" "$(date -u +%FT%TZ)" | tee -a "$out"

measure() { # measure FAULT NAME WORKLOAD CLIENTS SECONDS TTL_MS MASTER_LIST SERVER_PIDS COMMAND...
  local fault=$1 name=$2 workload=$3 clients=$4 window=$5 lease=$6 on=$7 servers=$8 warm=$warmup port
  shift 8
  if [[ $fault != none ]]; then
    [[ $fault == *@mid ]] && warm=${warmup:-3}
    start_fault "$fault" "${warm:-0}"
  fi
  "$tool" measure --out "$out" --fault "$fault" --servers "$servers" --peer "$name" --workload "$workload" \
    --clients "$clients" --timeout "$(calc "$window + ${warm:-3} + 60")" -- \
    "$@" --masters "$on" --workload "$workload" --clients "$clients" --seconds "$window" --ttl-ms "$lease" \
    ${warm:+--warmup "$warm"} >"$work/line" || true
  stop_fault
  cut -c1-150 "$work/line"
  for port in "${ports[@]}"; do redis-cli -p "$port" flushall >/dev/null; done
}

measure_extras() { # measure_extras FAULT WORKLOAD CLIENTS SECONDS TTL_MS MASTER_LIST
  local extra fault=$1
  shift
  for extra in "${extras[@]}"; do
    # shellcheck disable=SC2016 # "$@" is for the inner shell
    measure "$fault" "$extra_name" "$@" "$redis_servers" bash -c "exec $extra"' "$@"' extra
  done
}

# One cell: all programs one after the other, so that what is compared was measured at nearly the same time.
cell() { # cell FAULT WORKLOAD/CLIENTS
  local fault=$1 workload=${2%/*} clients=${2#*/} on=$well_masters peer command
  [[ $workload == handoff ]] && clients=2
  if [[ $fault != none ]]; then
    local addresses=("${ports[@]/#/127.0.0.1:}")
    addresses[fault_at - 1]=127.0.0.1:$fault_port
    on=$(list , "${addresses[@]}")
  fi
  measure_extras "$fault" "$workload" "$clients" "$seconds" "$ttl" "$on"
  for peer in "${selected[@]}"; do
    # Those of one master, and Curator's, have no master to spare.
    [[ $fault == none ]] || has "$peer" "${multi_peers[@]}" || continue
    local at=("$fault" "$peer" "$workload" "$clients" "$seconds" "$ttl")
    case $peer in
      curator | curator3)
        if [[ $peer == curator ]]; then start_zookeeper 1; else start_zookeeper 3; fi
        measure "${at[@]}" "$zk_masters" "$zk_pid" "${java_run[@]}" "$peer"
        continue
        ;;
    esac
    case $(family "$peer") in
      go) command=("$tool" "$peer") ;;
      node) command=(node "$build_dir/node/bench.js" "$peer") ;;
      rust) command=("$build_dir/rust/release/peers-rust") ;;
      java) command=("${java_run[@]}" "$peer") ;;
    esac
    measure "${at[@]}" "$on" "$redis_servers" "${command[@]}"
  done
}

# what redis-benchmark gets in plain SET NX PX round trips, on one master and on all at once
ceiling_line() { # ceiling_line PEER MASTERS RPS P50_MS P99_MS
  awk -v peer="$1" -v n="$2" -v rps="$3" -v p50="$4" -v p99="$5" 'BEGIN {
    printf "{\"peer\":\"%s\",\"workload\":\"round-trip\",\"fault\":\"none\",\"masters\":%d,\"clients\":16,", peer, n
    printf "\"ops_per_s\":%.1f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"errors\":0,\"violations\":0}\n", rps, p50 * 1000, p99 * 1000
  }' | tee -a "$out"
}

redis_rate() { # one redis-benchmark run; prints rate, median and 99th percentile
  redis-benchmark -h 127.0.0.1 -p "$1" -c 16 -P 1 -n "$2" -r 100000000 --csv SET bench:ceiling:__rand_int__ v NX PX 10000 |
    tail -n 1 | sed 's/"//g' | awk -F, '{ print $(NF-6), $(NF-3), $(NF-1) }'
}

run_ceiling() {
  local requests port jobs=() rps=0 p50=0 p99=0 a b c
  requests=$(calc "$seconds * 40000")
  read -r a b c < <(redis_rate "${ports[0]}" "$requests")
  ceiling_line ceiling 1 "$a" "$b" "$c"
  for port in "${ports[@]}"; do
    redis_rate "$port" "$((requests / masters))" >"$work/rate-$port" &
    jobs+=($!)
  done
  wait "${jobs[@]}"
  # a lock on all masters needs a round trip to each: the slowest master says how many
  for port in "${ports[@]}"; do
    read -r a b c <"$work/rate-$port"
    if awk "BEGIN { exit !($rps == 0 || $a < $rps) }"; then rps=$a p50=$b p99=$c; fi
  done
  ceiling_line ceiling-all "$masters" "$rps" "$p50" "$p99"
  for port in "${ports[@]}"; do redis-cli -p "$port" flushall >/dev/null; done
}

((ceiling)) && run_ceiling

for ((round = 1; round <= rounds; round++)); do
  for what in ${cells//,/ }; do cell none "$what"; done
  for fault in ${faults//,/ }; do
    for what in ${fault_cells//,/ }; do cell "$fault" "$what"; done
  done
done
for what in ${extra_cells//,/ }; do
  IFS=/ read -r workload clients window lease <<<"$what"
  measure_extras none "$workload" "$clients" "$window" "$lease" "$well_masters"
done

echo
tail -n "+$((started + 1))" "$out" >"$work/rows"
"$tool" table "$work/rows"
