#!/usr/bin/env bash
# Instructions a request costs, against the stored counts: scripts/dev count [--record | --arm ARM].
set -euo pipefail

status=0
if command -v valgrind >/dev/null; then
    cargo build --release --locked -p kvrail-bench --example count
    "${CARGO_TARGET_DIR:-target}/release/examples/count" "$@" || status=$?
else
    echo "skipped: null, interrupt: no valgrind; install it (apt install valgrind)"
fi
# Named arms or a device are counted here, on any machine.
[[ $* == "" || $* == --record ]] || exit $status

polled="iopoll, passthrough, passthrough+iopoll"
echo "$polled: counted in a machine with NVMe controllers, which has its own valgrind"
if why=$(tests/hardware/vm/build.sh 2>&1); then
    tests/hardware/vm/count.sh "$@" || status=$?
else
    echo "skipped: $polled: no machine: $(tail -n 1 <<<"$why")"
fi
exit $status
