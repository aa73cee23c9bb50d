#!/usr/bin/env bash
# An engine with a model on a GPU: model pack FOLDER here, model run FOLDER RESULTS PLACE there.
set -euo pipefail
# `pack` makes one folder of 62 MB: vLLM without the parts that this measurement does not use, what
# vLLM imports, kvrail's release wheel and bench/model. `part` adds LMCache (6 MB; its libraries are
# built with g++ and python3.12 or $PYTHON312), SGLang (12 MB) or AIPerf (7 MB). `run` and `agents`
# need Linux on x86-64, Python 3.12, PyTorch 2.11 for CUDA 13, transformers and a GPU of compute
# capability 9.0, and no network; SGLang also nvcc, AIPerf aiohttp, pandas and pyarrow. They unpack
# once, then run bench/model/run.py or agents.py; `unpack` does the first alone, so archives (*.txz)
# may come before the rest. `report` makes tables and a plot of the results (matplotlib).

usage() {
    cat >&2 <<'USAGE'
usage: scripts/dev model pack FOLDER [WHEEL]     what travels to the GPU machine
       scripts/dev model part lmcache|sglang|aiperf FOLDER    for some arms: one archive more
       scripts/dev model unpack FOLDER           there, of what has come
       scripts/dev model run FOLDER RESULTS disk|memory [ARGUMENTS of bench/model/run.py]
       scripts/dev model agents FOLDER RESULTS disk|memory [ARGUMENTS of bench/model/agents.py]
       scripts/dev model report RESULTS [TAG]    model.md and model.png; of a tag only prints
USAGE
    exit 2
}

vllm=0.33.0
# In GPU code for other chips are three quarters of the library's bytes.
unused=('vllm/vllm_flash_attn/_vllm_fa2*' vllm/vllm-rs 'vllm/third_party/deep_gemm/*'
    'vllm/third_party/fmha_sm100/*' 'vllm/_moe_C*' 'vllm/_flash*_C*' 'vllm/_deepselect*'
    'vllm/_qutlass*')

# fetch FOLDER REQUIREMENT...: wheels for the GPU machine's Python.
fetch() {
    local platforms=(manylinux{2014,2010,1}_x86_64) minor
    for minor in 12 17 24 27 28 31 34; do platforms+=("manylinux_2_${minor}_x86_64"); done
    python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 \
        --implementation cp "${platforms[@]/#/--platform=}" -d "$@"
}

# open_wheel WHEEL FOLDER [ARGUMENTS of unzip]
open_wheel() {
    unzip -q -o "$1" -d "$2" "${@:3}"
}

pack() {
    local folder=$1 wheel=${2:-} libraries library
    wheel=${wheel:-$(scripts/verbs/wheel.sh release | tail -n 1)}
    work=$(mktemp -d) # not local: the trap runs outside
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$folder" "$work/site" "$work/libraries"
    fetch "$work/wheels" "vllm==$vllm"
    open_wheel "$work"/wheels/vllm-*.whl "$work/vllm" -x "${unused[@]}"
    mapfile -t libraries < <(cd "$work/vllm" && find . -name '*.so')
    for library in "${libraries[@]}"; do
        mkdir -p "$work/libraries/${library%/*}"
        if [[ $library == */_C_stable_libtorch.abi3.so ]]; then
            python3 bench/model/prune_fatbin.py "$work/vllm/$library" "$work/libraries/$library"
        elif [[ ${library##*/} =~ ^(_vllm_fa3_C|fs_io_C|spinloop|cumem_allocator)\. ]]; then
            mv "$work/vllm/$library" "$work/libraries/$library"
        fi
    done
    fetch "$work/others" -r bench/model/requirements.txt
    for library in "$work"/others/*.whl; do open_wheel "$library" "$work/site"; done
    rm -rf "$work/site/mistral_common/data"
    tar -C "$work/libraries" -c vllm | xz -T0 -9e >"$folder/libraries.txz"
    tar -C "$work/vllm" -c --exclude='*.so' . | xz -T0 -9e >"$folder/vllm.txz"
    tar -C "$work/site" -c . | xz -T0 -9e >"$folder/site.txz"
    cp "$wheel" "$work/"
    rm -f "$folder"/kvrail-*.whl # an earlier one
    mv "$work/${wheel##*/}" "$folder/"
    cp -r bench/model/. "$folder/model"
    cp scripts/verbs/model.sh "$folder/model.sh"
    du -sh "$folder"
}

part() {
    work=$(mktemp -d) # not local: the trap runs outside
    trap 'rm -rf "$work"' EXIT
    # shellcheck source=bench/model/parts.sh
    source bench/model/parts.sh
    mkdir -p "$2" "$work/site"
    "part_$1" "$2"
    du -sh "$2"
}

home=${MODEL_HOME:-/tmp/kvrail-model-engine}

# unpack FOLDER: each archive once. With another one of the same name all is unpacked anew.
unpack() {
    local archive mark parts=() pids=() pid
    for archive in "$1"/*.txz; do
        [[ -e $archive ]] || continue
        mark=$home/${archive##*/}.done
        if [[ ! -e $mark ]]; then
            parts+=("$archive")
        elif [[ $(<"$mark") != "$(sha256sum <"$archive")" ]]; then
            rm -rf "$home"
            unpack "$1"
            return
        fi
    done
    mkdir -p "$home/site"
    for archive in "${parts[@]}"; do
        # An attribute, which Python before 3.11.4 does not look at: it trusts every archive.
        python3 -c 'import sys, tarfile
archive = tarfile.open(sys.argv[1])
archive.extraction_filter = lambda member, _: member
archive.extractall(sys.argv[2])' "$archive" "$home/site" \
            && sha256sum <"$archive" >"$home/${archive##*/}.done" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid"; done
}

# start PROGRAM FOLDER RESULTS PLACE [ARGUMENTS]
start() {
    local program=$1 folder=$2 wheels=("$2"/kvrail-*.whl)
    shift 2
    if [[ ${#wheels[@]} != 1 || ! -s ${wheels[0]} ]]; then
        echo "$folder has to have one wheel of kvrail, and has: ${wheels[*]}" >&2
        exit 2
    fi
    unpack "$folder"
    rm -rf "$home/kvrail"
    python3 -m zipfile -e "${wheels[0]}" "$home/kvrail"
    chmod 755 "$home/kvrail/kvrail/bin/kvrail"
    export PATH=$home/kvrail/kvrail/bin:$PATH PYTHONPATH=$home/kvrail:$home/site PYTHONUNBUFFERED=1
    exec python3 "$folder/model/$program.py" "$@"
}

run() {
    start run "$@"
}

agents() {
    start agents "$@"
}

case ${1:-} in
    pack) (($# == 2 || $# == 3)) || usage ;;
    part) [[ $# == 3 && $2 =~ ^(lmcache|sglang|aiperf)$ ]] || usage ;;
    unpack) (($# == 2)) || usage ;;
    run | agents) (($# >= 4)) || usage ;;
    report)
        (($# == 2 || $# == 3)) || usage
        exec python3 bench/model/report.py "${@:2}"
        ;;
    *) usage ;;
esac
"$@"
