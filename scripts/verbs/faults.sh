#!/usr/bin/env bash
# The effect of faults outside the data path on clients: scripts/dev faults [SECONDS] [ROUNDS].
set -euo pipefail
# A client reads 4 KiB from a null device for SECONDS (0.5), ROUNDS (12) times in each case, in
# turns. A fault is compared with the same work without it, where it is work: a log that is read, a
# bundle that is written. PROGRAMS is a folder with kvrail and the example; then nothing is built.

programs=${PROGRAMS:-${CARGO_TARGET_DIR:-target}/release}
example=$programs/faults
if [[ -z ${PROGRAMS:-} ]]; then
    cargo build -q --release --locked -p kvrail
    cargo build -q --release --locked -p kvrail-bench --example faults
    example=$programs/examples/faults
fi
export KVRAIL=$(realpath "$programs/kvrail") KVRAIL_CONFIG=/dev/null
data=$(mktemp -d) pids=()
finish() {
    exec 3>&- 4>&-
    ((${#pids[@]} == 0)) || kill "${pids[@]}" 2>/dev/null || true
    wait
    rm -rf "$data"
}
trap finish EXIT

# A sidecar of its own: its name, its level of logging, where its metrics are.
serve() {
    cat >"$data/$1.toml" <<END
sidecar.socket = "$data/$1.s"
sidecar.log = "$2"
metrics.listen = "$3"
[[volume]]
name = "kv"
members = ["null:1GiB"]
END
    exec "$KVRAIL" serve --config "$data/$1.toml"
}
serve alone info 127.0.0.1:0 2>"$data/alone.log" 3>&- &
pids+=($!)
mark='  metrics and page: http://'
for _ in {1..200}; do grep -qs "$mark" "$data/alone.log" && break || sleep 0.1; done
address=$(sed -n "s|^$mark\(.*\)/|\1|p" "$data/alone.log")
serve taken info "$address" 2>"$data/taken.log" &
pids+=($!)
serve logged debug off 2>"$data/logged.log" &
pids+=($!)
# A pipe that stays open, and is never read.
mkfifo "$data/pipe"
exec 3<>"$data/pipe"
serve blocked debug off 2>"$data/pipe" 3>&- &
pids+=($!)
for name in alone taken logged blocked; do
    for _ in {1..200}; do [[ -S $data/$name.s ]] && break || sleep 0.1; done
done
dd if=/dev/zero of="$data/pipe" bs=4k count=64 oflag=nonblock 2>/dev/null || true # until it is full
grep -h "metrics.listen" "$data/taken.log" | head -n 1

attach="while :; do \$KVRAIL status --socket $data/%s.s >/dev/null; done"
# As the page does, once a second; ten of them.
page="ask() { exec 5<>/dev/tcp/${address/://}
    printf 'GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n' \$1 >&5
    cat <&5 >/dev/null; }
    while :; do for _ in {1..10}; do ask /status; ask /readyz; done; sleep 1; done"
# A limit of file sizes fails the write as a full disk does.
bundle="while :; do %s \$KVRAIL support-bundle --config $data/alone.toml $data/bundle.tar.gz
    rm -f $data/bundle.tar.gz; done 2>/dev/null"
# shellcheck disable=SC2059 # the formats are above
"$example" "${1:-0.5}" "${2:-12}" \
    "alone" "$data/alone.s" "" \
    "port in use" "$data/taken.s" "" \
    "log at work, read" "$data/logged.s" "$(printf "$attach" logged)" \
    "log at work, blocked" "$data/blocked.s" "$(printf "$attach" blocked)" \
    "ten pages open" "$data/alone.s" "$page" \
    "bundle" "$data/alone.s" "$(printf "$bundle" "")" \
    "bundle, disk full" "$data/alone.s" "$(printf "$bundle" "ulimit -f 1;")"
