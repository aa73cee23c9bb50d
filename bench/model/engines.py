"""The engine of an arm."""

import argparse
from typing import Any

from arms import LMCACHE, SGLANG
from asked import Model, Place


def engine_of(options: argparse.Namespace) -> Any:
    """Loads that engine alone; `options` are those of arm.py."""
    words = (options.arm, options.socket, options.files, options.chunk_tokens)
    place = Place(*words, options.cpu_gib << 30, options.disk_gib << 30)
    model = Model(
        options.shape,
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

    if options.arm in LMCACHE:
        from lmcache_server import UnderLMCache

        place = UnderLMCache(*words, options.cpu_gib << 30, options.disk_gib << 30)
        place.start(options.shape)
    return Engine(place, model)
