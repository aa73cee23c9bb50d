"""SGLang imports this package in each of its processes (SGLANG_EXTERNAL_MODEL_PACKAGE).

Dummy weights are those of weights.py. Two things are not there: a kernel for decoding, which needs
a compiler that is not carried, and sgl_kernel's look for the GPU's address of pinned memory,
without which SGLang takes the host's.
"""

from typing import Any

import sgl_kernel.kvcacheio
import torch
from sglang.srt.layers.dual_gemm import DualGemm
from sglang.srt.model_loader import loader, weight_utils
from weights import draw


def fill(model: torch.nn.Module, *_: Any, **__: Any) -> None:
    for number, (name, weight) in enumerate(model.state_dict().items()):
        if torch.is_floating_point(weight):
            draw(weight, name, number)


for module in (loader, weight_utils):
    module.initialize_dummy_weights = fill
DualGemm._select_mode = lambda *_: None
del sgl_kernel.kvcacheio.get_device_accessible_ptr
