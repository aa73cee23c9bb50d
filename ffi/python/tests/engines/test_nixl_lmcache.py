"""N4: LMCache's own adapter for object stores, through the plug-in's other name and without any
Python of kvrail's. It gives the name of a slot that is free to the next object."""

import mmap
import os
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("lmcache", reason="LMCache is not installed")
pytest.importorskip("nixl", reason="NIXL is not installed")

import numpy  # noqa: E402
import torch  # noqa: E402
from host import Host  # noqa: E402
from lmcache.v1.distributed.internal_api import L1MemoryDesc  # noqa: E402
from lmcache.v1.distributed.l2_adapters.nixl_store_l2_adapter import (  # noqa: E402
    NixlStoreL2Adapter,
    NixlStoreL2AdapterConfig,
)
from lmcache.v1.memory_management import (  # noqa: E402
    MemoryFormat,
    MemoryObjMetadata,
    TensorMemoryObj,
)
from test_lmcache import equal, keys_of, load, store  # noqa: E402

PAGE, PAGES, OBJECTS = 4096, 4, 8
"""Bytes of a slot, slots of an object, and objects that there are slots for."""

NBYTES = PAGES * PAGE


@pytest.fixture
def memory() -> Iterator[numpy.ndarray]:
    """An L1 with room for all objects, and for all of them once more."""
    file = os.memfd_create("l1")
    os.posix_fallocate(file, 0, 2 * OBJECTS * NBYTES)
    mapped = mmap.mmap(file, 2 * OBJECTS * NBYTES)
    os.close(file)
    yield numpy.frombuffer(mapped, numpy.uint8)


def adapter_of(host: Host, memory: numpy.ndarray) -> NixlStoreL2Adapter:
    where = {"bucket": "lmcache", "endpoint_override": str(host.socket)}
    return NixlStoreL2Adapter(
        NixlStoreL2AdapterConfig("OBJ", where, PAGES * OBJECTS),
        L1MemoryDesc(memory.ctypes.data, memory.nbytes, PAGE),
    )


def objects(memory: numpy.ndarray, first: int, seed: int | None) -> list[Any]:
    """Objects in places of the L1, with random bytes, or empty."""
    made = []
    for at in range(first, first + OBJECTS):
        raw = torch.from_numpy(memory[at * NBYTES :][:NBYTES])
        raw.zero_()
        if seed is not None:
            random = numpy.random.default_rng([seed, at])
            raw.copy_(torch.from_numpy(random.integers(0, 256, NBYTES, dtype=numpy.uint8)))
        shape = torch.Size([NBYTES])
        about = MemoryObjMetadata(
            shape, torch.uint8, at * NBYTES, NBYTES, fmt=MemoryFormat.KV_2LTD, ref_count=1
        )
        made.append(TensorMemoryObj(raw, about, None))
    return made


def test_the_next_object_of_a_slot_comes_back_and_not_the_first(host, memory):
    adapter = adapter_of(host, memory)
    for turn in range(4):
        keys = keys_of(range(OBJECTS * turn, OBJECTS * turn + OBJECTS))
        out = objects(memory, 0, turn)
        assert store(adapter, keys, out).is_successful()
        back = objects(memory, OBJECTS, None)
        assert load(adapter, keys, back) == [True] * OBJECTS and equal(out, back)
        adapter.delete(keys)
    adapter.close()
