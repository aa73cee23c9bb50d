#!/usr/bin/env bash
# The plug-in for NVIDIA's NIXL: scripts/dev nixl build|test|bench [--python PYTHON].
set -euo pipefail

nixl=1.5.1
usage() {
    echo "usage: scripts/dev nixl build|test|bench [--python PYTHON]; PYTHON has nixl-cu12" \
        "$nixl, numpy and pytest" >&2
    exit 2
}

verb=${1:-}
[[ $verb =~ ^(build|test|bench)$ ]] || usage
python=
case ${2:-}${3:+ 3} in
    "--python 3") python=$3 ;;
    "") ;;
    *) usage ;;
esac

home=$(realpath -ms "${CARGO_TARGET_DIR:-target}")
profile=$([[ $verb == test ]] && echo dev || echo release)
built=$home/$([[ $profile == dev ]] && echo debug || echo release)
plugins=$home/nixl/$profile

# One file that needs nothing else: libkvrail is in it. Its name is the back end's.
cargo build -q --locked --profile "$profile" -p kvrail-c
mkdir -p "$plugins"
"${CXX:-g++}" -std=c++20 -O2 -Wall -Wextra -Wno-missing-field-initializers -fPIC -shared \
    -fvisibility=hidden -Iffi/c/include ffi/engines/nixl/src/*.cpp "$built/libkvrail.a" \
    -Wl,--exclude-libs,ALL,--gc-sections,-z,defs,-z,nodelete,-s -o "$plugins/libplugin_KVRAIL.so"
ln -f "$plugins/libplugin_KVRAIL.so" "$plugins/libplugin_OBJ.so"
if [[ $verb == build ]]; then
    echo "$plugins/libplugin_KVRAIL.so, and the same as libplugin_OBJ.so for engines that know" \
        "only OBJ; NIXL_PLUGIN_DIR=$plugins finds both"
    exit
fi

if [[ -z $python ]]; then
    python=$home/nixl/venv/bin/python
    if [[ ! -x $home/nixl/venv/ready ]]; then
        echo "== installing NIXL $nixl, about 70 MB, into $home/nixl/venv"
        rm -rf "$home/nixl/venv"
        python3 -m venv "$home/nixl/venv"
        timeout 600 "$python" -m pip install -q numpy pytest
        timeout 600 "$python" -m pip install -q --no-deps "nixl-cu12==$nixl"
        install -m 755 /dev/null "$home/nixl/venv/ready"
    fi
fi
python=$(realpath -ms "$python")

# The plug-in and the sidecar are measured: kvrail's Python only starts it.
wheel=$(scripts/verbs/wheel.sh dev)
unpacked=$home/nixl/unpacked
rm -rf "$unpacked"
"$python" -m zipfile -e "$wheel" "$unpacked"
chmod 755 "$unpacked/kvrail/bin/kvrail"
export PYTHONPATH=$unpacked PYTHONDONTWRITEBYTECODE=1 NIXL_LOG_LEVEL=ERROR

if [[ $verb == test ]]; then
    export NIXL_PLUGIN_DIR=$plugins
    cd ffi/python
    exec timeout --foreground --kill-after=20 300 "$python" -m pytest tests/engines/test_nixl.py \
        tests/engines/test_nixl_gpu.py tests/engines/test_nixl_lmcache.py \
        tests/engines/test_nixl_vllm.py
fi

cargo build -q --release --locked -p kvrail
export KVRAIL_BINARY=$built/kvrail
results=bench/results/engines ended=0
mkdir -p "$results"
timeout --foreground --kill-after=20 600 "$python" bench/engines/nixl_transfers.py "$plugins" \
    >"$home/nixl/transfers.json" 2> >(tee "$results/nixl_transfers.txt" >&2) || ended=$?
exit "$ended"
