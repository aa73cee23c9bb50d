"""FlexKV's own worker for Mooncake's store, without CUDA: FlexKV's compiled part is stood in for,
and memory is not pinned. Imported by the worker's process too."""

import sys
from types import ModuleType
from typing import Any

import torch


class _Compiled(ModuleType):
    """`flexkv.c_ext`: the worker of a store takes nothing from it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


sys.modules["flexkv.c_ext"] = _Compiled("flexkv.c_ext")

from flexkv.transfer.worker import MooncakeStoreTransferWorker  # noqa: E402


class Worker(MooncakeStoreTransferWorker):
    """FlexKV's, except for CUDA's calls."""

    def _register_host_tensor(self, tensor: torch.Tensor, label: str = "") -> None: ...

    def _get_layer_ptrs(self, layer_blocks: Any) -> torch.Tensor:
        return torch.zeros(0, dtype=torch.int64)
