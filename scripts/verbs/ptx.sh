#!/usr/bin/env bash
# Makes the kernels' .ptx from their .cu with NVRTC (NVRTC=libnvrtc.so; no GPU needed).
set -euo pipefail
# PTX of CUDA 12.4 for the oldest architecture served: drivers from 550 on compile it at start.
# `pip download nvidia-cuda-nvrtc-cu12==12.4.127` holds the library.
architecture=compute_70
make() {
    python3 - "${NVRTC:-libnvrtc.so.12}" "$architecture" "$@" <<'PYTHON'
import ctypes
import sys

library, architecture, source, target = sys.argv[1:]
try:
    nvrtc = ctypes.CDLL(library)
except OSError as why:
    sys.exit(f"{why}; set NVRTC to the path of libnvrtc.so.12")
text, name = open(source, "rb").read(), source.rpartition("/")[2].encode()
program = ctypes.c_void_p()
nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None)
options = [b"--gpu-architecture=" + architecture.encode(), b"--std=c++17"]
status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * 2)(*options))
size = ctypes.c_size_t()
nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
log = ctypes.create_string_buffer(size.value)
nvrtc.nvrtcGetProgramLog(program, log)
if log.value:
    print(log.value.decode(), file=sys.stderr)
if status != 0:
    sys.exit(f"NVRTC status {status}")
nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
text = ctypes.create_string_buffer(size.value)
nvrtc.nvrtcGetPTX(program, text)
open(target, "wb").write(text.value)
print(f"wrote {target}")
PYTHON
}

make engine/gpu/kernels/move.cu engine/gpu/kernels/move.ptx
make ffi/python/kernels/blocks.cu ffi/python/python/kvrail/blocks.ptx
