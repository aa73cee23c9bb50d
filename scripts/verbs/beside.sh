#!/usr/bin/env bash
# Clients side by side at sidecars in turns: scripts/dev beside LOAD SECONDS ROUNDS ARM=LINE...
# LOAD: mixed, single, attach, puts
# (bench/examples/beside). LINE is a line of configuration, as in
# 'before=device.in_flight_bytes = "64MiB"' 'after=device.in_flight_bytes = "auto"'.
set -euo pipefail

cargo build -q --release --locked -p kvrail
cargo build -q --release --locked -p kvrail-bench --example beside
home=${CARGO_TARGET_DIR:-target}
data=$(mktemp -d "$home/beside.XXXXXX")
pids=()
finish() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
    rm -rf "$data"
}
trap finish EXIT
data=$(realpath "$data")
arms=()
for arm in "${@:4}"; do
    name=${arm%%=*}
    "$home/release/kvrail" volume create kv --stripe "${STRIPE:-64MiB}" --size 1GiB \
        --direct optional --quiet "$data/$name.kv"
    "$home/release/kvrail" volume create store --kind store --size "${STORE:-4GiB}" \
        --block-mean 64KiB --direct optional --quiet "$data/$name.store"
    cat >"$data/$name.toml" <<END
sidecar.socket = "$data/$name.s"
metrics.listen = "off"
pollers.count = 1
device.direct = "optional"
limits.sessions_per_uid = 64
${arm#*=}
[[volume]]
name = "kv"
members = ["$data/$name.kv"]
[[volume]]
name = "store"
members = ["$data/$name.store"]
END
    KVRAIL_CONFIG=/dev/null "$home/release/kvrail" serve --config "$data/$name.toml" \
        2>"$data/$name.log" &
    pids+=($!)
    for _ in {1..100}; do [[ -S $data/$name.s ]] && break || sleep 0.05; done
    grep -h "in flight" "$data/$name.log" || true
    arms+=("$name=$data/$name.s")
done
"$home/release/examples/beside" "${@:1:3}" "${arms[@]}"
