#!/usr/bin/env bash
# Adapters against real engines:
# scripts/dev engines [vllm|lmcache|sglang|nixl|flexkv] [--bench] [--python PYTHON]
# [--flexkv CHECKOUT].
set -euo pipefail

newest_vllm=0.33.0 oldest_vllm=0.30.0 lmcache=0.5.6 sglang=0.5.23 nixl=1.5.1
engines=(vllm lmcache sglang nixl flexkv) bench= python= flexkv=
while (($#)); do
    case $1 in
        vllm | lmcache | sglang | nixl | flexkv) engines=("$1") ;;
        --bench) bench=1 ;;
        --python) python=${2:?"--python needs a program"} && shift ;;
        --flexkv) flexkv=$(realpath "${2:?"--flexkv needs a checkout of FlexKV"}") && shift ;;
        *)
            echo "scripts/dev engines: no argument '$1'; there are vllm, lmcache, sglang, nixl," \
                "flexkv, --bench, --python PYTHON, --flexkv CHECKOUT" >&2
            exit 2
            ;;
    esac
    shift
done

home=$(realpath -ms "${CARGO_TARGET_DIR:-target}")/python
mkdir -p "$home"
# Engines without the packages that need a GPU; an old vLLM without its compiled part.
if [[ -z $python ]]; then
    python=$home/engines/bin/python
    if [[ ! -x $home/engines/ready ]]; then
        echo "== installing vLLM, LMCache, SGLang and NIXL with PyTorch, about 7 GB, into" \
            "$home/engines"
        rm -rf "$home/engines"
        python3 -m venv "$home/engines"
        pip=(timeout 1800 "$home/engines/bin/pip" install -q)
        "${pip[@]}" -r ffi/python/tests/engines/requirements.txt
        "${pip[@]}" --no-deps "vllm==$newest_vllm" "lmcache==$lmcache" "sglang==$sglang" \
            "nixl==$nixl" "nixl-cu13==$nixl"
        "${pip[@]}" --no-deps --pre lmcache-rust-raw-block-io
        install -m 755 /dev/null "$home/engines/ready"
    fi
fi
python=$(realpath -ms "$python")
if [[ ! $bench && ! -d $home/engines-$oldest_vllm && " ${engines[*]} " == *" vllm "* ]]; then
    echo "== unpacking vLLM $oldest_vllm into $home/engines-$oldest_vllm"
    rm -rf "$home/unpacking"
    timeout 900 "$python" -m pip install -q --no-deps --no-compile --target "$home/unpacking" \
        "vllm==$oldest_vllm"
    find "$home/unpacking" -name '*.so' -size +1M -delete
    mv "$home/unpacking" "$home/engines-$oldest_vllm"
fi

# Outside of the engines' packages, which stay unchanged.
profile=$([[ $bench ]] && echo release || echo dev)
wheel=$(scripts/verbs/wheel.sh "$profile")
unpacked=$home/unpacked-$profile
rm -rf "$unpacked"
"$python" -m zipfile -e "$wheel" "$unpacked"
chmod 755 "$unpacked/kvrail/bin/kvrail"
export PYTHONPATH=$unpacked CUDA_VISIBLE_DEVICES= PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore
export LMCACHE_DISABLE_BANNER=1 LMCACHE_LOG_LEVEL=ERROR VLLM_LOGGING_LEVEL=ERROR
export NIXL_LOG_LEVEL=ERROR

table=$home/engines.table log=$home/engines.log failed=
: >"$table"
row() { printf '%-7s %-30s %-44s %s\n' "$@" >>"$table"; }

# step SECONDS TEST "what holds when it passes" COMMAND...: a row of the table.
step() {
    local limit=$1 test=$2 passes=$3 verdict=ok begun=$SECONDS
    shift 3
    echo "== $test passes when $passes"
    timeout --foreground --kill-after=20 "$limit" "$@" 2>&1 | tee "$log" || verdict=FAILED
    [[ $verdict == ok ]] || failed=1
    row "$verdict" "$test" "$(tail -n 1 "$log" | cut -c1-30), $((SECONDS - begun)) of $limit s" \
        "$passes"
}

# measure SECONDS NAME: rows of the table, one for each threshold.
measure() {
    local results=bench/results/engines ended=0
    mkdir -p "$results"
    timeout --foreground --kill-after=20 "$1" "$python" "bench/engines/$2.py" \
        >"$home/$2.json" 2> >(tee "$results/$2.txt" >&2) || ended=$?
    if ((ended > 1)) || [[ ! -s $home/$2.json ]]; then
        failed=1 && row FAILED "$2" "exit status $ended" "it ends within $1 s"
        return
    fi
    thresholds "$home/$2.json"
}

# thresholds JSON: a row for each.
thresholds() {
    "$python" - "$1" >>"$table" <<'END' || failed=1
import json, sys
verdicts = json.load(open(sys.argv[1]))["verdicts"]
for it in verdicts:
    word = "ok" if it["held"] else "MISSED"
    print(f"{word:7} {it['test']:30} {it['value']:<44} {it['what']} {it['bound']}")
sys.exit(not all(it["held"] for it in verdicts))
END
}

cd_python() { echo "cd ffi/python && exec \"\$0\" -m pytest \"\$@\""; }

