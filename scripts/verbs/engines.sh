#!/usr/bin/env bash
# The adapters against the real vLLM and LMCache: scripts/dev engines [PYTHON that has them].
set -euo pipefail

home=$(realpath -ms "${CARGO_TARGET_DIR:-target}")/python
python=$(realpath -ms "${1:-$home/engines/bin/python}")
if [[ ! -x $python ]]; then
    echo "installing vLLM and LMCache with PyTorch, about 8 GB, into $home/engines"
    python3 -m venv "$home/engines"
    "$home/engines/bin/pip" install -q -r ffi/python/examples/requirements.txt
    "$home/engines/bin/pip" install -q --no-deps vllm==0.33.0 lmcache==0.5.6
fi

# Beside the engines' packages, not among them: nothing of theirs is changed.
wheel=$(scripts/verbs/wheel.sh release)
rm -rf "$home/unpacked"
"$python" -m zipfile -e "$wheel" "$home/unpacked"
chmod 755 "$home/unpacked/kvrail/bin/kvrail"
export PYTHONPATH=$home/unpacked CUDA_VISIBLE_DEVICES=
"$python" -c 'from importlib.metadata import version as v
print(*(f"{name} {v(name)}" for name in ("vllm", "lmcache", "torch")), sep=", ")'
cd ffi/python
PYTHONDONTWRITEBYTECODE=1 "$python" -m pytest -rs tests/engines
