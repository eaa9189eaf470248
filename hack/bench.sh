#!/usr/bin/env bash
# Benchmarks: our engine and other lock libraries in one run on the same Redis servers, and the engine's inner loops.
# Usage: bench.sh [--quick] [--only PEER,...] [--seconds S] [--rounds R] [--no-inner] [--publish]
#   --quick     about three minutes: fewer peers, short windows, two faults
#   --only      these peers only (none: our engine alone); the names are in redlock/benches/peers/README.md
#   --seconds   measured seconds per cell (3)
#   --rounds    measurements of each cell, of which the median is reported (1)
#   --no-inner  leave out the inner loops
#   --publish   also write the report into docs/benchmarks.md
# Results: target/bench/results.jsonl, target/bench/report.md, target/bench/inner.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/lib/say.sh
. hack/lib/packages.sh

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

quick=0 only="" seconds="" rounds=1 inner=1 publish=0
while (($#)); do
  case $1 in
    --quick) quick=1 ;;
    --only) only=$2; shift ;;
    --seconds) seconds=$2; shift ;;
    --rounds) rounds=$2; shift ;;
    --no-inner) inner=0 ;;
    --publish) publish=1 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done

out=target/bench
plan=(--rounds "$rounds")
if ((quick)); then
  plan+=(--seconds "${seconds:-1}" --warmup 1 --no-ceiling --cells 'uncontended/16,contended/16,handoff/2'
    --faults 'down,dead@mid'
    --fault-cells uncontended/16 --extra-cells keep/2000/8/9000)
  only=${only:-redsync-failfast,redlock5,rslock,redisson-redlock,redisson}
else
  plan+=(--seconds "${seconds:-3}" --faults 'down,dead,slow=20,down@mid,dead@mid,slow=20@mid'
    --extra-cells 'keep/10000/30/30000,idle-one/1/5/30000')
fi
[[ -z $only ]] || plan+=(--only "$only")

# The project's own requirements, then the languages of the chosen peers, which no test needs.
USE_EXISTING_CLUSTER=1 hack/setup.sh
chosen=${only:-redlock5,redisson}
needs=(golang-go:go)
[[ $chosen != *redlock[45]* ]] || needs+=(nodejs:node npm:npm)
[[ ! $chosen =~ redisson|jedis|curator ]] || needs+=(default-jdk-headless:javac maven:mvn)
need_packages "${needs[@]}"

mkdir -p "$out/build"
say "building the engine"
engine=$(cargo build --quiet --profile bench -p redlock-engine --bench engine --message-format=json-render-diagnostics \
  | jq -r 'select(.reason == "compiler-artifact" and .target.name == "engine") | .executable')
[[ -x $engine ]] || die "the engine's benchmark was not built"

say "measuring: $out/results.jsonl"
PEERS_BUILD_DIR=$PWD/$out/build redlock/benches/peers/run.sh "${plan[@]}" --extra "$engine" --extra-name redlock-operator \
  --out "$out/results.jsonl"
"$out/build/go/peers" report redlock-operator "$out/results.jsonl" >"$out/report.md"
say "report: $out/report.md"

if ((inner)); then
  say "inner loops: $out/inner.txt"
  cargo bench --quiet -p redlock-engine --bench inner | tee "$out/inner.txt"
fi

if ((publish)); then
  docs=docs/benchmarks.md
  awk -v report="$out/report.md" -v loops="$out/inner.txt" '
    function insert(file, line) { while ((getline line <file) > 0) print line; close(file) }
    /^<!-- results: end -->/ || /^<!-- inner: end -->/ { skip = 0 }
    !skip
    /^<!-- results: begin -->/ { insert(report); skip = 1 }
    /^<!-- inner: begin -->/ { print "```text"; insert(loops); print "```"; skip = 1 }
  ' "$docs" >"$out/benchmarks.md"
  cp "$out/benchmarks.md" "$docs"
  say "published: $docs"
fi
