"""Weights that let the output depend on the KV cache: the same for a number, in every engine."""

import torch

GAIN = 1.5
"""Standard deviation of a layer's output for an input of 1: below 1 the KV cache hardly counts."""


@torch.no_grad()
def draw(weight: torch.Tensor, name: str, number: int) -> None:
    """Fills a weight, with a scale that keeps the signal."""
    generator = torch.Generator(device=weight.device)
    generator.manual_seed(1234 + number)
    if name.endswith("_scale"):
        weight.fill_(1.0)
    elif weight.dim() >= 2:
        bound = GAIN * (3.0 / weight.size(-1)) ** 0.5
        weight.uniform_(-bound, bound, generator=generator)
    elif "weight" in name:
        weight.fill_(1.0)
    else:
        weight.uniform_(-0.5, 0.5, generator=generator)
