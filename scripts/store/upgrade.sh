#!/usr/bin/env bash
# Time that clients have no sidecar when one takes over from another, with a long index: upgrade.sh
# [GIGABYTES] [BLOCK BYTES] [ROUNDS]. Blocks are zeros and become holes of a sparse file, so 100 GB
# take minutes, and a GB of space for a moment. Needs root, for a loop device.
set -euo pipefail

gigabytes=${1:-100} bytes=${2:-65536} rounds=${3:-5}
chunk_gb=1
target=${CARGO_TARGET_DIR:-target}
cargo build -q --release --locked -p kvrail
cargo build -q --locked -p kvrail-tests --bin kvrail-actor
kvrail=$target/release/kvrail actor=$target/debug/kvrail-actor
export KVRAIL_CONFIG=/dev/null
work=$(mktemp -d "$PWD/$target/upgrade.XXXXXX")
socket=$(mktemp -u) # short
sidecar='' device=''
finish() {
    [[ -z $sidecar ]] || kill "$sidecar" 2>/dev/null || true
    exec 3>&-
    wait
    [[ -z $device ]] || losetup --detach "$device"
    rm -rf "$work"
}
trap finish EXIT

serve() {
    "$kvrail" serve --set sidecar.socket="$socket" --set metrics.listen=off \
        --set 'volume=[{name="kv",members=["'"$device"'"]}]' >>"$work/log" 2>&1 3>&- &
    sidecar=$!
}
served() {
    until "$kvrail" status --socket "$socket" >/dev/null 2>&1; do
        kill -0 "$sidecar" || { cat "$work/log" && exit 1; }
        sleep 0.05
    done
}
milliseconds() { echo $(($(date +%s%N) / 1000000)); }

# Half of its size in addition, so that nothing is evicted. A loop device, since files are
# preallocated.
truncate -s "$((gigabytes * 3 / 2 + 2))G" "$work/kv"
device=$(losetup --find --show --direct-io=on "$work/kv")
"$kvrail" volume create kv --kind store --block-mean "$bytes" --quiet "$device"
serve
served
chunk=$((chunk_gb * 1000000000 / bytes))
for ((first = 0; first < gigabytes * 1000000000 / bytes; first += chunk)); do
    "$actor" fill "$socket" kv fill "$first" "$chunk" "$bytes"
    sleep 0.5 # the records are written by then, and no writer runs while holes are made
    fallocate --dig-holes "$work/kv"
    printf '\r%d of %d GB' "$(((first + chunk) * bytes / 1000000000))" "$gigabytes" >&2
done
echo >&2
"$kvrail" status --socket "$socket" | grep -A 1 STORE

mkfifo "$work/end"
"$actor" steady "$socket" kv steady <"$work/end" >"$work/output" &
client=$!
exec 3>"$work/end"
until [[ -s $work/output ]]; do sleep 0.1; done
for ((round = 1; round <= rounds; round++)); do
    sleep 2
    began=$(milliseconds)
    kill "$sidecar"
    wait "$sidecar"
    stopped=$(milliseconds)
    serve
    served
    echo "round $round: stopped after $((stopped - began)) ms, serving after" \
        "$(($(milliseconds) - began)) ms"
done
sleep 2
exec 3>&-
wait "$client"
tail -n 1 "$work/output"
