#!/usr/bin/env bash
# kvrail as a storage back end of Mooncake's store: scripts/dev mooncake build|test CHECKOUT.
set -euo pipefail

usage() {
    echo "usage: scripts/dev mooncake build|test CHECKOUT; CHECKOUT is a checkout of Mooncake" \
        "with its submodules" >&2
    exit 2
}
[[ $# == 2 && $1 =~ ^(build|test)$ ]] || usage
verb=$1
checkout=$(realpath -m "$2")
store=$checkout/mooncake-store
if [[ ! -f $store/include/storage_backend.h || ! -f $checkout/extern/pybind11/CMakeLists.txt ||
    ! -f $checkout/extern/yalantinglibs/CMakeLists.txt ]]; then
    echo "$checkout is no checkout of Mooncake with its submodules" >&2
    exit 2
fi

# Adds kvrail to Mooncake's list of back ends. The line before (i) or behind (a) an insertion must
# be there once, else this is another Mooncake.
insert() {
    local file=$store/$1 line=$2 where=$3 text=$4
    grep -qF "${text%%\\n*}" "$file" && return
    if [[ $(grep -c "$line" "$file") != 1 ]]; then
        echo "$file has not one line like $line: this Mooncake is not known here" >&2
        exit 1
    fi
    sed -i "/$line/$where\\$text" "$file"
}
insert include/storage_backend.h '^    kNvmeKv$' i '    kKvrail,'
insert src/file_storage.cpp '^    if (storage_backend_descriptor == "bucket' i \
    '    if (storage_backend_descriptor == "kvrail_storage_backend")\n'\
'        config.storage_backend_type = StorageBackendType::kKvrail;\n    else'
insert src/storage_backend.cpp '^#include "storage_backend.h"$' a \
    '#include "kvrail_storage_backend.h"'
insert src/storage_backend.cpp '^        case StorageBackendType::kBucket: {$' i \
    '        case StorageBackendType::kKvrail:\n'\
'            return CreateKvrailStorageBackend(config);'
insert src/CMakeLists.txt '^# Store Master executable' i \
    'include(${KVRAIL_MOONCAKE}/kvrail.cmake)\n'

cargo build -q --locked --release -p kvrail-c
target=$(realpath -ms "${CARGO_TARGET_DIR:-target}")
built=$checkout/build
quiet=(-DBUILD_EXAMPLES=OFF -DBUILD_BENCHMARK=OFF -DBUILD_UNIT_TESTS=OFF)
mkdir -p "$built"
{
    if [[ ! -d $built/yalantinglibs/installed ]]; then
        cmake -S "$checkout/extern/yalantinglibs" -B "$built/yalantinglibs" "${quiet[@]}" \
            -DCMAKE_INSTALL_PREFIX="$built/yalantinglibs/installed"
        cmake --install "$built/yalantinglibs"
    fi
    cmake -S "$checkout" -B "$built" "${quiet[@]}" -DWITH_STORE_RUST=OFF \
        -DENABLE_DEBUG_SYMBOLS=OFF -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 \
        -DCMAKE_PREFIX_PATH="$built/yalantinglibs/installed" \
        -DKVRAIL_MOONCAKE="$PWD/ffi/engines/mooncake" -DKVRAIL_LIBRARY="$target/release/libkvrail.a"
} >"$built/configure.log" 2>&1 || { tail -n 30 "$built/configure.log" && exit 1; }
nice cmake --build "$built" --parallel "$(nproc)" --target mooncake_master store
[[ $verb == test ]] || exit 0

python=$target/mooncake/venv/bin/python
if [[ ! -x $target/mooncake/venv/ready ]]; then
    python3 -m venv "$target/mooncake/venv"
    timeout 600 "$python" -m pip install -q pytest
    install -m 755 /dev/null "$target/mooncake/venv/ready"
fi
wheel=$(scripts/verbs/wheel.sh release)
unpacked=$target/mooncake/unpacked
rm -rf "$unpacked"
"$python" -m zipfile -e "$wheel" "$unpacked"
chmod 755 "$unpacked/kvrail/bin/kvrail"
export PYTHONPATH=$unpacked PYTHONDONTWRITEBYTECODE=1 KVRAIL_MOONCAKE=$built
export LD_LIBRARY_PATH=$built/mooncake-common${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
cd ffi/python
exec timeout --foreground --kill-after=20 900 "$python" -m pytest tests/engines/test_mooncake.py
