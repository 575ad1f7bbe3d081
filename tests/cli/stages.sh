#!/usr/bin/env bash
# The full matrix of stages_test.cc: 20 steps of the quickstart task at np 1, 2, 3, 4, 8, with two
# accumulations, in fp32, bf16 and FP8 (delayed, current, block). All ZeRO stages with overlap on and off must
# give equal bits. Then a global batch of 24 with deterministic: strict must give equal bits at every np,
# stage and overlap. Takes a quarter of an hour on two cores. Arguments: the trainer, mpirun, a folder for the
# runs; then the world sizes (default: all). Parts of the matrix: ONLY="deterministic=true*block" (a pattern
# of mode and recipe), ACCUMULATIONS="1".
set -u
trainer=$1 mpirun=$2 folder=$3
shift 3
sizes=${*:-1 2 3 4 8}
export OCTETRUN_OVERLAP=always # where no core is spare the program would leave it out
"$trainer" quickstart "$folder/task" --rows 2000 --held-out 10 >/dev/null || exit 1
failed=0 compared=0

# Arguments: name, np, accumulation, then overrides.
train() {
  local name=$1 np=$2 accumulation=$3
  shift 3
  rm -rf "${folder:?}/$name"
  "$mpirun" -np "$np" "$trainer" "$folder/task/config.yaml" output_dir="$folder/$name" max_steps=20 \
    per_device_train_batch_size=1 gradient_accumulation_steps="$accumulation" global_batch_size=null save_steps=100 \
    logging_steps=20 plot_loss=false report_to=none "$@" >"$folder/$name.log" 2>&1 && return
  echo "FAILED $name (see $folder/$name.log)"
  failed=$((failed + 1))
}

# Arguments: reference, other, text for the difference between them.
compare() {
  compared=$((compared + 1))
  "$trainer" inspect "$folder/$1/checkpoint-20" --diff "$folder/$2/checkpoint-20" >"$folder/diff" && return
  echo "DIFFERS $3"
  tail -2 "$folder/diff"
  failed=$((failed + 1))
}

# wanted NAME: whether ONLY selects this recipe
wanted() { [[ $1 == *${ONLY:-}* ]]; }

for np in $sizes; do
  for accumulation in ${ACCUMULATIONS:-1 3}; do
    for recipe in "bf16=false" "bf16=true" "bf16=true fp8=true fp8_recipe=delayed" \
      "bf16=false fp8=true fp8_recipe=current" "bf16=true fp8=true fp8_recipe=block"; do
      wanted "deterministic=true $recipe" || continue
      # shellcheck disable=SC2086
      train reference "$np" "$accumulation" zero_stage=0 overlap_comm=false $recipe
      for run in "0 true" "1 false" "1 true" "2 false" "2 true" "3 false" "3 true"; do
        read -r stage overlap <<<"$run"
        # shellcheck disable=SC2086
        train other "$np" "$accumulation" zero_stage="$stage" overlap_comm="$overlap" $recipe
        compare reference other "np $np, accumulation $accumulation, $recipe, stage $stage, overlap $overlap"
      done
    done
  done
  echo "np $np: $compared compared, $failed failed so far"
done

for recipe in "bf16=false" "bf16=true" "bf16=true fp8=true fp8_recipe=current"; do
  wanted "deterministic=strict $recipe" || continue
  # shellcheck disable=SC2086
  train strict 1 24 deterministic=strict zero_stage=0 overlap_comm=false $recipe
  for np in $sizes; do
    for run in "0 true" "1 false" "1 true" "2 false" "2 true" "3 false" "3 true"; do
      read -r stage overlap <<<"$run"
      # shellcheck disable=SC2086
      train other "$np" $((24 / np)) deterministic=strict zero_stage="$stage" overlap_comm="$overlap" $recipe
      compare strict other "strict, np $np, $recipe, stage $stage, overlap $overlap"
    done
    echo "strict, $recipe, np $np: $compared compared, $failed failed so far"
  done
done
[ "$failed" = 0 ]
