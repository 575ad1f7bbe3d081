# The process of launch/mpirun that watches over mpirun: it hands requests on to the ranks once they can take them, ends mpirun when
# launch/mpirun is gone, when a host does not answer, or when MPI cannot start, and removes what a killed job leaves. Sourced.

# All processes below one.
below() {
  local child
  for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do
    echo "$child"
    below "$child"
  done
}

# Whether a process has ended, though nobody may have asked for its exit code yet.
gone() {
  local stat
  until { read -r stat <"/proc/$1/stat"; } 2>/dev/null; do # which a trap may interrupt
    [ -e "/proc/$1" ] || return 0
  done
  case ${stat##*) } in [ZX]*) return 0 ;; esac
  return 1
}

# Whether a process has a handler for a signal, or ignores it. Starts no process, since traps ask: where a trap waits for one,
# bash may miss the end of mpirun.
catches() { # pid, number of the signal
  has_signal SigCgt "$@"
}
ignores() { # pid, number of the signal
  has_signal SigIgn "$@"
}
has_signal() { # line of /proc/PID/status, pid, number of the signal
  local name value signals=0
  while read -r name value; do
    if [ "$name" = "$1:" ]; then signals=$value; fi
  done <"/proc/$2/status" # a trap in here writes to standard error
  [ $(((0x$signals >> ($3 - 1)) & 1)) -eq 1 ]
}

# Prints the ranks of this host: the first processes below one that have a number of a rank and a handler for a signal. What does
# not catch the signal (a shell around a rank, a rank that is still loading) would die of it.
ranks_below() { # pid, number of the signal
  local child
  for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do
    # In this order: a child that has not become the rank yet has mpirun's handlers and environment.
    if grep -qsz -e '^OMPI_COMM_WORLD_RANK=' -e '^PMI_RANK=' "/proc/$child/environ" && catches "$child" "$2"; then
      echo "$child"
    else
      ranks_below "$child" "$2"
    fi
  done
}

# Sends requests to the ranks that can take them. `asked[SIGNAL]` is the number of requests, `told[SIGNAL:PID]` how many of them a
# process has got, and `answered[SIGNAL]` is set when one has. Ranks of this host are told directly: one rank that is told of a stop
# stops all. If hosts are named, Open MPI forwards the signal to all ranks.
deliver() { # signal, mpi, pid of mpirun, whether hosts are named
  local process number ready='' forwards=''
  number=$(kill -l "$1")
  [ "$2$4" != open1 ] || forwards=1
  for process in $(ranks_below "$3" "$number"); do
    ready=1
    [ -z "$forwards" ] && [ "${told[$1:$process]:-0}" -lt "${asked[$1]}" ] || continue
    kill "-$1" "$process" 2>/dev/null && told[$1:$process]=${asked[$1]} answered[$1]=1
  done
  [ -n "$forwards" ] && [ "${told[$1:$3]:-0}" -lt "${asked[$1]}" ] && catches "$3" "$number" || return
  # The ranks of other hosts cannot be seen. If there are none here, an mpirun that has just begun may not have started them: they
  # are told a second time.
  if [ -n "$ready" ] || [ $SECONDS -gt 60 ] || [ -n "${told[early]:-}" ]; then
    if [ -z "$ready" ] && [ $SECONDS -le 60 ] && [ $((SECONDS - since)) -lt 4 ]; then return; fi
    told[$1:$3]=${asked[$1]} answered[$1]=1
  fi
  told[early]=1
  kill "-$1" "$3" 2>/dev/null
}

# Whether a program other than ours runs as a rank here. It may have no handler: then it is told through mpirun, and ends.
runs_another_program() { # pid of mpirun
  local process name
  for process in $(below "$1"); do
    grep -qsz -e '^OMPI_COMM_WORLD_RANK=' -e '^PMI_RANK=' "/proc/$process/environ" || continue
    { read -r name <"/proc/$process/comm"; } 2>/dev/null || continue
    [ "$name" = trainer ] || return 0
  done
  return 1
}

# Ends a job whose ranks did not take a stop: they have no handler, or mpirun has not started them.
force_stop() { # mpi, pid of mpirun
  local process
  answered[USR2]=1
  if ! has_ranks "$2"; then
    end_job "$2" PWR
  elif [ "$1" = open ]; then
    kill -USR2 "$2" 2>/dev/null
  else
    for process in $(below "$2"); do
      grep -qsz '^PMI_RANK=' "/proc/$process/environ" && kill -USR2 "$process" 2>/dev/null
    done
  fi
}

# Ends mpirun and all processes below it. A signal that nobody else sends tells launch/mpirun why.
end_job() { # pid of mpirun, signal
  local processes
  processes=$(below "$1" | tac)
  kill "-$2" "$1" 2>/dev/null
  [ -z "$processes" ] || kill -KILL $processes 2>/dev/null
}

# Removes files that nobody has mapped any more: one a line.
remove_unmapped() {
  local file
  while IFS= read -r file; do
    grep -qsF "$file" /proc/[0-9]*/maps || rm -f "$file"
  done
}

# Removes what PMIx 5 (of Ubuntu 24.04) leaves of a job whose ranks were killed: memory that it shared with them.
remove_pmix_files() { # pid of mpirun
  local host
  host=$(uname -n)
  find "${TMPDIR:-/tmp}" -maxdepth 1 -name "pmix-gds-shmem.${host%%.*}*.$1" -user "$(id -u)" 2>/dev/null | remove_unmapped
}

# Ends and removes what Open MPI leaves of a job that did not end by itself. Returns 1 where mpirun has cleared up.
clear_up() { # how its folder's name begins, pid of mpirun, when it began, in seconds
  local folder ranks host cleared=1
  # An mpirun that was killed leaves its folder (that of Open MPI 5.0.7 is prterun.HOST.N.USER), and its ranks, which have the
  # folder's name: those of Open MPI 4 for a moment or two, others until they end by themselves.
  for folder in "$1$2" "${1%ompi.}prterun."*".$2.$(id -u)"; do
    [ -d "$folder" ] || continue
    cleared=0
    for _ in $(seq 30); do
      ranks=$(grep -lszxF -e "OMPI_MCA_orte_jobfam_session_dir=$folder" -e "PMIX_SERVER_TMPDIR=$folder" \
        /proc/[0-9]*/environ | cut -d / -f 3)
      [ -n "$ranks" ] || break
      kill -KILL $ranks 2>/dev/null
      sleep 0.1
    done
    rm -rf "$folder"
  done
  # Memory that ranks shared, of which mpirun does not know when a rank is killed in the moment that it makes it.
  host=$(uname -n)
  find /dev/shm -maxdepth 1 \( -name "vader_segment.${host%%.*}*" -o -name "sm_segment.${host%%.*}*" \) \
    -user "$(id -u)" -newermt "@$3" 2>/dev/null | remove_unmapped
  remove_pmix_files "$2"
  return $cleared
}

# Ranks of this host: processes below mpirun that have a number.
has_ranks() { # pid of mpirun
  local process
  for process in $(below "$1"); do
    if grep -qsz -e '^OMPI_COMM_WORLD_RANK=' -e '^PMI_RANK=' "/proc/$process/environ"; then return 0; fi
  done
  return 1
}

# Whether the kernel has sent the same bytes so often again on a connection; of a process, where sockets are given.
sent_again() { # pid, times, sockets
  awk -v least="$(printf %08X "$2")" -v "sockets=${3:-}" '
    FNR > 1 && $7 >= least && (sockets == "" || index(sockets, " " $10 " ")) { found = 1; exit }
    END { exit !found }' "/proc/$1/net/tcp" "/proc/$1/net/tcp6" 2>/dev/null
}

# Whether mpirun waits for a host that is gone. Bytes that are sent for the seventh time are 25 seconds old, as old as
# connections get on which nothing is said (oob_tcp_keepalive_*). When the ranks of this host have ended, which they do
# together with all others, the third time is enough: one and a half seconds.
waits_in_vain() { # pid of mpirun, whether it had ranks here
  local times=7
  sent_again "$1" 3 || return 1
  if [ "$2" = 1 ] && ! has_ranks "$1"; then times=3; fi
  sent_again "$1" $times " $(find "/proc/$1/fd" -lname 'socket:*' -printf '%l ' 2>/dev/null | tr -c '0-9' ' ') "
}

# Takes the words that launch/mpirun writes: "job PID", "stop", "save", and "failed" if MPI could not start in a rank. Returns after
# 0.3 seconds, or after a word. The time may end within a word: `begun` keeps the part that was read.
take_words() {
  local part word=''
  IFS= read -r -t 0.3 part
  case $? in
  0)
    word=$begun$part
    begun=''
    ;;
  1) sleep 0.3 ;; # launch/mpirun is gone
  *) begun+=$part ;;
  esac
  case $word in
  "job "*) job=${word#job } ;;
  stop) ask USR2 ;;
  save) ask USR1 ;;
  failed) failed=${failed:-$SECONDS} ;;
  esac
}
ask() { # signal
  [ "${asked[USR2]}" -gt 0 ] || since=$SECONDS
  asked[$1]=$((asked[$1] + 1))
}

