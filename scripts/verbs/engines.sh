#!/usr/bin/env bash
# Adapters against real engines: scripts/dev engines [vllm|lmcache] [--bench] [--python PYTHON].
set -euo pipefail

newest_vllm=0.33.0 oldest_vllm=0.30.0 lmcache=0.5.6
engines=(vllm lmcache) bench= python=
while (($#)); do
    case $1 in
        vllm | lmcache) engines=("$1") ;;
        --bench) bench=1 ;;
        --python) python=${2:?"--python needs a program"} && shift ;;
        *)
            echo "scripts/dev engines: no argument '$1'; there are vllm, lmcache, --bench," \
                "--python PYTHON" >&2
            exit 2
            ;;
    esac
    shift
done

home=$(realpath -ms "${CARGO_TARGET_DIR:-target}")/python
# Engines without the packages that need a GPU; an old vLLM without its compiled part.
if [[ -z $python ]]; then
    python=$home/engines/bin/python
    if [[ ! -x $python ]]; then
        echo "== installing vLLM and LMCache with PyTorch, about 7 GB, into $home/engines"
        python3 -m venv "$home/engines"
        "$home/engines/bin/pip" install -q -r ffi/python/tests/engines/requirements.txt
        "$home/engines/bin/pip" install -q --no-deps "vllm==$newest_vllm" "lmcache==$lmcache"
        "$home/engines/bin/pip" install -q --no-deps --pre lmcache-rust-raw-block-io
    fi
fi
python=$(realpath -ms "$python")
if [[ ! -d $home/engines-$oldest_vllm && " ${engines[*]} " == *" vllm "* ]]; then
    echo "== unpacking vLLM $oldest_vllm into $home/engines-$oldest_vllm"
    rm -rf "$home/unpacking"
    "$python" -m pip install -q --no-deps --target "$home/unpacking" "vllm==$oldest_vllm"
    find "$home/unpacking" -name '*.so' -size +1M -delete
    mv "$home/unpacking" "$home/engines-$oldest_vllm"
fi

# Beside the engines' packages, not among them: nothing of theirs is changed.
profile=$([[ $bench ]] && echo release || echo dev)
wheel=$(scripts/verbs/wheel.sh "$profile")
unpacked=$home/unpacked-$profile
rm -rf "$unpacked"
"$python" -m zipfile -e "$wheel" "$unpacked"
chmod 755 "$unpacked/kvrail/bin/kvrail"
export PYTHONPATH=$unpacked CUDA_VISIBLE_DEVICES= PYTHONDONTWRITEBYTECODE=1
export LMCACHE_DISABLE_BANNER=1 LMCACHE_LOG_LEVEL=ERROR VLLM_LOGGING_LEVEL=ERROR

failed=()
# step TEST "what holds when it passes" COMMAND...
step() {
    local test=$1 passes=$2
    shift 2
    echo "== $test passes when $passes"
    if "$@"; then echo "   $test ok"; else failed+=("$test") && echo "   $test FAILED"; fi
}

suite() {
    (cd ffi/python && "$python" -m pytest -q "${@:2}" "tests/engines/test_$1.py")
}

old_suite() {
    (
        export PYTHONPATH=$unpacked:$home/engines-$oldest_vllm
        suite vllm
    )
}

measure() {
    local results=bench/results/engines
    mkdir -p "$results"
    "$python" "bench/engines/$1.py" >"$results/$1.json"
}

try() {
    "$unpacked/kvrail/bin/kvrail" engines try "$1" --python "$python"
}

for engine in "${engines[@]}"; do
    if [[ $bench && $engine == vllm ]]; then
        step "V2, V3" "cold loads reach 1.0 of the fs tier's GB/s, 4 times its GB/s per CPU-second
   and 0.7 of its p99; no lookup is put off or takes more than 1 us" measure vllm_tier
    elif [[ $bench ]]; then
        step L1 "stores and loads are verified, reach 1.0 of fs_native's and raw_block's GiB/s with
   0.5 of their CPU, and copy nothing of a shared L1" measure lmcache_l2
    elif [[ $engine == vllm ]]; then
        step "V1, V4 on vLLM $newest_vllm" "chunks come back through vLLM's manager; misses,
   failures, kills and full stores give no other bytes and no hang" suite vllm
        step "V1, V4 on vLLM $oldest_vllm" "the same" old_suite
        step "try vllm" "kvrail engines try vllm moves chunks end to end" try vllm
    else
        step "L1, L3 on LMCache $lmcache" "LMCache's own bench verifies every byte; its contract
   holds while the sidecar is killed and comes back" suite lmcache
        step "try lmcache" "kvrail engines try lmcache moves objects end to end" try lmcache
    fi
done
if ((${#failed[@]})); then
    echo "== failed: ${failed[*]}" >&2
    exit 1
fi
