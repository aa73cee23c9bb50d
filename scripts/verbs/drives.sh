#!/usr/bin/env bash
# Many drives, many processes: drives pack FOLDER here, drives run FOLDER RESULTS [ROUNDS] anywhere.
set -euo pipefail
# `run` builds nothing and needs no network. It measures verified gets of 1 MiB from a store of one
# member and from one of four, in turns, on loop devices over files in memory (as root; else on the
# files); then 8 processes of 8 threads at once at the store of four, and one of 64. MEMBER (3072)
# MiB of a member, SET (1024) MiB as --volume-size of each process, SECONDS_EACH (3).

usage() {
    echo "usage: scripts/dev drives pack FOLDER" >&2
    echo "       scripts/dev drives run FOLDER RESULTS [ROUNDS]" >&2
    exit 2
}

pack() {
    mkdir -p "$1"
    cargo build --release --locked -p kvrail
    cp "${CARGO_TARGET_DIR:-target}/release/kvrail" "$1/kvrail"
    strip "$1/kvrail"
    echo "packed: $(du -sh "$1" | cut -f 1) in $1"
}

# Everything is taken down, however the script ends.
take_down() {
    stop
    local loop
    for loop in "${loops[@]}"; do
        losetup -d "$loop" || true
    done
    if [[ -n $mounted ]]; then umount -q "$memory" || true; fi
    rm -rf "$memory"
}

