#!/usr/bin/env bash
# GPU suite and benchmark: gpu pack FOLDER here, gpu run FOLDER RESULTS [ARGUMENTS] where a GPU is.
set -euo pipefail
# `pack` builds and collects the binaries. `run` builds nothing: it holds the contract of GPU memory
# against CUDA, then measures on a file in KVRAIL_DIR (/tmp) and, as root, on a file system in
# memory, and leaves suite.txt, disk.{md,json} and memory.{md,json} in RESULTS.

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

# cuFile takes no file on a device that udev's database does not know; containers lack it.
know() {
    local number entry
    number=$(stat -c '%Hd:%Ld' "$1")
    entry=/run/udev/data/b$number
    if [[ ! -e $entry && $(id -u) == 0 ]]; then
        mkdir -p "${entry%/*}"
        printf 'E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=ext4\n' >"$entry"
        echo "wrote $entry for $1, which cuFile looks for"
    fi
}

# Measures in a folder and keeps table, JSON and how they came about.
measure() {
    local name=$1 directory=$2
    shift 2
    know "$directory"
    {
        echo "kvrail bench --gpu 0 --dir $directory $* ($name)"
        echo
        "$folder/kvrail" bench --gpu 0 --dir "$directory" --json "$results/$name.json" "$@"
    } | tee "$results/$name.md"
}

# A loop device over a file in memory: storage that is faster than the disk.
in_memory() {
    # Not local: taken down when the script ends.
    backing=/dev/shm/kvrail-bench.ext4
    mount=$(mktemp -d)
    truncate -s 3G "$backing"
    mkfs.ext4 -q -F "$backing"
    loop=$(losetup --find --show "$backing")
    trap 'umount "$mount" || true; losetup -d "$loop" || true; rm -f "$backing"' EXIT
    mount "$loop" "$mount"
    measure memory "$mount" "$@"
}

run() {
    folder=$1 results=$2
    shift 2
    local directory=${KVRAIL_DIR:-/tmp}
    mkdir -p "$results"
    know "$directory"
    {
        echo "$(uname -sr), $(nproc) cores"
        nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current \
            --format=csv,noheader || true
        "$folder/suite" gpu:: --test-threads 4 2>&1
    } | tee "$results/suite.txt"
    measure disk "$directory" "$@"
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
