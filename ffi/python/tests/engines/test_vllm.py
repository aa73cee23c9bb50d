"""A chunk goes from vLLM's primary tier to the volume and back, in place."""

import time

import kvrail
import numpy
import pytest

vllm = pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key  # noqa: E402
from vllm.v1.kv_offload.config import (  # noqa: E402
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.factory import OffloadingSpecFactory  # noqa: E402

CHUNKS, CHUNK_BYTES = 16, 1 << 20


def config(sidecar: kvrail.Sidecar) -> OffloadingConfig:
    tier = {"type": "KvrailTier", "module_path": "kvrail_vllm", "socket": str(sidecar.socket)}
    return OffloadingConfig(
        groups=(OffloadingGroupConfig(16, ("layer",), 0),),
        worker_kv_bytes_per_block=CHUNK_BYTES,
        enable_kv_cache_events=False,
        extra_config={
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": CHUNKS * CHUNK_BYTES,
            "secondary_tiers": [tier],
            "tier_poll_interval_s": 0,
        },
        engine_id=f"kvrail-test-{time.monotonic_ns()}",
        model=OffloadingModelConfig("model", "float16"),
        cache=OffloadingCacheConfig(16, 1),
        parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True),
    )


def until(manager, condition):
    """Steps the manager as the scheduler does."""
    from vllm.v1.kv_offload.base import ScheduleEndContext

    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "never"
        manager.on_schedule_end(ScheduleEndContext([], []))
        time.sleep(0.001)


def test_chunks_survive_the_primary_tier(sidecar):
    spec = OffloadingSpecFactory.create_spec(config(sidecar))
    manager = spec.get_manager()
    tier = manager.secondary_tiers[0]
    rows = numpy.asarray(tier._primary_kv_view)
    request = ReqContext("request")
    manager.on_new_request(request)
    keys = [make_offload_key(bytes([number]) * 32, 0) for number in range(8)]

    stored = manager.prepare_store(keys, request)
    places = stored.store_spec.block_ids
    content = numpy.random.default_rng(1).integers(-128, 128, (8, CHUNK_BYTES), dtype=numpy.int8)
    for row, bytes_of in zip(places, content, strict=True):
        rows[int(row)].view(numpy.int8)[:] = bytes_of
    manager.complete_store(keys, request)
    until(manager, lambda: all(tier.lookup(key, request) == LookupResult.HIT for key in keys))
    until(manager, lambda: not tier.has_pending_work())

    manager.reset_cache()
    manager.on_reset_flushed()
    rows.view(numpy.int8)[:] = 0
    until(
        manager,
        lambda: all(manager.lookup(key, request) == LookupResult.HIT for key in keys),
    )
    loaded = manager.prepare_load(keys, request)
    places = loaded.block_ids
    for row, bytes_of in zip(places, content, strict=True):
        assert (rows[int(row)].view(numpy.int8) == bytes_of).all()
    manager.complete_load(keys, request)
    del rows
    manager.shutdown()


def test_a_dead_sidecar_is_a_miss(sidecar):
    spec = OffloadingSpecFactory.create_spec(config(sidecar))
    manager = spec.get_manager()
    tier = manager.secondary_tiers[0]
    request = ReqContext("request")
    manager.on_new_request(request)
    key = make_offload_key(b"x" * 32, 0)
    sidecar.kill()
    manager.prepare_store([key], request)
    manager.complete_store([key], request)
    until(manager, lambda: not tier.has_pending_work())
    assert tier.lookup(key, request) == LookupResult.MISS
    manager.shutdown()
