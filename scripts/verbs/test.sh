#!/usr/bin/env bash
# Tests of ordinary work: unit, flows, rules, docs, Python; `test all`: all, as in CI.
set -euo pipefail

case ${1:-} in
    "" | all) ;;
    *)
        echo "usage: scripts/dev test [all]" >&2
        exit 2
        ;;
esac
# In ordinary work long loops make fewer rounds: each property is tested, fewer times.
if [[ ${1:-} != all ]]; then
    export BRIEF_TESTS=1
fi
log=$(mktemp)
trap 'rm -f "$log" "${machine:-}"' EXIT
failed=() took=()

# Runs a step, keeps its output for the summary, and goes on when it fails. The limit is many times
# what a step takes: one that hangs is named, and the others have their turn.
step() {
    local name=$1 began=$SECONDS
    shift
    echo "== $name"
    timeout --kill-after 10 1800 "$@" 2>&1 | tee -a "$log" || failed+=("$name")
    took+=("$name $((SECONDS - began)) s")
}

# Where io_uring is refused, little below can pass: then that is the first line. Where it is
# allowed, it returns EFAULT (14) for null parameters.
refused=$(python3 -c 'import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(425, 1, None)
errno = ctypes.get_errno()
print("" if errno == 14 else os.strerror(errno))' 2>/dev/null || true)
if [[ $refused ]]; then
    echo "io_uring is refused here ($refused): set sysctl kernel.io_uring_disabled=0, or allow" \
        "io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile" >&2
    exit 1
fi

# Flows start the real binary; tests find it where a build of the workspace leaves it. With all
# targets: dependencies of tests add features to those of the product, and a build without them
# would be made again for the tests.
step build cargo build --workspace --all-targets --locked
# With the output of tests that pass, which names skipped parts.
step test cargo test --workspace --all-targets --no-fail-fast --locked -- --show-output
step doctest cargo test --workspace --doc --no-fail-fast --locked
step python scripts/verbs/python.sh
if [[ ${1:-} == all ]]; then
    step helm scripts/verbs/helm.sh
    step book scripts/verbs/book.sh
    step audit scripts/verbs/audit.sh
    step rollback scripts/verbs/rollback.sh
    # The emulated machine runs during steps of one thread each, where its parts are available: from
    # the package mirror, or from an earlier run. Both kernels, kills and the end of power take 20
    # minutes: `scripts/dev vm test`.
    if why=$(tests/hardware/vm/build.sh 2>&1); then
        machine=$(mktemp)
        timeout --kill-after 10 1800 scripts/verbs/vm.sh test brief >"$machine" 2>&1 &
        vm=$! began=$SECONDS
    else
        echo "skipped: the suite on NVMe controllers, in a machine of its own:" \
            "$(tail -n 1 <<<"$why") (scripts/dev vm build)" | tee -a "$log"
    fi
    # A second each, to build and run them; longer runs are for changes of a decoder.
    step fuzz scripts/verbs/fuzz.sh all 1
    step loom scripts/verbs/loom.sh
    step miri scripts/verbs/miri.sh
    # The arms in the machine with NVMe controllers take as long as its suite: `scripts/dev count`.
    step count scripts/verbs/count.sh --arm null --arm interrupt --arm raw:interrupt
    if [[ ${vm:-} ]]; then
        wait "$vm" || failed+=(vm)
        took+=("vm, during fuzz to count $((SECONDS - began)) s")
        echo "== vm"
        tee -a "$log" <"$machine"
    fi
fi

echo "== summary"
printf '%s\n' "${took[@]}"
marks='     Running|   Doc-tests|test result:|error(\[|:)|test .*(FAILED|failed)'
marks+='|[0-9]+ (passed|failed)'
grep -aE "^($marks)" "$log" || true
if grep -aq '^skipped:' "$log"; then
    echo "== skipped: how often, what, why, and how to have it"
    # Paths of temporary files are replaced by "a file".
    grep -a '^skipped:' "$log" | sed -e 's/^skipped: //' -e 's|[^ ]*/\.tmp[[:alnum:]]*|a file|' |
        sort | uniq -c | sort -rn
fi
if ((${#failed[@]})); then
    echo "failed: ${failed[*]}" >&2
    exit 1
fi
echo "all steps passed"
