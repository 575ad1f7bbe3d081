#!/usr/bin/env bash
# One rank of three fails in some way: the job must end in seconds, with a code that says so and one message.
# Arguments: mpirun, the program of the MPI tests, the way to fail (see misbehave() in comm_mpi_test.cc), the exit
# codes to accept (a regular expression), and a text that exactly one line of the output must hold, if any.
set -u
mpirun=$1 program=$2 how=$3 codes=$4 text=${5:-}

output=$(mktemp)
trap 'rm -f "$output"' EXIT
start=$(date +%s)
timeout -k 5 60 "$mpirun" -np 3 "$program" "$how" >"$output" 2>&1
code=$?
seconds=$(($(date +%s) - start))

fail() {
  echo "$how: $1" >&2
  cat "$output" >&2
  exit 1
}
[[ $code =~ ^($codes)$ ]] || fail "exit code $code, expected $codes"
[ "$seconds" -le 20 ] || fail "took $seconds seconds"
if [ -n "$text" ]; then
  lines=$(grep -c -- "$text" "$output")
  [ "$lines" -eq 1 ] || fail "'$text' is on $lines lines, expected one"
fi
echo "$how: code $code after $seconds s"
