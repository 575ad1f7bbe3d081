#!/usr/bin/env bash
#PBS -N trainer
#PBS -l select=1:ncpus=8:mpiprocs=8
#PBS -j oe
# Trains under PBS (OpenPBS, PBS Pro), one rank per MPI process of the selection. Five minutes before the time limit the run
# saves and stops, and the job is submitted again, until the run is complete. Options of qsub replace the options above:
#
#   qsub -l select=2:ncpus=64:ngpus=8:mpiprocs=8 -l walltime=8:00:00 -v "CONFIG=config.yaml output_dir=runs/first" launch/pbs.sh
#
# CONFIG has the configuration, and then keys with values, separated by blanks. qsub divides -v at commas: if a value has
# one, write -v "CONFIG='config.yaml dataset=first,second'". launch/mpirun starts the ranks on the hosts of PBS_NODEFILE. Open
# MPI starts its daemons through PBS if it was built with tm, otherwise over ssh.
#
# The program is build/bin/trainer below the folder of the qsub call (OCTETRUN_BUILD names another build), or `trainer` on
# PATH. qsub passes only named variables on: put `module load …` into your login files, or use `qsub -V`.
set -u

# Words as a shell reads them, without characters that a terminal obeys.
quoted() { # words
  local words
  printf -v words ' %q' "$@"
  echo "${words# }"
}
if [ -z "${PBS_JOBID:-}" ] || [ -z "${PBS_NODEFILE:-}" ]; then
  echo "error: this is not inside a PBS job: PBS_JOBID and PBS_NODEFILE are not set" >&2
  echo "  to do:    qsub -l select=1:ncpus=8:mpiprocs=8 -v \"CONFIG=config.yaml\" $(quoted "$0")" >&2
  exit 64
fi
if [ ! -r "$PBS_NODEFILE" ]; then
  echo "error: the list of hosts of this job cannot be read" >&2
  echo "  where:    PBS_NODEFILE=$(quoted "$PBS_NODEFILE")" >&2
  echo "  to do:    ask the administrators of the cluster" >&2
  exit 64
fi
cd "${PBS_O_WORKDIR:-.}" || exit 64
folder=$PWD
program=${OCTETRUN_BUILD:-$folder/build}/bin/trainer
[ -x "$program" ] || program=$(type -P trainer || true)
if [ -z "$program" ]; then
  echo "error: there is no build/bin/trainer in $(quoted "$folder") and no trainer on PATH" >&2
  echo "  to do:    build it (launch/build), or name the folder of the build: qsub -v OCTETRUN_BUILD=FOLDER,CONFIG=..." >&2
  exit 64
fi
read -ra words <<<"${CONFIG:-}"
if [ ${#words[@]} -eq 0 ]; then
  echo "error: no configuration is named" >&2
  echo "  to do:    qsub -v \"CONFIG=config.yaml output_dir=runs/first\" launch/pbs.sh" >&2
  exit 64
fi
# The installed launcher, or the launcher of the sources around the build. PBS has copied this script elsewhere.
for mpirun in "${program%/*}/octet-mpirun" "${program%/*/bin/trainer}/launch/mpirun" "$folder/launch/mpirun"; do
  [ ! -x "$mpirun" ] || break
done
if [ ! -x "$mpirun" ]; then
  echo "error: there is no launch/mpirun to start the ranks with" >&2
  echo "  expected: octet-mpirun next to $(quoted "$program"), or launch/mpirun in $(quoted "$folder")" >&2
  echo "  to do:    call qsub in the folder of the sources, or install the program (cmake --install)" >&2
  exit 64
fi

# Prints an attribute of this job, or nothing. qstat continues long values on lines that begin with a tab.
attribute() { # name
  qstat -f "$PBS_JOBID" 2>/dev/null | sed -e ':again' -e '$!N' -e 's/\n\t//' -e 'tagain' -e 'P;D' |
    sed -n "s/^ *$1 = //p" | head -n 1
}
walltime=$(attribute 'Resource_List\.walltime')

# The list has one line for each rank of a host.
ranks=$(grep -c . "$PBS_NODEFILE")
export OCTETRUN_LAUNCHER=1 # this script handles the signals of the ranks
"$mpirun" --hostfile "$PBS_NODEFILE" -np "$ranks" "$program" "${words[@]}" &
job=$!
limit='' timer=''
if [[ $walltime =~ ^([0-9]+):([0-9]+):([0-9]+)$ ]]; then
  seconds=$((10#${BASH_REMATCH[1]} * 3600 + 10#${BASH_REMATCH[2]} * 60 + 10#${BASH_REMATCH[3]} - ${OCTETRUN_PBS_MARGIN:-300}))
  if [ $seconds -gt 0 ]; then
    (sleep $seconds & trap 'kill $!' TERM; wait $! && kill -USR2 $$) &
    timer=$!
  fi
fi
trap 'limit=1; kill -USR2 "$job" 2>/dev/null' USR2
trap 'kill -USR2 "$job" 2>/dev/null' TERM # qdel, and the time limit itself
trap 'kill -USR1 "$job" 2>/dev/null' USR1 # qsig -s USR1: save and continue
code=127
while :; do
  wait "$job"
  now=$?
  [ "$now" -eq 127 ] || code=$now
  kill -0 "$job" 2>/dev/null || break
  code=127 # a trap ended the wait
done
[ -z "$timer" ] || kill "$timer" 2>/dev/null

# A stop by a user (qdel) ends the job.
if [ -n "$limit" ] && [ "$code" -eq 76 ]; then
  select=$(attribute 'Resource_List\.select')
  account=$(attribute Account_Name)
  project=$(attribute project)
  options=(-l "select=$select" -l "walltime=$walltime")
  [ -z "${PBS_O_QUEUE:-}" ] || options+=(-q "$PBS_O_QUEUE")
  [ -z "$account" ] || options+=(-A "$account")
  [ -z "$project" ] || [ "$project" = _pbs_project_default ] || options+=(-P "$project")
  # PBS names the copy of this script by the job; the original script is next to the launcher.
  for script in "${mpirun%/*}/pbs.sh" "${mpirun%/bin/*}/share/octet/pbs.sh"; do
    [ ! -r "$script" ] || break
  done
  export CONFIG="${words[*]}"
  # The next job gets the environment of this one, with CONFIG.
  if qsub -V "${options[@]}" "$script"; then
    echo "the time limit is near: stopped with a checkpoint, and submitted again"
    exit 0
  fi
  echo "error: the time limit is near, and the stopped run could not be submitted again; its checkpoint is complete" >&2
  echo "  to do:    qsub -v \"CONFIG='$(quoted "${words[@]}")'\" $(quoted "${options[@]}" "$script")" >&2
fi
exit "$code"
