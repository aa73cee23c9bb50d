"""The engine of an arm."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from arms import LMCACHE, SGLANG
from asked import Model, Place
from lmcache_server import UnderLMCache


def engine_of(options: SimpleNamespace) -> Any:
    """Loads that engine alone; `options` are those that arm.py gets."""
    place = (UnderLMCache if options.arm in LMCACHE else Place)(
        options.arm,
        options.socket,
        options.files,
        options.chunk_tokens,
        options.cpu_gib << 30,
        options.disk_gib << 30,
    )
    model = Model(
        Path(options.shape),
        options.longest,
        options.gpu_gib << 30,
        options.ranks,
        options.kv_cache_dtype,
        options.weights,
        options.served,
    )
    if options.arm in SGLANG:
        from sglang_engine import SGLang

        return SGLang(place, model)
    from engine import Engine

    if isinstance(place, UnderLMCache):
        place.start(model.shape)
    return Engine(place, model)
