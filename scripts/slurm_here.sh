#!/usr/bin/env bash
# A SLURM of one node, this machine, to try `hydra/launcher=slurm` on and to test it.
#
#     scripts/slurm_here.sh start DIR    # install what is missing, start; prints the SLURM_CONF to be exported
#     scripts/slurm_here.sh stop DIR     # end the jobs and the daemons
#
# Needs root, and Debian or a kin of it (apt-get). But for Debian's packages everything is kept in DIR: configuration,
# key, state, logs. The daemons listen on 127.0.0.1 alone. Two partitions: `main`, and `urgent`, whose jobs have those of
# `main` requeued. There is no accounting, which the launcher does without. Starting what is started does nothing.
set -euo pipefail

fail() {
    echo "slurm_here: $*" >&2
    exit 1
}

[[ $# == 2 && ( $1 == start || $1 == stop ) ]] || { sed -n '4,5s/^# *//p' "$0" >&2; exit 2; }
action=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd -P)
export SLURM_CONF=$dir/slurm.conf
PATH=$PATH:/usr/sbin:/sbin
socket=$dir/munge.socket

answers() { command -v sinfo >/dev/null && [[ -f $SLURM_CONF ]] && timeout 5 sinfo >/dev/null 2>&1; }

if [[ $action == stop ]]; then
    if answers; then
        scancel --quiet --state=PENDING || true
        scancel --quiet --full --signal=KILL --state=RUNNING || true
        scontrol shutdown
    fi
    # By the numbers that they left, and only where that is still what has the number.
    for daemon in slurmd slurmctld munged; do
        pid=$(cat "$dir/$daemon.pid" 2>/dev/null) || continue
        for i in $(seq 50); do
            [[ $(cat "/proc/$pid/comm" 2>/dev/null) == "$daemon" ]] || continue 2
            # SLURM's own end by themselves, asked above; those that do not are told once more.
            [[ $daemon != munged && $i -lt 20 ]] || kill "$pid" 2>/dev/null || true
            sleep 0.1
        done
        kill -KILL "$pid" 2>/dev/null || true
    done
    exit 0
fi

if answers; then
    echo "export SLURM_CONF=$(printf %q "$SLURM_CONF")"
    exit 0
fi
[[ $(id -u) == 0 ]] || fail "needs root"
# What a socket's path may have.
(( ${#socket} < 100 )) || fail "$dir: too long a path for a socket in it; choose a shorter one"

missing=
for package in munge slurmctld slurmd slurm-client; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=" $package"
done
if [[ -n $missing ]]; then
    command -v apt-get >/dev/null || fail "needs apt-get to install$missing"
    echo "slurm_here: installing$missing" >&2
    export DEBIAN_FRONTEND=noninteractive
    # Lists of packages that are weeks old name files that are gone: fetched once more only if need be.
    # shellcheck disable=SC2086
    apt-get install -qq -y --no-install-recommends $missing >"$dir/apt.log" 2>&1 ||
        { apt-get update -qq && apt-get install -qq -y --no-install-recommends $missing; } >>"$dir/apt.log" 2>&1 ||
        fail "apt-get cannot install$missing: $(tail -n 1 "$dir/apt.log")"
fi

host=$(hostname -s)
# As slurmd sees the machine: it refuses a configuration that promises more.
hardware=$(slurmd -C | head -n 1)
cores=$(sed -E 's/.* CPUs=([0-9]+).*/\1/' <<<"$hardware")
memory=$(sed -E 's/.* RealMemory=([0-9]+).*/\1/' <<<"$hardware")
mkdir -p "$dir/state" "$dir/spool"
chmod 755 "$dir"
if [[ ! -f $dir/munge.key ]]; then
    (umask 077 && head -c 128 /dev/urandom >"$dir/munge.key")
fi
cat >"$SLURM_CONF" <<END
ClusterName=here
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A job that was requeued waits until its old credential has expired: two minutes by default.
AuthInfo=socket=$socket,cred_expire=5
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
# Control groups are not to be had in every container.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=5
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cores RealMemory=$((memory * 9 / 10)) State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=$host MaxTime=INFINITE State=UP PriorityTier=2
END

is_up() { [[ $(cat "/proc/$(cat "$dir/$1.pid" 2>/dev/null || echo none)/comm" 2>/dev/null) == "$1" ]]; }
log=$dir/start.log
: >"$log"
# --force: munged has scruples about a directory that others may write, such as /tmp above DIR.
is_up munged || munged --force --socket="$socket" --key-file="$dir/munge.key" --pid-file="$dir/munged.pid" \
    --log-file="$dir/munged.log" --seed-file="$dir/munged.seed" >>"$log" 2>&1 || fail "munged: $(tail -n 1 "$log")"
is_up slurmctld || slurmctld >>"$log" 2>&1 || fail "slurmctld: $(tail -n 1 "$log")"
is_up slurmd || slurmd -N "$host" >>"$log" 2>&1 || fail "slurmd: $(tail -n 1 "$log")"
for _ in $(seq 60); do
    if timeout 5 sinfo --noheader --format=%T 2>/dev/null | grep -qE '^(idle|mixed|allocated)'; then
        echo "export SLURM_CONF=$(printf %q "$SLURM_CONF")"
        exit 0
    fi
    sleep 0.5
done
fail "the node is not up after 30 s; see $dir/slurmctld.log and $dir/slurmd.log"
