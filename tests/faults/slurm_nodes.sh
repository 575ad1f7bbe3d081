# shellcheck shell=bash
# Slurm with two nodes that are host names of this machine, for scripts that source this file. Root only, for it makes
# host names; Debian's packages: slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins.
#
#   trap stop_slurm EXIT; start_slurm FOLDER || exit 2      FOLDER is removed first; SLURM_CONF is set and exported

# A controller and two daemons. Each has a host name and a folder for PMIx.
start_slurm() {
  slurm_folder=$1
  local tool port node conf=$slurm_folder/slurm.conf
  [ "$(id -u)" = 0 ] || { echo "slurm: host names need root" >&2; return 1; }
  for tool in slurmctld slurmd munged sbatch unshare; do
    command -v "$tool" >/dev/null || PATH=$PATH:/usr/sbin
    command -v "$tool" >/dev/null || { echo "slurm: $tool is missing" >&2; return 1; }
  done
  port=$((20000 + RANDOM % 20000))
  rm -rf "$slurm_folder" && mkdir -p "$slurm_folder/state" /run/octet-pmix || return 1
  head -c 1024 /dev/urandom >"$slurm_folder/key" && chmod 400 "$slurm_folder/key"
  {
    printf '%s\n' ClusterName=octet SlurmctldHost=localhost SlurmUser=root SlurmdUser=root AuthType=auth/munge \
      "AuthInfo=socket=$slurm_folder/munge" CredType=cred/munge MpiDefault=none ProctrackType=proctrack/linuxproc \
      TaskPlugin=task/none SelectType=select/cons_tres SelectTypeParameters=CR_Core ReturnToService=2 \
      SlurmdParameters=config_overrides "SlurmctldPidFile=$slurm_folder/slurmctld.pid" \
      "SlurmdPidFile=$slurm_folder/slurmd-%n.pid" "SlurmctldPort=$port" "SlurmdSpoolDir=$slurm_folder/spool-%n" \
      "StateSaveLocation=$slurm_folder/state" "SlurmctldLogFile=$slurm_folder/slurmctld.log" \
      "SlurmdLogFile=$slurm_folder/slurmd-%n.log"
    for node in 1 2; do
      echo "NodeName=n$node NodeHostname=n$node NodeAddr=127.0.0.1 Port=$((port + node)) CPUs=2 RealMemory=1000"
    done
    echo "PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES"
  } >"$conf"
  echo "PMIxCliTmpDirBase=/run/octet-pmix" >"$slurm_folder/mpi.conf"
  # In a root or container without control groups the daemons of newer versions (Debian 13) would not start.
  [ -n "$(ls /sys/fs/cgroup 2>/dev/null)" ] || echo CgroupPlugin=disabled >"$slurm_folder/cgroup.conf"
  export SLURM_CONF=$conf
  # Both nodes have this machine's addresses. Open MPI 5 asks the kernel for a route from one to the other, and finds none.
  export OMPI_MCA_reachable=weighted
  munged --force --key-file="$slurm_folder/key" --socket="$slurm_folder/munge" --pid-file="$slurm_folder/munged.pid" \
    --log-file="$slurm_folder/munged.log" --seed-file="$slurm_folder/seed" || return 1
  slurmctld -f "$conf" -c || return 1
  for node in n1 n2; do
    unshare --mount --uts bash -c "hostname $node; mount -t tmpfs none /run/octet-pmix; exec slurmd -f '$conf' -N $node" || return 1
  done
  for _ in $(seq 30); do
    [ "$(sinfo -h -N -o %T | grep -c idle)" = 2 ] && return 0
    sleep 1
  done
  echo "slurm: its nodes are not idle after 30 s; see $slurm_folder/*.log" >&2
  return 1
}

stop_slurm() {
  local name
  scancel -u root 2>/dev/null
  sleep 2
  for name in slurmd-n1 slurmd-n2 slurmctld munged; do
    kill "$(cat "${slurm_folder:-/nowhere}/$name.pid" 2>/dev/null)" 2>/dev/null
  done
}
