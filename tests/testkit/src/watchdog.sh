# Waits for the end of the process that holds the other end of the pipe, then ends its servers and removes their folder.
while read -r _; do :; done
[ -d "$1" ] || exit 0
PATH=$PATH:/usr/bin:/bin:/usr/sbin:/sbin

# The children of $1. Slim containers have no ps, macOS has no /proc.
children() {
  if [ -r "/proc/$1/task/$1/children" ]; then cat "/proc/$1/task/$1/children"; return; fi
  ps -A -o pid=,ppid= | while read -r pid parent; do [ "$parent" = "$1" ] && echo "$pid"; done
}

# Whether $1 is the running postmaster of the data folder $2: a stale lock may name somebody else's process, and a dead
# one may stay in the process table, without its arguments.
is_postmaster() {
  if [ -r /proc/self/cmdline ]; then grep -qF "$2" "/proc/$1/cmdline"; else ps -o command= -p "$1" | grep -qF "$2"; fi
}

for lock in "$1"/*/postmaster.pid; do
  data=${lock%/postmaster.pid}
  { read -r pid; read -r _; read -r _; read -r _; read -r _; read -r _; read -r _ segment; } <"$lock"
  is_postmaster "$pid" "$data" || continue
  # An immediate shutdown removes shared memory too; what is frozen must go on for it.
  kill -CONT $(children "$pid") "$pid"
  kill -QUIT "$pid"
  left=40
  while is_postmaster "$pid" "$data" && [ "$left" -gt 0 ]; do sleep 0.05; left=$((left - 1)); done
  is_postmaster "$pid" "$data" || continue
  kill -STOP "$pid"
  kill -KILL $(children "$pid") "$pid"
  ipcrm -m "$segment"
done
rm -rf "$1"
