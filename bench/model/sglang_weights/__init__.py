"""SGLang imports this package in each of its processes (SGLANG_EXTERNAL_MODEL_PACKAGE).

Dummy weights get a scale that keeps the signal, as in engine.py. Two things are not there: a
kernel for decoding, which needs a compiler that is not carried, and sgl_kernel's look for the
GPU's address of pinned memory, without which SGLang takes the host's.
"""

from typing import Any

import sgl_kernel.kvcacheio
import torch
from sglang.srt.layers.dual_gemm import DualGemm
from sglang.srt.model_loader import loader, weight_utils

GAIN = 1.5
"""As in engine.py."""


@torch.no_grad()
def fill(model: torch.nn.Module, *_: Any, **__: Any) -> None:
    for number, (name, weight) in enumerate(model.state_dict().items()):
        if not torch.is_floating_point(weight):
            continue
        generator = torch.Generator(device=weight.device)
        generator.manual_seed(1234 + number)
        if weight.dim() >= 2:
            bound = GAIN * (3.0 / weight.size(-1)) ** 0.5
            weight.uniform_(-bound, bound, generator=generator)
        elif "weight" in name:
            weight.fill_(1.0)
        else:
            weight.uniform_(-0.5, 0.5, generator=generator)


for module in (loader, weight_utils):
    module.initialize_dummy_weights = fill
DualGemm._select_mode = lambda *_: None
del sgl_kernel.kvcacheio.get_device_accessible_ptr
