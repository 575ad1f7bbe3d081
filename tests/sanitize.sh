#!/usr/bin/env bash
# The tests under sanitizers. `thread` is ThreadSanitizer on all programs with threads that share memory, among them ranks
# that are threads, with compute in line and on a separate worker; `address` is AddressSanitizer, LeakSanitizer and
# UndefinedBehaviorSanitizer on every program of tests, on MPI ranks (2 and 4), and on the trainer. Both where none is
# named. Any finding fails. Builds into FOLDER/thread and FOLDER/address (FOLDER is build/sanitize), without CUDA.
#
#   tests/sanitize.sh [--small] [--folder FOLDER] [thread] [address]
#
# --small is the part that ctest runs: streams, ranks as threads, hostile configurations. A minute on two cores where the
# compiler cache is warm. All of it takes an hour there.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
usage() {
  sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
  exit 2
}
small=false folder=${OCTETRUN_BUILD:-$source/build}/sanitize kinds=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --small) small=true ;;
    --folder) [[ $# -gt 1 ]] || usage; folder=$2; shift ;;
    thread | address) kinds+=("$1") ;;
    *) usage ;;
  esac
  shift
done
((${#kinds[@]})) || kinds=(thread address)
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
jobs=${JOBS:-$(nproc)}
export OCTETRUN_OVERLAP=always # also where no core is spare
export OMP_NUM_THREADS=1    # the OpenMP runtime is not instrumented: its barriers would look like races
export TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1"
export ASAN_OPTIONS="detect_stack_use_after_return=1 detect_leaks=1 fast_unwind_on_malloc=0"
export LSAN_OPTIONS="suppressions=$source/tests/support/open_mpi.supp:print_suppressions=0"
export UBSAN_OPTIONS="halt_on_error=1 print_stacktrace=1"

# build KIND PRESET TARGET...
build() {
  local kind=$1 preset=$2 log=$folder/$1.log quickly=(-DOCTET_UNITY_TESTS=OFF)
  shift 2
  # Where tests are few, compiling takes most of the time: optimising what sanitizers add is half of that or more.
  $small && quickly=(-DOCTET_UNITY=ON -DOCTET_UNITY_TESTS=ON
    "-DCMAKE_CXX_FLAGS_SANITIZED=-O0 -g1 -fno-omit-frame-pointer")
  {
    cmake --preset "$preset" -S "$source" -B "$folder/$kind" "${quickly[@]}" && ninja -C "$folder/$kind" -j "$jobs" "$@"
  } >"$log" 2>&1 && return
  tail -n 30 "$log" >&2
  echo "sanitize.sh: the build failed; all of it is in $log" >&2
  exit 1
}

# test_in KIND PROGRAM [FILTER]
test_in() {
  echo "== $1: $2 ${3:+($3)}"
  "${fixed[@]}" "$folder/$1/bin/$2" --gtest_brief=1 ${3:+"--gtest_filter=$3"}
}

# Open MPI unloads its components before leaks are reported. Their leaks could then not be distinguished from ours.
mpi() {
  echo 'int dlclose(void* handle) { (void)handle; return 0; }' | cc -shared -fPIC -x c - -o "$folder/keep_modules.so"
  "$source/launch/mpirun" -x LD_PRELOAD="$(cc -print-file-name=libasan.so):$folder/keep_modules.so" -np "$@"
}

thread() {
  # This sanitizer wants its shadow where newer kernels' random addresses may put something else.
  fixed=()
  setarch "$(uname -m)" -R true 2>/dev/null && fixed=(setarch "$(uname -m)" -R)
  if $small; then
    build thread tsan device_tests comm_share_tests
    test_in thread device_tests 'Stream*:OpThreads*:Arena*:CpuDevice*'
    test_in thread comm_share_tests 'Sizes/ThreadRanks*/np2:LoneRank*:ThreadRankFailure*'
    return
  fi
  local programs=(device_tests comm_tests store_tests data_tests text_tests files_tests weights_tests checkpoint_tests
    memory_tier_tests report_tests runtime_tests feed_tests generate_tests train_tests)
  build thread tsan "${programs[@]}"
  for program in "${programs[@]}"; do test_in thread "$program" "$(without_long_ones "$program")"; done
}

# Errors of compressed sums at 64 ranks take long and share their code with the others.
without_long_ones() { [[ $1 != comm_tests ]] || echo '-Compression.*'; }

address() {
  fixed=()
  if $small; then
    build address asan base_tests config_tests device_tests
    test_in address base_tests
    test_in address config_tests
    test_in address device_tests
    return
  fi
  local programs=(base_tests device_tests ops_tests comm_tests precision_tests model_tests optim_tests plan_tests
    store_tests files_tests weights_tests checkpoint_tests memory_tier_tests text_tests config_tests data_tests report_tests
    runtime_tests feed_tests generate_tests train_tests fuzz_tests)
  build address asan "${programs[@]}" comm_mpi_tests store_mpi_tests trainer
  for program in "${programs[@]}"; do test_in address "$program" "$(without_long_ones "$program")"; done
  for np in 2 4; do
    for program in comm_mpi_tests store_mpi_tests; do
      echo "== address: $program, $np ranks"
      mpi "$np" "$folder/address/bin/$program" --gtest_brief=1
    done
  done
  whole_program
}

# Training, saving and resuming at several stages.
whole_program() {
  local trainer=$folder/address/bin/trainer runs=$folder/runs np options
  rm -rf "$runs"
  "$trainer" quickstart "$runs/task" --rows 200 --held-out 10 >/dev/null
  local common=("output_dir=$runs/out" per_device_train_batch_size=2 gradient_accumulation_steps=2 global_batch_size=null
    save_steps=1 val_size=5 eval_strategy=steps eval_steps=1 plot_loss=false report_to=none)
  for how in "2 zero_stage=3 fp8=true reduce_dtype=int8 error_feedback=true gather_dtype=fp8" \
    "4 zero_stage=2 fp8=true fp8_recipe=current overlap_comm=false" "4 zero_stage=1 deterministic=strict"; do
    echo "== address: trainer, $how"
    read -r np options <<<"$how"
    # shellcheck disable=SC2086
    mpi "$np" "$trainer" "$runs/task/config.yaml" "${common[@]}" $options max_steps=2 overwrite_output_dir=true >/dev/null
    # shellcheck disable=SC2086
    mpi "$np" "$trainer" "$runs/task/config.yaml" "${common[@]}" $options max_steps=3 \
      resume_from_checkpoint="$runs/out/checkpoint-2" >/dev/null
  done
}

for kind in "${kinds[@]}"; do
  "$kind"
  echo "== $kind: clean"
done
