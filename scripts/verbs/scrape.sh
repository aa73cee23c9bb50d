#!/usr/bin/env bash
# Size and cost of a scrape: 64 sessions, 16 devices, a full store: scripts/dev scrape [S] [N]. N
# rounds (20) of S seconds (1), with scrapes and without, in turns (bench/examples/scrape).
set -euo pipefail

# PROGRAMS is a folder with kvrail and the example, where nothing is built.
home=${CARGO_TARGET_DIR:-target}
programs=${PROGRAMS:-$home/release}
example=$programs/scrape
if [[ -z ${PROGRAMS:-} ]]; then
    cargo build -q --release --locked -p kvrail
    cargo build -q --release --locked -p kvrail-bench --example scrape
    example=$programs/examples/scrape
fi
kvrail=$programs/kvrail
data=$(realpath "$(mktemp -d "$home/scrape.XXXXXX")")
pid=
finish() {
    [[ -z $pid ]] || kill "$pid" 2>/dev/null || true
    wait
    rm -rf "$data"
}
trap finish EXIT
export KVRAIL_CONFIG=/dev/null
members=("$data"/store-{01..15})
"$kvrail" volume create store --kind store --size 480MiB --block-mean 4KiB --fill nothing \
    --segment 4MiB --direct optional --quiet "${members[@]}"
names=$(printf '"%s",' "${members[@]}")
cat >"$data/kvrail.toml" <<END
sidecar.socket = "$data/s"
sidecar.log = "warn"
metrics.listen = "127.0.0.1:0"
device.direct = "optional"
[[volume]]
name = "kv"
members = ["null:1GiB"]
[[volume]]
name = "store"
members = [${names%,}]
END
"$kvrail" serve --config "$data/kvrail.toml" 2>"$data/log" &
pid=$!
mark='  metrics and page: http://'
for _ in {1..200}; do grep -qs "$mark" "$data/log" && break || sleep 0.1; done
address=$(sed -n "s|^$mark\(.*\)/|\1|p" "$data/log")
"$example" "$data/s" "$address" "${1:-1}" "${2:-20}"
