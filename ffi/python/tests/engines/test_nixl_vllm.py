"""N3: vLLM's own tier for object stores keeps its chunks in kvrail, through the plug-in's other
name and without any Python of kvrail's."""

import ctypes
import os
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
pytest.importorskip("nixl", reason="NIXL is not installed")

import numpy  # noqa: E402
from kvrail._vllm_tiers import Tiers, keys_of  # noqa: E402

CHUNK = 1 << 20


def test_chunks_of_the_tier_obj_come_back_without_a_copy(host):
    plugin = ctypes.CDLL(str(Path(os.environ["NIXL_PLUGIN_DIR"]) / "libplugin_OBJ.so"))
    plugin.kvrail_nixl_copied_bytes.restype = ctypes.c_uint64
    before = plugin.kvrail_nixl_copied_bytes()  # other tests copy, in the same library
    where = {"bucket": "models", "endpoint_override": str(host.socket)}
    tiers = Tiers({"type": "obj", "store_config": where}, chunks=32, chunk_bytes=CHUNK)
    keys = keys_of(range(16))
    content = numpy.random.default_rng(1).integers(0, 256, (16, CHUNK), dtype=numpy.uint8)
    tiers.store(keys, content)
    tiers.settle()
    tiers.forget()
    came = tiers.load([*keys, *keys_of([99])])
    assert len(came) == 16
    assert all((came[key] == wanted).all() for key, wanted in zip(keys, content, strict=True))
    assert plugin.kvrail_nixl_copied_bytes() == before
    tiers.close()
