#!/usr/bin/env bash
# Ranks and their threads under sanitizers: ThreadSanitizer on ranks that are threads, with compute in line and on a
# worker of its own; AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer on those, and on MPI ranks (2 and 4)
# of the tests and of the program. Builds into FOLDER/thread and FOLDER/address, only what it needs; any finding fails.
#
#   tests/sanitize.sh FOLDER [thread] [address] [program]
set -euo pipefail
[[ $# -gt 0 ]] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
[[ $# -gt 0 ]] || set -- thread address program
jobs=${JOBS:-$(nproc)}
export OCTET_OVERLAP=always # also where no core is spare
export OMP_NUM_THREADS=1 # the OpenMP runtime is not instrumented: its barriers would look like races

# build KIND SANITIZERS TARGET...
build() {
  local kind=$1 sanitizers=$2
  shift 2
  cmake -S "$source" -B "$folder/$kind" -G Ninja -DCMAKE_BUILD_TYPE=Sanitized -DOCTET_CUDA=OFF -DOCTET_TESTS=ON \
    -DCMAKE_CXX_FLAGS_SANITIZED="-O1 -g1 -fno-omit-frame-pointer -Wno-error" "-DOCTET_SANITIZE=$sanitizers" >/dev/null
  ninja -C "$folder/$kind" -j "$jobs" "$@"
}
# Open MPI unloads its components before leaks are looked for: what they keep could not be told from our own.
mpi() {
  echo 'int dlclose(void* handle) { (void)handle; return 0; }' | cc -shared -fPIC -x c - -o "$folder/keep_modules.so"
  "$source/launch/mpirun" -x LD_PRELOAD="$(cc -print-file-name=libasan.so):$folder/keep_modules.so" -np "$@"
}

export TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1"
export ASAN_OPTIONS="detect_stack_use_after_return=1 detect_leaks=1 fast_unwind_on_malloc=0"
export LSAN_OPTIONS="suppressions=$source/tests/support/open_mpi.supp:print_suppressions=0"
export UBSAN_OPTIONS="halt_on_error=1 print_stacktrace=1"
for part in "$@"; do
  case $part in
    thread)
      build thread thread comm_tests zero_tests device_tests
      "$folder/thread/bin/device_tests" --gtest_brief=1
      # Not the tests of errors at 64 ranks, which take long and share their code with the others.
      "$folder/thread/bin/comm_tests" --gtest_brief=1 --gtest_filter=-Compression.*
      "$folder/thread/bin/zero_tests" --gtest_brief=1
      ;;
    address)
      build address "address;undefined" comm_tests zero_tests comm_mpi_tests zero_mpi_tests
      "$folder/address/bin/comm_tests" --gtest_brief=1 --gtest_filter=-Compression.*
      "$folder/address/bin/zero_tests" --gtest_brief=1
      for np in 2 4; do
        mpi "$np" "$folder/address/bin/comm_mpi_tests" --gtest_brief=1
        mpi "$np" "$folder/address/bin/zero_mpi_tests" --gtest_brief=1
      done
      ;;
    program)
      build address "address;undefined" trainer
      trainer=$folder/address/bin/trainer runs=$folder/runs
      rm -rf "$runs"
      "$trainer" quickstart "$runs/task" --rows 200 --held-out 10 >/dev/null
      common="output_dir=$runs/out per_device_train_batch_size=2 gradient_accumulation_steps=2 global_batch_size=null
        save_steps=1 val_size=5 eval_strategy=steps eval_steps=1 plot_loss=false report_to=none"
      for how in "2 zero_stage=3 fp8=true reduce_dtype=int8 error_feedback=true gather_dtype=fp8" \
        "4 zero_stage=2 fp8=true fp8_recipe=current overlap_comm=false" "4 zero_stage=1 deterministic=strict"; do
        read -r np options <<<"$how"
        # shellcheck disable=SC2086
        mpi "$np" "$trainer" "$runs/task/config.yaml" $common $options max_steps=2 overwrite_output_dir=true >/dev/null
        # shellcheck disable=SC2086
        mpi "$np" "$trainer" "$runs/task/config.yaml" $common $options max_steps=3 \
          resume_from_checkpoint="$runs/out/checkpoint-2" >/dev/null
      done
      ;;
    *) echo "sanitize.sh: no part '$part'" >&2; exit 2 ;;
  esac
  echo "== $part: clean"
done
