# What mpirun writes to standard error, and what launch/mpirun makes of it: one message for each cause. Sourced.

# Lines of mpirun and of the ranks, without mpirun's banners about exit codes. Ends with $lost_a_rank where a signal
# ended a rank and mpirun has no text that says which: some packages of Open MPI 5.0 left them out (Ubuntu 26.04). And with
# $not_started where a host did not let mpirun start, with $lost_a_host where a host's daemon is gone, with $wrong_call
# where mpirun was called wrongly, with $aborted where MPI itself ended a rank. With
# $no_room, $no_processes, $no_files, $no_folder or $mpi_failed if MPI could not start, for these reasons or another one; with
# $told_of_end if mpirun said how a rank ended; with $answered if the program said that it stops as asked.
lost_a_rank=3 not_started=4 lost_a_host=5 wrong_call=6 aborted=7 told_of_end=8 answered=9
no_room=10 no_processes=11 no_files=12 no_folder=13 mpi_failed=14 unknown_host=15
filter() {
  local line block='' rule='^-{70,}$' untold=0 refusals=0 cause='' raw=()
  # Of Open MPI's own code, while it starts.
  local fault='^(\[[^][ ]+:[0-9]+\] .*((PMIX|OPAL|ORTE|PRTE) ERROR|_ERROR_LOG|Unable to start listen thread|Local abort before MPI_INIT)|\*\*\* (An error occurred in MPI_Init|on a NULL comm|MPI_ERRORS_ARE_FATAL|   and potentially))'
  # Of ssh and of the shell behind it, if no daemon of mpirun could start there.
  local refusal='^(ssh: |Connection (closed|reset) by |Connection timed out during banner exchange|(kex|ssh)_exchange_identification: |Host key verification failed|No [^ ]+ host key is known for |Offending [^ ]+ key in |[^ ]+: Permission denied \((publickey|password|keyboard|gssapi|hostbased)|[a-z/]*sh: .*(orted|prted): .*not found)'
  local changed_key=''
  while IFS= read -r line || [ -n "$line" ]; do
    # The progress bar, which is drawn in place.
    if [[ $line == $'\r'* ]] && [ -n "${OCTETRUN_BAR_COLUMNS:-}" ]; then
      printf '%s' "$line"
      continue
    fi
    if [[ $line =~ $rule ]]; then
      if [ -z "$block" ]; then
        block=$line
      else
        banner "$block"$'\n'"$line"
        block=
      fi
    elif [ -z "$block" ] && [[ $line =~ $fault ]]; then
      note_fault "$line"
    elif [ -z "$block" ] && [[ $line =~ ^@{50,} ]]; then
      changed_key=1 # of a host, on which ssh writes a dozen lines
    elif [ -z "$block" ] && [[ $line =~ $refusal ]]; then
      keep_refusal "$line"
    elif [ -n "$changed_key" ]; then
      continue
    elif [[ $line =~ ^(mpirun|prterun):\ Forwarding\ signal\ |^[0-9]+\ total\ processes\ failed\ to\ start ]]; then
      continue
    elif [ -n "$block" ]; then
      block+=$'\n'$line
    else
      case $line in
      *", as asked"* | *"stopping after this step, with"* | *"the last step is done, the model"*) [ "$untold" -ne 0 ] || untold=$answered ;;
      esac
      printf '%s\n' "$line"
    fi
  done
  [ -z "$block" ] || tell_lines "$block"
  # Words that no cause is known for may help; the program may have gone on after them.
  if [ ${#raw[@]} -gt 0 ] && [ "${cause:-$mpi_failed}" -eq "$mpi_failed" ]; then tell_lines "$(printf '%s\n' "${raw[@]}")"; fi
  case $untold in 0 | "$answered" | "$told_of_end") untold=${cause:-$untold} ;; esac
  return "$untold"
}
# Keeps a line of ssh for the message on a host that cannot be reached, which launch/mpirun writes when mpirun has ended.
keep_refusal() { # line
  case $1 in
  *"Could not resolve hostname"*) untold=$unknown_host ;;
  *"Host key verification failed"*) changed_key='' ;;
  esac
  [ "$untold" -eq "$unknown_host" ] || untold=$not_started
  refusals=$((refusals + 1))
  if [ -z "${heard:-}" ]; then
    tell "$1"
  elif [ "$refusals" -le 20 ]; then
    printf '%s\n' "${1%$'\r'}" >&"$heard"
  fi
}
# Keeps a line of Open MPI's own code, and what it means.
note_fault() { # line
  [ ${#raw[@]} -ge 40 ] || raw+=("$1")
  case $1 in
  *"An error occurred in MPI_Init"* | *"Local abort before MPI_INIT"*)
    cause=${cause:-$mpi_failed}
    [ -z "${told:-}" ] || echo failed >&"$told"
    ;;
  *"OUT-OF-RESOURCE"*dstore*) cause=$no_room ;;
  *"number of children a process can have"* | *progress_threads* | *"Unable to start listen thread"* | *oob_tcp_listener.c\ at\ line\ 151*)
    cause=$no_processes
    ;;
  *"Out of resource"*oob_tcp* | *"number of pipes"* | *"number of network connections"* | *"number of files"*)
    [ "${cause:-0}" = $no_processes ] || cause=$no_files
    ;;
  *session_dir*) cause=${cause:-$no_folder} ;;
  esac
}
banner() {
  local words signal
  words=$(tr -s ' \n' ' ' <<<"$1")
  case $words in
  *"Primary job terminated normally, but"*) ;;
  *"detected that one or more processes exited with non-zero status"*) [ "$untold" -ne 0 ] || untold=$told_of_end ;;
  *"help about: prun:non-zero-exit "*) ;;
  *"help about: prun:proc-aborted"*) untold=$lost_a_rank ;; # mpirun's code says more
  *"unable to reliably start one or more daemons"*) [ "$untold" = "$unknown_host" ] || untold=$not_started ;;
  *" calling \"abort\". This may have caused"*)
    untold=$aborted
    tell_lines "$1"
    ;;
  *"PRTE has lost communication with a remote daemon"* | *"help about: node-died "*)
    [ "$untold" = "$not_started" ] || untold=$lost_a_host
    tell_lines "$1"
    ;;
  *"help about: prun:exe-"*)
    echo "error: mpirun cannot start a program: it is not there, or may not be executed"
    tell "  where:    mpirun $arguments"
    echo "  to do:    look at its name, and for it on every host"
    ;;
  *"as it could not access or execute an executable: Executable: "*" Node: "* | *"unable to find the specified executable file"*" Node: "*" Executable: "*)
    echo "error: mpirun cannot start a program: it is not there, or may not be executed"
    echo "  expected: a program on each host that ranks start on"
    tell "  found:    $(sed -E 's/.* Executable: ([^ ]+) .*/\1/' <<<"$words"), on $(sed -E 's/.* Node: ([^ ]+) .*/\1/' <<<"$words")"
    tell "  where:    mpirun $arguments"
    echo "  to do:    look at its name, and for it on every host"
    untold=$wrong_call
    ;;
  *"No executable was specified on the mpirun command line"*)
    echo "error: mpirun is given no program to start"
    echo "  expected: launch/mpirun -np RANKS build/bin/trainer config.yaml"
    tell "  where:    mpirun${arguments:+ $arguments}"
    echo "  to do:    name the program behind mpirun's options"
    untold=$wrong_call
    ;;
  *"a parameter given to a command line option does not match the expected format: "*)
    words=${words##*expected format: }
    echo "error: the value of one of mpirun's options cannot be used"
    tell "  found:    ${words%% This is *}"
    tell "  where:    mpirun $arguments"
    echo "  to do:    give such a value as mpirun --help names, a number of ranks for -np"
    untold=$wrong_call
    ;;
  *"unable to open the hostfile: "* | *"detected a parse error in the hostfile: "*)
    words=${words##*the hostfile: }
    echo "error: the hostfile cannot be read"
    echo "  expected: a file with a line for each host: NAME slots=RANKS"
    tell "  found:    $(sed -E 's/ (Check to make sure|---).*$//' <<<"$words")"
    tell "  where:    mpirun $arguments"
    echo "  to do:    name a file that is there and holds such lines; hostfiles/ has examples"
    untold=$wrong_call
    ;;
  *"detected a bad parameter in the hostfile: "* | *"No nodes are available for this job"*)
    echo "error: the hostfile names no host that ranks can be started on"
    echo "  expected: a file with a line for each host: NAME slots=RANKS"
    tell "  found:    $(sed -E 's/.*the hostfile: //; s/^.*No nodes are available.*/no host/; s/ ?-{70,}//' <<<"$words")"
    tell "  where:    mpirun $arguments"
    echo "  to do:    write such lines; hostfiles/ has examples"
    untold=$wrong_call
    ;;
  *"does not know how to route a message to the specified daemon"*) [ "$untold" = "$unknown_host" ] || untold=$not_started ;;
  *"unable to create the desired directory: "*) cause=$no_folder ;;
  *"system limit exceeded on number of processes"*) cause=$no_processes ;;
  *"No network interfaces were found for out-of-band"*) cause=${cause:-$no_files} ;;
  *"enough space for "*"shared-memory backing file"* | *"shared memory initialization that should not have"* | *"unable to create shared memory"*)
    cause=$no_room
    ;;
  *"It looks like "*"_init failed for some reason; "* | *"It looks like MPI_INIT failed for some reason; "*)
    cause=${cause:-$mpi_failed}
    raw+=("$1")
    [ -z "${told:-}" ] || echo failed >&"$told"
    ;;
  *"An internal error has occurred in ORTE"*) [ "$untold" = "$wrong_call" ] || tell_lines "$1" ;; # its end after these
  *"noticed that process rank "*" exited on signal "*)
    signal=${words##* exited on signal }
    signal=${signal%%.*}
    # The largest signal is 64: a higher number is 128 less than a code of mpirun or of whatever ran.
    if [ "${signal%% *}" -gt 64 ] 2>/dev/null; then
      tell "warning: rank $(sed -E 's/.*process rank ([0-9]+) with PID [0-9]+ on node ([^ ]+) .*/\1 on \2/' <<<"$words") ended with code $((128 + ${signal%% *}))"
      return
    fi
    [ "${signal%% *}" -eq "$(kill -l USR2)" ] && return # asked to stop before it could answer
    untold=$told_of_end
    tell "error: a rank was ended by signal $signal, and the others with it"
    tell "  where:    rank $(sed -E 's/.*process rank ([0-9]+) with PID [0-9]+ on node ([^ ]+) .*/\1 on \2/' <<<"$words")"
    to_do_after "${signal%% *}"
    ;;
  *) tell_lines "$1" ;;
  esac
}

to_do_after() { # a signal
  case $1 in
  9) echo "  to do:    look for a lack of memory (dmesg); started again, the run goes on from its newest checkpoint" ;;
  4) echo "  to do:    build the program on this machine (launch/build): its CPU lacks an instruction" ;;
  7 | 11) echo "  to do:    look at the limits of memory and stack (ulimit -a); started again, the run goes on from its newest checkpoint" ;;
  *) echo "  to do:    started again, the run goes on from its newest checkpoint" ;;
  esac
}
