#!/usr/bin/env bash
# Compares the layouts in ffi/cufile/src/abi.rs with an installed cufile.h (CUDA_INCLUDE=folder).
set -euo pipefail
# The numbers here are those that abi.rs asserts at compile time: both must change together.
include=${CUDA_INCLUDE:-/usr/local/cuda/include}
if [[ ! -f $include/cufile.h ]]; then
    echo "no cufile.h in $include; set CUDA_INCLUDE to the folder of the CUDA headers" >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/layout.c" <<'C'
#include <time.h>
#include <sys/types.h>
#include <cufile.h>
#include <stddef.h>
#define SIZE(type, bytes) _Static_assert(sizeof(type) == bytes, "size of " #type)
#define AT(type, field, bytes) \
    _Static_assert(offsetof(type, field) == bytes, #type "." #field)
SIZE(CUfileError_t, 8);
AT(CUfileError_t, cu_err, 4);
SIZE(CUfileDescr_t, 24);
AT(CUfileDescr_t, handle.fd, 8);
AT(CUfileDescr_t, fs_ops, 16);
SIZE(CUfileIOParams_t, 64);
AT(CUfileIOParams_t, u.batch.devPtr_base, 8);
AT(CUfileIOParams_t, u.batch.file_offset, 16);
AT(CUfileIOParams_t, u.batch.devPtr_offset, 24);
AT(CUfileIOParams_t, u.batch.size, 32);
AT(CUfileIOParams_t, fh, 40);
AT(CUfileIOParams_t, opcode, 48);
AT(CUfileIOParams_t, cookie, 56);
SIZE(CUfileIOEvents_t, 24);
AT(CUfileIOEvents_t, status, 8);
AT(CUfileIOEvents_t, ret, 16);
_Static_assert(sizeof(CUfileDrvProps_t) <= 56 + 128, "room for driver properties");
AT(CUfileDrvProps_t, nvfs.dstatusflags, 24);
AT(CUfileDrvProps_t, fflags, 32);
AT(CUfileDrvProps_t, max_batch_io_size, 48);
_Static_assert(CU_FILE_HANDLE_TYPE_OPAQUE_FD == 1 && CUFILE_BATCH == 1, "kinds");
_Static_assert(CUFILE_READ == 0 && CUFILE_WRITE == 1, "opcodes");
_Static_assert(CUFILE_COMPLETE == 0x10 && CUFILE_FAILED == 0x40, "states");
_Static_assert(CU_FILE_HANDLE_NOT_REGISTERED == 5027, "statuses");
_Static_assert(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE == 1, "parameters");
C
"${CC:-cc}" -std=gnu11 -fsyntax-only -I"$include" "$work/layout.c"
echo "layouts agree with $include/cufile.h"
