#!/usr/bin/env bash
# Runs in a machine: one sidecar after the other, modes in turn, and the table of ratios of medians.
# ROUNDS, SPAN (seconds of a measurement) and PLACES (of nvme, null, stripe) come from outside.
set -euo pipefail
# shellcheck source=inside.sh
. /job/inside.sh

PATH=/job/programs:$PATH
rounds=${ROUNDS:-3} span=${SPAN:-0.6}
read -ra places <<<"${PLACES:-nvme null stripe}"
modes=("$@")
(($#)) || modes=(interrupt iopoll hybrid passthrough passthrough+iopoll)
figures=/out/figures
: >"$figures"
export KVRAIL_CONFIG=/dev/null

# A memory-backed null device: name, then attributes.
null_device() {
    local home=/sys/kernel/config/nullb/$1 pair
    mkdir "$home"
    for pair in memory_backed=1 size=64 poll_queues=1 "${@:2}" power=1; do
        echo "${pair#*=}" >"$home/${pair%%=*}"
    done
    echo "/dev/$1"
}

# Serves a new volume on these members in a mode; prints why where the mode is refused.
serve() {
    local mode=$1 member list tries
    for member in "${@:2}"; do
        dd if=/dev/zero of="$member" bs=1M count=1 conv=fsync status=none
    done
    kvrail volume create kv --stripe 256KiB --quiet --force "${@:2}" >/dev/null
    list=$(IFS=,; printf '"%s",' "${@:2}")
    # The poller has a processor, client and fio have the other one, in every arm.
    kvrail serve --set sidecar.socket=/tmp/s --set "device.mode=\"$mode\"" \
        --set 'pollers.cpus=[1]' --set pollers.count=1 \
        --set "volume=[{name=\"kv\",members=[${list%,}]}]" >/tmp/serve 2>&1 &
    sidecar=$!
    for ((tries = 0; tries < 300; tries++)); do
        [[ ! -S /tmp/s ]] || return 0
        kill -0 "$sidecar" 2>/dev/null || break
        sleep 0.1
    done
    refused=$(sed -n 's/.*error: //p' /tmp/serve | head -n 1)
    return 1
}

leave() {
    kill "$sidecar"
    wait "$sidecar" || true
}

# One round of a place: arms, block size, depths; figures go to the file as ROW ARM IOPS P50.
measure() {
    local place=$1 mode=$2 arms=$3 block=$4 depths=$5
    taskset -c 0 kvrail bench --attach /tmp/s --volume kv --overwrite --arms "$arms" --op read \
        --block "$block" --depth "$depths" --clients 1 --rounds 1 --seconds "$span" \
        --warm-up 0.3 --volume-size 32MiB --quiet --format json >/tmp/bench.json
    jq -r --arg place "$place" --arg mode "$mode" '.runs[] |
        ["\($place)-d\(.depth)", (if .arm == "kvrail" then $mode else .arm end), .iops,
            .latency_ns.p50] | map(tostring) | join(" ")' /tmp/bench.json >>"$figures"
}

# Median of a column (3: IOPS, 4: p50) of a row's arm.
median() {
    awk -v row="$1" -v arm="$2" -v at="$3" '$1 == row && $2 == arm { print $at }' "$figures" |
        sort -g | awk '{ all[NR] = $1 } END { if (NR) print all[int((NR + 1) / 2)] }'
}

# A line of the table: what, row and arm above, row and arm below, column, aim.
line() {
    local above below ratio=-
    above=$(median "$2" "$3" "$6")
    below=$(median "$4" "$5" "$6")
    if [[ -n $above && -n $below ]]; then
        ratio=$(awk -v a="$above" -v b="$below" 'BEGIN { printf "%.2f", a / b }')
    fi
    printf '%-56s %10.0f %10.0f %6s  %s\n' "$1" "${above:-0}" "${below:-0}" "$ratio" "$7"
}

# One round of the modes on a device.
modes_on() {
    local place=$1 member=$2 mode arms
    for mode in "${modes[@]}"; do
        if ! serve "$mode" "$member"; then
            why[$place $mode]=$refused
            continue
        fi
        arms=kvrail
        [[ $mode != iopoll ]] || arms=kvrail,fio
        measure "$place" "$mode" "$arms" 4KiB 1,32
        leave
    done
}

# Rows of a place: those of the aims, then every mode compared with iopoll.
table_of() {
    local place=$1 mode
    line "$place: kvrail iopoll / fio hipri, 4 KiB d32, IOPS" \
        "$place-d32" iopoll "$place-d32" fio 3 ">= 0.95"
    line "$place: kvrail iopoll / interrupt, 4 KiB d1, p50" \
        "$place-d1" iopoll "$place-d1" interrupt 4 "<= 0.85"
    for mode in "${modes[@]}"; do
        [[ $mode != iopoll ]] || continue
        if [[ -n ${why[$place $mode]:-} ]]; then
            echo "$place: $mode: ${why[$place $mode]}"
            continue
        fi
        line "$place: kvrail $mode / iopoll, 4 KiB d32, IOPS" \
            "$place-d32" "$mode" "$place-d32" iopoll 3 "measured"
        line "$place: kvrail $mode / iopoll, 4 KiB d1, p50" \
            "$place-d1" "$mode" "$place-d1" iopoll 4 "measured"
    done
}

modprobe null_blk nr_devices=0
nvme=$(namespace kvr-main 1)
fast=$(null_device nullb0 irqmode=0)
slow=()
for nth in 1 2 3 4; do
    # 16 ms for each 256 KiB, two at a time: 31 MiB a second, whatever the processor does.
    slow+=("$(null_device "nullb$nth" irqmode=2 completion_nsec=16000000 hw_queue_depth=2 \
        max_sectors=512)")
done

declare -A why
echo "kernel $(uname -r), $rounds rounds of $span s, medians, modes in turn;" \
    "nvme: $nvme, null: $fast"
for ((round = 1; round <= rounds; round++)); do
    for place in "${places[@]}"; do
        case $place in
            nvme) modes_on nvme "$nvme" ;;
            null) modes_on null "$fast" ;;
            stripe)
                serve interrupt "${slow[0]}" && measure one stripe kvrail 1MiB 8 && leave
                serve interrupt "${slow[@]}" && measure four stripe kvrail 1MiB 8 && leave
                ;;
        esac
    done
done

printf '%-56s %10s %10s %6s  %s\n' "" above below ratio aim
for place in "${places[@]}"; do
    if [[ $place != stripe ]]; then
        table_of "$place"
        continue
    fi
    line "null: 4 members striped / one, 1 MiB d8, IOPS" four-d8 stripe one-d8 stripe 3 ">= 3.6"
done
