# shellcheck shell=bash
# The cluster's long-running processes: started detached, and recorded so that no other process is mistaken for one of them.
#
# Each carries KUBE_DEV_OWNER=$STATE in its environment, which its children inherit: processes of this cluster are found by
# that mark, never by a name. $STATE/run/<name>.pid holds pid and start time, because the kernel reuses pids.

start() { # NAME COMMAND...
  local name=$1
  shift
  KUBE_DEV_OWNER=$STATE setsid "$@" >>"$STATE/log/$name.log" 2>&1 </dev/null 8>&- 9>&- &
  echo "$! $(start_time $!)" >"$STATE/run/$name.pid"
}

# start_time PID: when the process began, in clock ticks since boot (the 22nd field of stat; the second may hold blanks).
# False for a zombie.
start_time() {
  local stat fields
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
  read -ra fields <<<"${stat##*) }"
  [[ ${fields[0]} != Z ]] || return 1
  echo "${fields[19]}"
}

# pid_of NAME: its pid, if it still runs.
pid_of() {
  local pid began
  { read -r pid began <"$STATE/run/$1.pid"; } 2>/dev/null || return 1
  [[ $(start_time "$pid") == "$began" ]] && echo "$pid"
}

# marked_pids: every process that carries this cluster's mark.
marked_pids() {
  grep -lsxzF "KUBE_DEV_OWNER=$STATE" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 || true
}

signal_pids() { # SIGNAL PID...: processes that have ended already are ignored
  local signal=$1 pid
  shift
  for pid; do builtin kill "-$signal" "$pid" 2>/dev/null || true; done
}
