"""vLLM's own tiering manager on the CPU, stepped as its scheduler does: for `kvrail engines try`,
for tests and for measurements. There is no model and no GPU; all else is vLLM's."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadKey,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

Array = Any
PATIENCE_S = 60.0

STEP_S = 0.002
"""Between two steps of the scheduler: models take longer. With 0.2 ms, looking up a request's
chunks in each step took more CPU time than loading them."""


def config(tier: dict[str, Any], chunks: int, chunk_bytes: int, **more: Any) -> OffloadingConfig:
    """A model of one layer with chunks of this size, with one tier behind the CPU's."""
    return OffloadingConfig(
        groups=(OffloadingGroupConfig(16, ("layer",), 0),),
        worker_kv_bytes_per_block=chunk_bytes,
        enable_kv_cache_events=more.get("events", False),
        extra_config={
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": chunks * chunk_bytes,
            "secondary_tiers": [tier],
            "self_describing_kv_events": True,
        },
        engine_id=f"kvrail-{os.getpid()}-{time.monotonic_ns()}",
        model=OffloadingModelConfig(more.get("model", "model"), more.get("dtype", "bfloat16")),
        cache=OffloadingCacheConfig(16, 1),
        parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True),
    )


def keys_of(numbers: Iterable[int]) -> list[OffloadKey]:
    """Keys as vLLM makes them: a hash, and the number of a group."""
    return [make_offload_key(number.to_bytes(32, "big"), 0) for number in numbers]


class Tiers:
    """A primary tier of this number of chunks, and one tier behind it."""

    def __init__(
        self, tier: dict[str, Any], *, chunks: int, chunk_bytes: int, **more: Any
    ) -> None:
        spec = OffloadingSpecFactory.create_spec(config(tier, chunks, chunk_bytes, **more))
        self.manager: Any = spec.get_manager()
        self.tier = self.manager.secondary_tiers[0]
        self.rows: Array = numpy.asarray(self.tier._primary_kv_view).view(numpy.uint8)
        self._requests = 0

    def request(self, keys: Sequence[OffloadKey] = ()) -> ReqContext:
        """A request whose prompt has these chunks."""
        self._requests += 1
        request = ReqContext(f"request {self._requests}")
        for number, key in enumerate(keys):
            if hasattr(request, "set_offload_key_position"):
                request.set_offload_key_position(key, 16 * (number + 1))
        with self._held():
            self.manager.on_new_request(request)
        return request

    def step(self) -> None:
        """The end of a step of the scheduler."""
        with self._held():
            self.manager.on_schedule_end(ScheduleEndContext([], []))

    def until(self, done: Callable[[], bool]) -> None:
        """Steps until something holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            if time.monotonic() > deadline:
                raise TimeoutError("vLLM's tiering manager got stuck")
            self.step()
            time.sleep(STEP_S)

    def store(
        self,
        keys: Sequence[OffloadKey],
        contents: Sequence[Array],
        prompt: Sequence[OffloadKey] | None = None,
    ) -> None:
        """Chunks come from the GPU: they are written to the primary tier, and handed down. They are
        the prompt, or some of it."""
        request = self.request(keys if prompt is None else prompt)
        with self._held():
            stored = self.manager.prepare_store(keys, request)
            wanted = dict(zip(keys, contents, strict=True))
            rows = zip(stored.keys_to_store, stored.store_spec.block_ids, strict=True)
            for key, row in rows:
                self.rows[int(row)] = wanted[key]
            self.manager.complete_store(stored.keys_to_store, request)
            self.manager.on_request_finished(request)

    def settle(self) -> None:
        """Until no transfer is in flight."""
        self.until(lambda: not self.manager.has_pending_work())

    def forget(self) -> None:
        """Empties the primary tier, as vLLM does when weights change, and overwrites it."""
        with self._held():
            self.manager.reset_cache()
            getattr(self.manager, "on_reset_flushed", lambda: None)()
        self.rows[:] = 0xEE

    def look(self, keys: Sequence[OffloadKey], request: ReqContext) -> list[LookupResult]:
        """Looks chunks up once."""
        with self._held():
            return [self.manager.lookup(key, request) for key in keys]

    def find(self, keys: Sequence[OffloadKey]) -> tuple[ReqContext, list[OffloadKey], int]:
        """Looks chunks up, step by step, until each is in the primary tier or a miss; the request,
        those that are there, and the steps that were put off."""
        request, waits = self.request(keys), 0
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self.look(keys, request)
            if not {LookupResult.RETRY, LookupResult.HIT_PENDING}.intersection(found):
                there = zip(keys, found, strict=True)
                return request, [key for key, it in there if it is LookupResult.HIT], waits
            if time.monotonic() > deadline:
                raise TimeoutError("vLLM's tiering manager got stuck")
            self.step()
            waits += 1
            time.sleep(STEP_S)

    def load(self, keys: Sequence[OffloadKey]) -> dict[OffloadKey, Array]:
        """The bytes of those chunks that are found, from the primary tier's rows."""
        request, hits, _ = self.find(keys)
        with self._held():
            loaded = self.manager.prepare_load(hits, request) if hits else None
            places = loaded.block_ids if loaded is not None else ()
            content = {
                key: self.rows[int(row)].copy() for key, row in zip(hits, places, strict=True)
            }
            self.manager.complete_load(hits, request)
            self.manager.on_request_finished(request)
        return content

    def same(self, keys: Sequence[OffloadKey], contents: Sequence[Array]) -> bool:
        """Whether the rows of these chunks, which are all in the primary tier, have these bytes."""
        request = self.request()
        with self._held():
            places = self.manager.prepare_load(keys, request).block_ids
            equal = all(
                numpy.array_equal(self.rows[int(row)], wanted)
                for row, wanted in zip(places, contents, strict=True)
            )
            self.manager.complete_load(keys, request)
        return equal

    def events(self) -> list[Any]:
        """Events that the tiers have to announce."""
        with self._held():
            return list(self.manager.take_events())

    def close(self) -> None:
        del self.rows
        self.manager.shutdown()

    def _held(self) -> Any:
        return getattr(self.manager, "lock", nullcontext())
