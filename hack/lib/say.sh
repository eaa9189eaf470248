# shellcheck shell=bash
# Messages of all scripts: steps with a time stamp, warnings, errors that end the script.

say() { printf '\033[1m[%s]\033[0m %s\n' "$(date +%H:%M:%S)" "$*" >&2; }
warn() { printf '[%s] warning: %s\n' "$(date +%H:%M:%S)" "$*" >&2; }
die() {
  printf '[%s] error: %s\n' "$(date +%H:%M:%S)" "$1" >&2
  shift
  local hint
  for hint; do printf '           %s\n' "$hint" >&2; done
  exit 1
}

# No escape codes in files and pipes.
if [[ ! -t 2 ]]; then
  say() { printf '[%s] %s\n' "$(date +%H:%M:%S)" "$*" >&2; }
fi

have() { command -v "$1" >/dev/null 2>&1; }

seconds_as_text() { printf '%dm%02ds' $(($1 / 60)) $(($1 % 60)); }

# wait_until SECONDS COMMAND...: true as soon as the command succeeds, false when the time is over.
wait_until() {
  local end=$(($(date +%s%N) + $1 * 1000000000))
  shift
  until "$@" >/dev/null 2>&1; do
    (($(date +%s%N) < end)) || return 1
    sleep 0.1
  done
}

# with_ticker LABEL COUNTER LOG COMMAND...: runs the command in the foreground (so that Ctrl-C reaches it), with its errors in
# LOG. A ticker reports the progress every few seconds: what the command COUNTER prints, given LOG.
with_ticker() {
  local label=$1 counter=$2 log=$3 started=$SECONDS rc=0
  shift 3
  (
    exec 8>&- 9>&- # not the locks: a ticker that outlives its script must hold nothing
    while sleep 15 && kill -0 $$ 2>/dev/null; do
      say "  $label: $($counter "$log"), $(seconds_as_text $((SECONDS - started))) so far"
    done
  ) >/dev/null &
  local ticker=$!
  "$@" 2>>"$log" || rc=$?
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  return "$rc"
}
