#!/usr/bin/env bash
# Runs four ranks on two hosts (tests/bench/on_hosts; root only) with hierarchical training. One rank is
# stopped or killed, or the link between the hosts goes down. The job and its launcher must end soon after
# ddp_timeout (10 s). The last message must name the collective and the rank, or the connection. Arguments:
# the trainer, a folder for the runs.
set -u
trainer=$1 folder=$2
here=$(cd "$(dirname "$0")" && pwd)
limit=10 failed=0
"$trainer" quickstart "$folder/task" --rows 2000 --held-out 10 >/dev/null || exit 1
export OCTETRUN_OVERLAP=always OMP_WAIT_POLICY=passive

# Prints the process of rank $1 in the run with the output folder $2.
process_of() {
  local pid
  for pid in $(pgrep -f "output_dir=$2"); do
    tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$1" && echo "$pid" && return
  done
}

# Arguments: signal (LINK: the second host's link goes down), rank, accepted exit codes, text that one line
# must contain (none: any), options.
strike() {
  local signal=$1 rank=$2 codes=$3 words=$4 out pid code lines
  shift 4
  out=$folder/$signal-$rank
  rm -rf "$out"
  "$here/../bench/on_hosts" --hosts 2 --slots 2 --rate none --launcher "$here/../../launch/mpirun" -- "$trainer" "$folder/task/config.yaml" \
    output_dir="$out" max_steps=100000 num_train_epochs=100000 save_steps=100000 logging_steps=5 plot_loss=false \
    report_to=none ddp_timeout=$limit hierarchical_comm=true reduce_dtype=fp8 "$@" >"$out.log" 2>&1 &
  local job=$!
  for ((i = 0; i < 600; ++i)); do
    [ -s "$out/trainer_log.jsonl" ] && break
    sleep 0.1
  done
  pid=$(process_of "$rank" "$out")
  if [ -z "$pid" ]; then
    echo "FAILED $signal of rank $rank: it never trained"
    cat "$out.log"
    kill "$job"
    failed=1
    return
  fi
  local start=$SECONDS
  if [ "$signal" = LINK ]; then
    ip netns exec "o$job-2" ip link set eth0 down
  else
    kill "-$signal" "$pid"
  fi
  wait "$job"
  code=$?
  kill -KILL "$pid" 2>/dev/null
  local seconds=$((SECONDS - start))
  lines=$(grep -c -- "$words" "$out.log")
  if [[ ! $code =~ ^($codes)$ ]] || [ "$seconds" -gt $((2 * limit + 10)) ] || { [ -n "$words" ] && [ "$lines" != 1 ]; }; then
    echo "FAILED $signal of rank $rank ($*): code $code after $seconds s, '$words' on $lines lines"
    cat "$out.log"
    failed=1
  else
    echo "$signal of rank $rank ($*): code $code after $seconds s: $(grep -m 1 -- "${words:-error}" "$out.log")"
  fi
}

strike STOP 3 75 "rank 3" zero_stage=2
strike STOP 1 75 "rank 1" zero_stage=3 gather_dtype=fp8
strike STOP 2 75 "rank 2" zero_stage=0
strike KILL 3 "137|1|75" "" zero_stage=2
strike KILL 1 "137|1|75" "" zero_stage=3 gather_dtype=fp8
strike LINK 2 75 "a host no longer answers mpirun" zero_stage=2
[ "$failed" = 0 ]
