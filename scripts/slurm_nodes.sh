#!/usr/bin/env bash
# A Slurm cluster of several nodes on one machine, for `make slurm`: real daemons, no systemd, no control groups.
#
#   scripts/slurm_nodes.sh up [NODES]   start it (2 nodes if left out), wait until every node is idle
#   scripts/slurm_nodes.sh down         end what `up` started, by process id
#
# Needs root and Debian's packages: apt-get install --no-install-recommends slurm-wlm munge
# SLURM_FOLDER (default /tmp/repro-gate-slurm) holds its files; export SLURM_CONF=$SLURM_FOLDER/slurm.conf to use it.
# SLURM_PORT (default 17600) is the first of its ports, so that two clusters can live beside each other.
set -euo pipefail

folder=${SLURM_FOLDER:-/tmp/repro-gate-slurm}
port=${SLURM_PORT:-17600}
export SLURM_CONF=$folder/slurm.conf

start_munge() {
    install -d -o munge -g munge /run/munge
    if [ ! -s /etc/munge/munge.key ]; then
        dd if=/dev/urandom of=/etc/munge/munge.key bs=1024 count=1 status=none
        chown munge:munge /etc/munge/munge.key
        chmod 400 /etc/munge/munge.key
    fi
    # another cluster's or the system's own serves as well
    if ! munge --no-input >/dev/null 2>&1; then
        runuser -u munge -- munged --pid-file /run/munge/repro-gate.pid
        touch "$folder/own-munge"
    fi
}

write_configuration() {
    local nodes=$1 host
    host=$(hostname -s)
    cat >"$SLURM_CONF" <<CONFIGURATION
ClusterName=repro-gate
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
AuthType=auth/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
# none of these needs control groups
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
# a node whose daemon is gone is lost after these seconds; a killed task is waited for as long
SlurmdTimeout=10
KillWait=2
# each node claims cores that the machine need not have
SlurmdParameters=config_overrides
NodeName=n[1-$nodes] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + nodes))] CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=n[1-$nodes] Default=YES MaxTime=600 State=UP
CONFIGURATION
}

up() {
    local nodes=$1 number
    mkdir -p "$folder/state"
    start_munge
    write_configuration "$nodes"
    slurmctld
    for number in $(seq "$nodes"); do slurmd -N "n$number"; done
    for _ in $(seq 60); do
        if [ "$(sinfo --noheader --states=idle --format=%D)" = "$nodes" ]; then
            sinfo
            return
        fi
        sleep 0.5
    done
    echo "the nodes are not idle after 30 s: see $folder/*.log" >&2
    return 1
}

down() {
    local file pids=()
    for file in "$folder"/slurmd-*.pid "$folder/slurmctld.pid"; do
        if [ -s "$file" ]; then pids+=("$(cat "$file")"); fi
    done
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do
        for _ in $(seq 20); do kill -0 "$pid" 2>/dev/null || break; sleep 0.5; done
    done
    if [ -e "$folder/own-munge" ]; then kill "$(cat /run/munge/repro-gate.pid)" 2>/dev/null || true; fi
    rm -rf "$folder"
}

case ${1:-} in
    up) up "${2:-2}" ;;
    down) down ;;
    *)
        sed -n '2,9p' "$0"
        exit 2
        ;;
esac
