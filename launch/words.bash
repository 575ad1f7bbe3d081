# Hostfiles, mpirun's options that name hosts or count ranks, and limits of the system: launch/mpirun and launch/check-hosts
# refuse what cannot work before mpirun sees it. Sourced.

# Puts a text into REPLY, with control characters as escapes (\x1b): a terminal would obey them.
escape() { # text
  local LC_ALL=C rest=$1 plain char
  REPLY=''
  while plain=${rest%%[$'\001'-$'\010'$'\012'-$'\037\177\302']*} && [ "$plain" != "$rest" ]; do
    REPLY+=$plain char=${rest:${#plain}:1} rest=${rest:${#plain}+1}
    if [ "$char" != $'\302' ]; then
      printf -v char '\\x%02x' "'$char"
    elif [[ $rest == [$'\200'-$'\237']* ]]; then # U+0080 to U+009F
      char="\\xc2\\x$(printf %s "${rest:0:1}" | od -An -tx1 | tr -d ' ')" rest=${rest:1}
    fi
    REPLY+=$char
  done
  REPLY+=$rest
}
# Prints a line. Names and values in it may hold any character.
tell() { # text...
  escape "$*"
  printf '%s\n' "$REPLY"
}
# Prints lines of another program.
tell_lines() { # text
  local line
  while IFS= read -r line; do tell "$line"; done <<<"$1"
}

# Prints an error and returns 64.
refused() { # what, expected, found, where, what to do
  tell "error: $1" >&2
  tell "  expected: $2" >&2
  tell "  found:    $3" >&2
  tell "  where:    $4" >&2
  tell "  to do:    $5" >&2
  return 64
}

is_count() { # text
  case $1 in '' | 0* | *[!0-9]*) return 1 ;; esac
  [ ${#1} -le 7 ]
}

# Checks the name of a host, perhaps behind USER@. ssh takes a name that begins with - as an option.
require_host_name() { # name, where
  local LC_ALL=C
  case $1 in
  -* | *@-* | '' | *@)
    refused "a name of a host cannot be used" "a name or an address that begins with no -" "'$1'" "$2" \
      "correct the name: ssh would take it as an option"
    ;;
  *[!A-Za-z0-9._:@+^%=,~[\]-]*)
    refused "a name of a host has a character that no name of a host has" "letters, digits, dots and hyphens" \
      "$(printf %q "$1")" "$2" "write the file as plain text (UTF-8 without a byte order mark), and correct the name"
    ;;
  esac
}

# Reads lines of Open MPI (NAME slots=N) and of MPICH (NAME:N) into the arrays `hosts` and `slots`; a line without a number
# stands for one rank. Prints an error and returns 64 if mpirun could not read the file or could start nothing.
read_hosts() { # file
  local file=$1 where line='' name rest word count number=0 ended=1
  hosts=() slots=()
  if [ -d "$file" ] || [ ! -r "$file" ]; then
    refused "the hostfile cannot be read" "a file with a line for each host: NAME slots=RANKS" \
      "$([ -d "$file" ] && echo "a folder" || { [ -e "$file" ] && echo "no right to read it" || echo "no such file"; })" \
      "$file" "name a file that is there; hostfiles/ has examples"
    return
  fi
  while IFS= read -r line || { ended=0 && [ -n "$line" ]; }; do
    number=$((number + 1)) where=$file:$number
    case $line in *$'\r'*)
      refused "the hostfile has line ends of Windows (CR LF), which mpirun cannot read" "lines that end with LF" \
        "a carriage return (\\r)" "$where" "sed -i 's/\\r\$//' $(printf %q "$file")"
      return
      ;;
    esac
    if [ $ended = 0 ] && [[ $line == *'#'* ]]; then
      refused "the last line of the hostfile is a comment without a line end, which mpirun cannot read" \
        "a line end after the last line" "$(printf %.60s "$line")" "$where" "echo >> $(printf %q "$file")"
      return
    fi
    line=${line%%#*}
    read -r name rest <<<"$line" || true
    [ -n "$name" ] || continue
    count=1
    case $name in *:*) [[ $name == *:*:* ]] || { count=${name##*:} name=${name%:*}; } ;; esac # not an address of IPv6
    require_host_name "$name" "$where" || return
    while [[ $rest =~ [[:blank:]]=|=[[:blank:]] ]]; do rest=${rest//[[:blank:]]=/=} rest=${rest//=[[:blank:]]/=}; done
    for word in $rest; do
      case $word in
      slots=* | cpu=* | cpus=* | count=*) count=${word#*=} ;;
      max_slots=* | max-slots=* | slots_max=*) is_count "${word#*=}" || count=$word ;;
      esac
    done
    if ! is_count "$count"; then
      refused "a host has no number of ranks" "NAME slots=N with N of at least 1" "$(printf %q "$count")" "$where" \
        "write slots=N after the name: as many ranks as the host has GPUs"
      return
    fi
    hosts+=("$name") slots+=("$count")
  done <"$file"
  [ ${#hosts[@]} -gt 0 ] || refused "the hostfile names no host" "a line for each host: NAME slots=RANKS" \
    "$number lines without a host" "$file" "write such lines; hostfiles/ has examples"
}

# Checks a list as --host takes it: NAME[:N],...
require_host_list() { # list, where
  local entry name entries
  IFS=, read -ra entries <<<"$1"
  [ ${#entries[@]} -gt 0 ] || {
    refused "no host is named" "NAME[:RANKS],..." "nothing" "$2" "name hosts after $2"
    return
  }
  for entry in "${entries[@]}"; do
    name=$entry
    case $entry in
    *:*:*) ;; # an address of IPv6
    *:*)
      name=${entry%:*}
      [ "${entry##*:}" = '*' ] || is_count "${entry##*:}" || {
        refused "a host has no number of ranks" "NAME:N with N of at least 1" "$(printf %q "$entry")" "$2" \
          "write the number of ranks after the colon, or leave both out"
        return
      }
      ;;
    esac
    require_host_name "$name" "$2" || return
  done
}

# Checks the words before the program: hosts, hostfiles and numbers of ranks. Sets ranks_wanted to the number after -np, or to 1.
# Returns 64 after an error.
require_usable_call() { # mpirun's arguments
  local word value before=1 hosts slots
  ranks_wanted=1
  while [ $# -gt 0 ]; do
    word=$1
    shift
    if [ "$word" = : ]; then
      before=1
      continue
    fi
    [ -n "$before" ] || continue
    value=${1-}
    case $word in --host=* | --hostfile=* | --np=* | --machinefile=*) value=${word#*=} word=${word%%=*} ;; esac
    case $word in
    -H | -host | --host) require_host_list "$value" "$word $value" || return ;;
    -hostfile | --hostfile | -machinefile | --machinefile)
      # A pipe can be read once only.
      [ -p "$value" ] || [[ $value == /dev/fd/* ]] || read_hosts "$value" || return
      ;;
    -np | --np | -n | --n | -c | -N | -npernode | --npernode | -ppn)
      is_count "$value" || {
        refused "the number of ranks cannot be used" "a whole number of at least 1 after $word" "${value:-nothing}" \
          "mpirun $word $value" "write $word N"
        return
      }
      case $word in -np | --np | -n | --n | -c) ranks_wanted=$value ;; esac
      ;;
    -*) continue ;;
    *)
      [ -d "$word" ] || ! type -P "$word" >/dev/null || before=
      continue
      ;;
    esac
    [ "$value" != "${1-}" ] || [ $# -eq 0 ] || shift
  done
  for word in OMPI_MCA_orte_default_hostfile PRTE_MCA_prte_default_hostfile; do
    value=${!word:-}
    [ -z "$value" ] || [ "$value" = none ] || [ -p "$value" ] || read_hosts "$value" || return
  done
  for word in SLURM_JOB_NODELIST SLURM_NODELIST; do
    case ,${!word:-} in *,-*)
      refused "a name of a host cannot be used" "names that begin with no -" "${!word}" "$word in the environment" \
        "correct the variable: ssh would take such a name as an option"
      return
      ;;
    esac
  done
}

# Refuses limits under which mpirun fails with a message of its own, or without one. Starts no process: there may be none left.
require_limits() { # ranks of this host, at least
  [ -r /proc/self/limits ] || return 0
  local LC_ALL=C name rest limit least what mend
  while read -r name rest; do
    case "$name $rest" in
    "Max file size "*) limit=${rest#file size} least=$((8 << 20)) what="bytes of a file" mend="ulimit -f 8192 or more" ;;
    "Max stack size "*) limit=${rest#stack size} least=$((256 << 10)) what="bytes of stack" mend="ulimit -s 8192" ;;
    "Max open files "*) limit=${rest#open files} least=$((32 + 4 * $1)) what="open files" mend="ulimit -n 4096" ;;
    "Max processes "*) limit=${rest#processes} least=32 what="processes and threads of a user" mend="ulimit -u 4096" ;;
    *) continue ;;
    esac
    read -r limit _ <<<"$limit"
    case $limit in '' | *[!0-9]*) continue ;; esac # unlimited
    # The limit of processes does not bind root.
    if [ "$limit" -ge "$least" ] || { [ "${what%% *}" = processes ] && [ "$EUID" = 0 ]; }; then continue; fi
    refused "a limit of the system is too low for mpirun and its ranks" "at least $least $what" "$limit" \
      "the limits of this shell (ulimit -a)" "$mend (/etc/security/limits.conf, or the limits of the container or job)"
    return
  done </proc/self/limits
}
