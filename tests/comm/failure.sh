#!/usr/bin/env bash
# One rank of three fails in some way. The job must end within seconds, with a matching exit code and one
# message. Arguments: mpirun, the program of the MPI tests, the way to fail (see misbehave() in
# comm_mpi_test.cc), the accepted exit codes. Exit codes are a regular expression. An optional argument is a
# text of exactly one output line.
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
