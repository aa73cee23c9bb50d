#!/usr/bin/env bash
# Tensors of the real PyTorch, on a GPU: scripts/dev torch [PYTHON that has torch, NumPy, pytest].
set -euo pipefail

python=${1:-python3}
home=${CARGO_TARGET_DIR:-target}/python
if ! "$python" -c 'import torch, numpy, pytest; assert torch.cuda.is_available()' 2>/dev/null; then
    echo "skipped: $python has no PyTorch with NumPy and pytest that sees a GPU"
    exit 0
fi
wheel=$(scripts/verbs/wheel.sh release)
rm -rf "$home/unpacked"
"$python" -m zipfile -e "$wheel" "$home/unpacked"
chmod 755 "$home/unpacked/kvrail/bin/kvrail"
export PYTHONPATH=$PWD/$home/unpacked
cd ffi/python
"$python" examples/kvrail_torch.py
PYTHONDONTWRITEBYTECODE=1 exec "$python" -m pytest -rs tests/pytorch