# Watches over mpirun from a session of its own.
keep() { # mpi, pid of launch/mpirun, how mpirun's folder begins, when mpirun began, whether hosts are named
  local job='' begun='' failed='' pending passed='' had_ranks=0 turn=0 since=0 patience signal
  local -A asked=([USR1]=0 [USR2]=0) told=() answered=()
  until [ -n "$job" ]; do
    take_words
    if [ -z "$job" ] && gone "$2"; then return; fi
  done
  while ! gone "$job"; do
    if [ "$5$had_ranks" = 10 ] && [ $((turn++ % 10)) = 9 ] && has_ranks "$job"; then had_ranks=1; fi
    if [ "$5" = 1 ] && waits_in_vain "$job" $had_ranks; then end_job "$job" STKFLT; fi
    # mpirun may wait forever for the other ranks.
    if [ -n "$failed" ] && [ $((SECONDS - failed)) -ge 5 ]; then end_job "$job" PROF; fi
    if gone "$2"; then
      # mpirun clears up behind itself when its ranks are gone; it may be about to start them.
      for _ in $(seq 30); do
        gone "$job" && break
        below "$job" | tac | xargs -r kill -KILL 2>/dev/null
        sleep 0.1
      done
      kill -KILL "$job" 2>/dev/null
      break
    fi
    # HUP, INT or TERM is pending: bits 0, 1 and 14.
    pending=$(sed -n 's/^ShdPnd:[[:space:]]*//p' "/proc/$job/status" 2>/dev/null)
    if [ -z "$passed" ] && [ $((0x0${pending:-0} & 0x4003)) -ne 0 ]; then
      passed=1
      ask USR2
    fi
    for signal in USR1 USR2; do
      if [ "${asked[$signal]}" -gt 0 ]; then deliver $signal "$1" "$job" "$5"; fi
    done
    if [ "${asked[USR2]}" -gt 0 ] && [ -z "${answered[USR2]:-}" ]; then
      patience=60
      if runs_another_program "$job"; then
        patience=2
      elif [ "$5" = 0 ] && { [ "${asked[USR2]}" -gt 1 ] || ! has_ranks "$job"; }; then
        patience=2
      fi
      if [ $((SECONDS - since)) -gt $patience ]; then force_stop "$1" "$job"; fi
    fi
    take_words
  done
  # launch/mpirun clears up, and says so, unless it is killed before it has.
  for _ in $(seq 30); do
    gone "$2" && break
    sleep 0.3
  done
  clear_up "$3" "$job" "$4"
}