# ahead ENGINE TESTED "suite"...: the suites on the newest release or pre-release after the tested
# one: the next one of `pip install -U`.
ahead() {
    local engine=$1 tested=$2 there newest suite
    shift 2
    if ! there=$(timeout 60 "$python" -m pip index versions --pre "$engine" 2>"$log"); then
        row skipped "$engine ahead" "pip: $(tail -n 1 "$log" | cut -c1-38)" "the same ahead"
        return
    fi
    newest=$(PYTHONPATH=$unpacked "$python" - "$tested" "$there" <<'END'
import re, sys
from kvrail.engines import _order
listed = re.search("Available versions: (.*)", sys.argv[2])
versions = filter(_order, listed[1].split(", ") if listed else [])
print(max([sys.argv[1], *versions], key=_order))
END
    )
    if [[ $newest == "$tested" ]]; then
        row skipped "$engine ahead" "no pre-release is newer than $tested" "the same ahead"
        return
    fi
    if [[ ! -d $home/engines-$engine-$newest ]]; then
        echo "== unpacking $engine $newest into $home/engines-$engine-$newest"
        rm -rf "$home/unpacking"
        timeout 900 "$python" -m pip install -q --no-deps --no-compile --target \
            "$home/unpacking" "$engine==$newest"
        mv "$home/unpacking" "$home/engines-$engine-$newest"
    fi
    for suite in "$@"; do
        PYTHONPATH=$unpacked:$home/engines-$engine-$newest \
            suite "$engine $newest, ahead" "the same holds on what comes next" "$suite"
    done
}

suite() { step 600 "$1" "$2" bash -c "$(cd_python)" "$python" "tests/engines/test_$3.py"; }

try() {
    step 180 "try $1" "kvrail engines try $1 moves blocks end to end" \
        "$unpacked/kvrail/bin/kvrail" engines try "$1" --python "$python"
}

# FlexKV is in no registry. Its Python opens CUDA's runtime, which came with PyTorch.
flexkv() {
    if [[ -z $flexkv ]]; then
        row skipped "F1 on FlexKV" "no --flexkv CHECKOUT" "its worker finds its blocks in kvrail"
        return
    fi
    local cudart=$home/cudart found
    found=$("$python" -c 'import glob, torch; print(*glob.glob(
        torch.__path__[0] + "/../nvidia/*/lib/libcudart.so.*"))')
    mkdir -p "$cudart"
    ln -sfn "${found%% *}" "$cudart/libcudart.so"
    LD_LIBRARY_PATH=$cudart PYTHONPATH=$unpacked:$flexkv:$("$python" -m kvrail.mooncake) \
        suite "F1 on FlexKV $(git -C "$flexkv" rev-parse --short HEAD 2>/dev/null)" "blocks come \
back through its own worker; kills, hangs and other models give no other bytes" flexkv
}

for engine in "${engines[@]}"; do
    case $engine$bench in
        vllm1) measure 420 vllm_tier ;;
        lmcache1)
            measure 420 lmcache_l2
            measure 420 lmcache_requests
            ;;
        sglang1) measure 420 sglang_pages ;;
        nixl1)
            ended=0
            scripts/verbs/nixl.sh bench --python "$python" || ended=$?
            if ((ended > 1)); then
                failed=1 && row FAILED nixl_transfers "exit status $ended" "it ends within 600 s"
            else
                thresholds "$(dirname "$home")/nixl/transfers.json"
            fi
            ;;
        vllm)
            same="chunks come back through vLLM's manager; misses, failures, kills and full stores \
give no other bytes and no hang; announced is what is there"
            suite "V1, V4 on vLLM $newest_vllm" "$same" vllm
            PYTHONPATH=$unpacked:$home/engines-$oldest_vllm \
                suite "V1, V4 on vLLM $oldest_vllm" "the same" vllm
            suite "V6 on vLLM $newest_vllm" "the same without a CPU tier, its spec's two halves on \
a stand-in for the GPU" vllm_spec
            suite "V7 on vLLM $newest_vllm" "each setting of its own configuration that changes \
bytes finds nothing, and no other does" vllm_identity
            suite "V5 on vLLM $newest_vllm" "what its publisher sends over more stores than fit is \
what lookups find" vllm_events
            suite "V8 on vLLM $newest_vllm" "hints in its own envelopes change the worth of \
blocks; absurd ones change nothing" vllm_hints
            suite "V9 on vLLM $newest_vllm" "prompts that are computed sooner are not loaded, and \
loads that are late are given up" vllm_loads
            try vllm
            ahead vllm "$newest_vllm" vllm vllm_spec
            ;;
        lmcache)
            suite "L1, L3 on LMCache $lmcache" "LMCache's own bench verifies every byte; its \
contract holds while the sidecar is killed and comes back" lmcache
            suite "L5 on LMCache $lmcache" "objects of another form are not there" lmcache_identity
            suite "L2, L3, L4 on LMCache $lmcache" "requests come back through its own server over \
a shared L1 without a copy; faults and kills give no other bytes; its coordinator knows what is \
there" lmcache_server
            try lmcache
            ahead lmcache "$lmcache" lmcache lmcache_server
            ;;
        sglang)
            suite "S1, S3 on SGLang $sglang" "pages of all pools come back without a copy; kills, \
failures and a drive that hangs give no other bytes and no hang" sglang
            suite "S4 on SGLang $sglang" "each setting of its own arguments and pools that changes \
bytes finds nothing, and no other does" sglang_identity
            try sglang
            ahead sglang "$sglang" sglang
            ;;
        nixl)
            step 600 "N1, N3 on NIXL $nixl" "objects and ranges come back through its own agent, \
and chunks of vLLM's tier obj without kvrail's Python; kills and full stores end every call" \
                scripts/verbs/nixl.sh test --python "$python"
            ahead nixl "$nixl" nixl
            ;;
        flexkv1) ;; # Without a GPU there is nothing of its own to measure beside.
        flexkv) flexkv ;;
    esac
done
echo
cat "$table"
[[ -z $failed ]]