# Files in memory, and loop devices over them where there are any.
prepare() {
    local member=${MEMBER:-3072} set=${SET:-1024} name file device
    memory=$(mktemp -d "${PLACE:-/dev/shm}/kvrail-drives.XXXXXX") loops=() mounted='' server=''
    trap take_down EXIT
    local size=$((member * 5 + set + 512))M
    if [[ $(id -u) == 0 ]] &&
        mount -t tmpfs -o "huge=within_size,size=$size" tmpfs "$memory" 2>/dev/null; then
        mounted=yes
    fi
    for name in one four-{0..3}; do
        file=$memory/$name
        truncate -s "$((member + 2))M" "$file"
        device=$file
        if [[ $(id -u) == 0 ]] && device=$(losetup --find --show "$file" 2>/dev/null); then
            loops+=("$device")
        else
            device=$file
        fi
        members[$name]=$device
    done
    kind=files && [[ ${#loops[@]} == 5 ]] && kind="loop devices"
    # A benchmark names a raw volume too, and leaves it alone here.
    "$kvrail" volume create raw "$memory/raw" --size "${set}MiB" --fill nothing --direct optional \
        --quiet >/dev/null
    make one "${members[one]}"
    make four "${members[four-0]}" "${members[four-1]}" "${members[four-2]}" "${members[four-3]}"
}

# A store, and the configuration of a sidecar that serves it.
make() {
    local name=$1 list
    shift
    "$kvrail" volume create store --kind store --block-mean 1MiB --fill nothing --direct optional \
        --force "$@" >/dev/null
    list=$(printf '"%s", ' "$@")
    cat >"$memory/$name.toml" <<END
sidecar.socket = "$memory/$name.s"
metrics.listen = "off"
device.direct = "optional"
limits.sessions_per_uid = 64
limits.arenas_per_session = 256
[[volume]]
name = "raw"
members = ["$memory/raw"]
[[volume]]
name = "store"
members = [${list%, }]
END
}

start() {
    socket=$memory/$1.s
    KVRAIL_CONFIG=/dev/null "$kvrail" serve --config "$memory/$1.toml" 2>"$results/serve-$1.log" &
    server=$!
    local look
    for look in {1..200}; do
        [[ -S $socket ]] && "$kvrail" status --socket "$socket" >/dev/null 2>&1 && return
        kill -0 "$server" || { cat "$results/serve-$1.log" >&2 && return 1; }
        sleep 0.1
    done
    echo "drives: no sidecar after $look looks: $results/serve-$1.log" >&2
    return 1
}

stop() {
    if [[ -n $server ]]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    server=''
}

# Gets by CLIENTS threads of a process for a number of seconds, as JSON in a file.
gets() {
    "$kvrail" bench --attach "$socket" --volume raw --store-volume store --overwrite --store \
        --op read --block 1MiB --clients "$1" --depth "$2" --seconds "$3" --warm-up 1 --rounds 1 \
        --volume-size "${SET:-1024}MiB" --json "$4" >"$4.txt" 2>&1 ||
        { cat "$4.txt" >&2 && return 1; }
    sound "$4"
}

# No operation failed, and no byte was wrong.
sound() {
    local bad
    bad=$(field errors "$1" | add && field verify_failures "$1" | add)
    [[ $(tr -d '[:space:]0' <<<"$bad") == '' ]] && return
    echo "drives: $1: errors: $bad" >&2
    return 1
}

field() {
    grep -o "\"$1\": *[0-9.e+]*" "$2" | sed 's/.*: *//'
}

add() {
    awk '{ sum += $1 } END { printf "%.0f\n", sum }'
}

median() {
    sort -g | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'
}

counter() {
    "$kvrail" status --socket "$socket" --format json >"$memory/status.json"
    field "$1" "$memory/status.json" | add
}

# Bytes per second that the sidecar counts, in GB, while all processes only get.
counted() {
    local puts before after begun ended look
    for look in {1..60}; do
        puts=$(counter puts) before=$(counter hits)
        sleep 1
        [[ $(counter puts) == "$puts" && $(counter hits) -gt $before ]] && break
        if [[ $look == 60 ]]; then
            echo "drives: the processes do not get" >&2
            return 1
        fi
    done
    sleep 2
    puts=$(counter puts) before=$(counter hits) begun=$(date +%s%N)
    sleep "${SECONDS_COUNTED:-8}"
    after=$(counter hits) ended=$(date +%s%N)
    if [[ $(counter puts) != "$puts" ]]; then
        echo "drives: puts while gets were counted" >&2
        return 1
    fi
    awk -v blocks="$((after - before))" -v ns="$((ended - begun))" \
        'BEGIN { printf "%.3f\n", blocks * 1048576 / ns }'
}

# A number of processes at once, each of a number of threads.
beside() {
    local processes=$1 threads=$2 depth=$3 process pids=() rate pid
    for process in $(seq "$processes"); do
        gets "$threads" "$depth" "${LONG:-40}" "$results/process-$processes-$process.json" &
        pids+=($!)
    done
    rate=$(counted) || { kill "${pids[@]}" && return 1; }
    for pid in "${pids[@]}"; do wait "$pid" || return 1; done
    echo "$rate"
}

members_of() {
    local rounds=$1 arm round rate
    for round in $(seq "$rounds"); do
        local order=(one four)
        ((round % 2)) || order=(four one)
        for arm in "${order[@]}"; do
            start "$arm"
            gets "${CLIENTS:-8}" 8 "${SECONDS_EACH:-3}" "$results/$arm-$round.json"
            stop
            rate=$(field bytes_per_second "$results/$arm-$round.json" | head -n 1)
            echo "$arm $(awk -v rate="$rate" 'BEGIN { printf "%.3f", rate / 1e9 }')"
        done
    done
}

run() {
    folder=$1 results=$2
    local rounds=${3:-4} one four single many left
    kvrail=$(realpath "$folder")/kvrail
    mkdir -p "$results"
    results=$(realpath "$results")
    declare -gA members=()
    prepare
    echo "$(uname -sr), $(nproc) cores, $kind in memory, $("$kvrail" --version)"
    # No pipe: this shell itself must start and stop the sidecar.
    members_of "$rounds" >"$results/members.txt"
    cat "$results/members.txt"
    one=$(awk '$1 == "one" { print $2 }' "$results/members.txt" | median)
    four=$(awk '$1 == "four" { print $2 }' "$results/members.txt" | median)
    ratio "4 members / 1 member" "$four" "$one" 3.6
    start four
    single=$(beside 1 64 1)
    many=$(beside 8 8 1)
    ratio "8 processes of 8 threads / 1 process of 64" "$many" "$single" 0.95
    for left in misses failures declined; do
        echo "$left: $(counter "$left")"
    done
    stop
}

ratio() {
    awk -v what="$1" -v one="$2" -v other="$3" -v aim="$4" 'BEGIN {
        printf "%s: %.2f GB/s / %.2f GB/s = %.2f (aim: >= %s)\n", what, one, other, one / other, aim
    }'
}

case ${1:-} in
    pack) [[ $# == 2 ]] || usage ;;
    run) [[ $# -ge 3 ]] || usage ;;
    *) usage ;;
esac
"$@"
