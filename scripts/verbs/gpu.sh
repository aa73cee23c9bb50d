#!/usr/bin/env bash
# GPU suite and benchmark: gpu pack FOLDER here, gpu run FOLDER RESULTS [ARGUMENTS] where a GPU is.
set -euo pipefail
# `pack` builds and collects the binaries. `run` builds nothing: it starts a sidecar in its sandbox,
# holds the contract of GPU memory against CUDA, then measures on a file in PLACE (/tmp) and, as
# root, on a volume of several file systems in memory, and leaves suite.txt, disk.{md,json} and
# memory.{md,json} in RESULTS.

usage() {
    echo "usage: scripts/dev gpu pack FOLDER | scripts/dev gpu run FOLDER RESULTS [ARGUMENTS]" >&2
    exit 2
}

pack() {
    local folder=$1 suite
    mkdir -p "$folder"
    cargo build --release --locked -p kvrail
    suite=$(cargo test --release --locked -p kvrail-tests --test contract --no-run 2>&1 |
        tee /dev/stderr | sed -n 's/^ *Executable .*(\(.*\))$/\1/p')
    cp "${CARGO_TARGET_DIR:-target}/release/kvrail" "$folder/kvrail"
    cp "$suite" "$folder/suite"
    strip "$folder/kvrail" "$folder/suite"
    echo "packed: $(du -sh "$folder" | cut -f 1) in $folder"
}

# cuFile takes only files on devices in udev's database, which containers lack.
register() {
    local number entry
    number=$(stat -c '%Hd:%Ld' "$1")
    entry=/run/udev/data/b$number
    if [[ ! -e $entry && $(id -u) == 0 ]]; then
        mkdir -p "${entry%/*}"
        printf 'E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=ext4\n' >"$entry"
        echo "wrote $entry for $1, which cuFile looks for"
    fi
}

# Measures in a folder and keeps table, JSON and the messages.
measure() {
    local name=$1
    shift
    {
        echo "kvrail bench --gpu 0 $* ($name)"
        echo
        "$folder/kvrail" bench --gpu 0 --json "$results/$name.json" "$@"
    } | tee "$results/$name.md"
}

take_down() {
    local drive
    # The kernel closes what a ring had open a moment after its process has ended.
    for drive in "$memory"/drive-*/; do
        for _ in {1..50}; do
            mountpoint -q "$drive" && ! umount "$drive" 2>/dev/null || break
            sleep 0.1
        done
    done
    for loop in "${loops[@]}"; do
        losetup -d "$loop" || true
    done
    umount -q "$memory" || true
    rmdir "$memory" || true
}

# Loop devices over files in memory: together as fast as a few drives. Each has one kernel thread,
# which copies every byte.
in_memory() {
    local drive dirs=()
    # Not local: removed when the script ends.
    memory=$(mktemp -d) loops=()
    trap take_down EXIT
    mount -t tmpfs -o huge=within_size,size=6G tmpfs "$memory"
    for drive in "$memory"/drive-{1..4}; do
        mkdir "$drive"
        truncate -s 1G "$drive.ext4"
        mkfs.ext4 -q -F "$drive.ext4"
        loops+=("$(losetup --find --show "$drive.ext4")")
        mount "${loops[-1]}" "$drive"
        register "$drive"
        dirs+=(--dir "$drive")
    done
    measure memory "${dirs[@]}" "$@"
}

# A sidecar in its whole sandbox takes the GPU: `bench` has none, and CUDA needs more than drives.
confined() {
    local place status pid
    place=$(mktemp -d)
    "$folder/kvrail" volume create kv --size 64MiB --direct optional --quiet "$place/kv" >/dev/null
    printf '%s\n' 'metrics.listen = "off"' 'device.direct = "optional"' 'gpu.devices = ["0"]' \
        "sidecar.socket = \"$place/s\"" '[[volume]]' 'name = "kv"' "members = [\"$place/kv\"]" \
        >"$place/kvrail.toml"
    "$folder/kvrail" serve --config "$place/kvrail.toml" 2>"$place/log" &
    pid=$!
    for _ in {1..200}; do
        [[ -S $place/s ]] && break
        sleep 0.1
    done
    status=$("$folder/kvrail" status --verbose --socket "$place/s") || true
    kill "$pid" 2>/dev/null || true
    wait "$pid" || true
    grep -F 'sandbox on' <<<"$status" || { cat "$place/log" && exit 1; }
    rm -r "$place"
}

run() {
    folder=$1 results=$2
    shift 2
    local directory=${PLACE:-/tmp}
    mkdir -p "$results"
    register "$directory"
    {
        echo "$(uname -sr), $(nproc) cores"
        nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current \
            --format=csv,noheader || true
        confined
        "$folder/suite" gpu:: --test-threads 4 2>&1
    } | tee "$results/suite.txt"
    measure disk --dir "$directory" "$@"
    if [[ $(id -u) == 0 ]] && command -v losetup >/dev/null && command -v mkfs.ext4 >/dev/null; then
        in_memory "$@"
    else
        echo "skipped: memory: needs root, losetup and mkfs.ext4"
    fi
}

case ${1:-} in
    pack) [[ $# == 2 ]] || usage ;;
    run) [[ $# -ge 3 ]] || usage ;;
    *) usage ;;
esac
"$@"
