"""SGLang's own host pools, back ends and keys on the CPU: for `kvrail engines try`, for tests and
for measurements. There is no model and no GPU; all else is SGLang's."""

from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.device_pool_info import (
    KVBufferLayout,
    KVBuffers,
    MambaStateBufferInfo,
    MHABufferInfo,
    MLABufferInfo,
)
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.pool_host import HostKVCache
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

CPU = torch.device("cpu")
TOKENS = 16
"""Tokens of a page."""

MODULE = {"backend_name": "kvrail", "module_path": "kvrail.sglang", "class_name": "Storage"}
EXTRA: dict[str, Any] = MODULE | {"interface_v1": 1, "allocator": "shm"}


def config(extra: dict[str, Any], **more: Any) -> HiCacheStorageConfig:
    """SGLang's configuration of a back end."""
    known: dict[str, Any] = {
        **{"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1},
        **{"attn_cp_rank": 0, "attn_cp_size": 1, "is_mla_model": False},
        **{"enable_storage_metrics": False, "is_page_first_layout": True, "model_name": "model"},
    }
    return HiCacheStorageConfig(**known | more, extra_config=extra)


def backend(name: str, extra: dict[str, Any], pool: Any, **more: Any) -> Any:
    """A back end as SGLang's controller makes it: "file", "nixl", ..., "dynamic" for kvrail."""
    it = StorageBackendFactory.create_backend(name, config(extra, **more), pool)
    it.register_mem_pool_host(pool)
    return it


def mha(
    pages: int,
    page_bytes: int,
    *,
    layout: str = "page_first",
    allocator: str = "shm",
    dtype: torch.dtype = torch.bfloat16,
) -> HostKVCache:
    """A host pool of this number of pages, each of K and V of this size together."""
    layers, heads = 4, 2
    size = page_bytes // (2 * layers * TOKENS * heads * dtype.itemsize)
    kept = tuple(torch.zeros(TOKENS, heads, size, dtype=dtype) for _ in range(layers))
    addresses = torch.tensor([it.data_ptr() for it in kept], dtype=torch.uint64)
    info = MHABufferInfo(
        buffers=KVBuffers(
            k=kept, v=kept, k_data_ptrs=addresses, v_data_ptrs=addresses, layout=KVBufferLayout.NHD
        ),
        page_size=TOKENS,
        head_num=heads,
        head_dim=size,
        v_head_dim=size,
        dtype=dtype,
        device=CPU,
    )
    return _made(MHATokenToKVPoolHost, info, pages, layers, layout, allocator)


def mla(pages: int, page_bytes: int, *, layout: str = "page_first") -> HostKVCache:
    """A host pool of this number of pages, which all ranks have alike."""
    layers, dtype = 4, torch.bfloat16
    size = page_bytes // (layers * TOKENS * dtype.itemsize)
    kept = tuple(torch.zeros(TOKENS, 1, size, dtype=dtype) for _ in range(layers))
    info = MLABufferInfo(
        buffers=kept,
        data_ptrs=torch.tensor([it.data_ptr() for it in kept], dtype=torch.uint64),
        layer_indices=tuple(range(layers)),
        device_layer_num=layers,
        page_size=TOKENS,
        kv_lora_rank=size - 16,
        qk_rope_head_dim=16,
        kv_cache_dim=size,
        dtype=dtype,
        device=CPU,
    )
    more = {"target_layer_num": layers}
    return _made(MLATokenToKVPoolHost, info, pages, layers, layout, "shm", **more)


def mamba(states: int, state_bytes: int) -> HostKVCache:
    """A host pool of this number of states, which have two buffers of their own."""
    layers, size = 2, state_bytes // (2 * 2 * 4)
    info = MambaStateBufferInfo(
        temporal=torch.zeros(layers, 2, size), conv=(torch.zeros(layers, 2, size),)
    )
    with host_memory_budget_scope(1 << 40):
        return MambaPoolHost(
            info,
            states / 2,
            0,
            device_capacity=2,
            pin_memory=False,
            allocator_type="shm",
            layout="page_first",
        )


def _made(
    kind: Any, info: Any, pages: int, layers: int, layout: str, allocator: str, **more: Any
) -> HostKVCache:
    with host_memory_budget_scope(1 << 40):
        return kind(
            info,
            1.0,
            0,
            TOKENS,
            layout,
            pin_memory=False,
            allocator_type=allocator,
            device_capacity_tokens=TOKENS,
            start_layer=0,
            end_layer=layers,
            host_token_capacity=pages * TOKENS,
            **more,
        )


def keys_of(numbers: Sequence[int]) -> list[str]:
    """Hashes of pages as SGLang has them."""
    return [f"{number:064x}" for number in numbers]


def places(first: int, count: int, tokens: int = TOKENS) -> torch.Tensor:
    """Tokens of this number of pages, from this one on."""
    return torch.arange(first * tokens, (first + count) * tokens)


def content(pool: Any, indices: torch.Tensor) -> list[torch.Tensor]:
    """Copies of the pages' bytes."""
    step = pool.page_size
    return [pool.get_data_page(int(it), flat=True).clone() for it in indices[::step]]


def same(pool: Any, indices: torch.Tensor, wanted: Sequence[torch.Tensor]) -> bool:
    """Whether pages have these bytes."""
    pairs = zip(content(pool, indices), wanted, strict=True)
    return all(torch.equal(one.view(torch.uint8), it.view(torch.uint8)) for one, it in pairs)


def fill(pool: Any, indices: torch.Tensor, seed: int | None) -> None:
    """Random bytes for pages, or the same ones."""
    random = torch.Generator().manual_seed(seed or 0)
    for at in indices[:: pool.page_size]:
        page = pool.get_data_page(int(at), flat=True)
        raw = torch.full((page.nbytes,), 0xEE, dtype=torch.uint8)
        if seed is not None:
            raw = torch.randint(0, 256, raw.shape, dtype=torch.uint8, generator=random)
        pool.set_from_flat_data_page(int(at), raw.view(page.dtype))
