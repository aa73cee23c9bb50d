"""V5: the events that vLLM's publisher sends for the tier, byte by byte, and a router's view."""

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import msgspec  # noqa: E402
import zmq  # noqa: E402
from kvrail import _tier  # noqa: E402
from kvrail._vllm_tiers import Tiers, keys_of  # noqa: E402
from vllm.v1.kv_offload import base  # noqa: E402
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager  # noqa: E402

if not hasattr(SecondaryTierManager, "bp_detector"):
    pytest.skip("this vLLM has another way of events", allow_module_level=True)

from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.events import (  # noqa: E402
    OffloadingEventGroupSpec,
    OffloadingEventsTracker,
)

CHUNK, TOKENS, TOPIC = 256 << 10, 16, "kv@pod@model"

Event = dict[str, Any]


class Wire:
    """vLLM's tracker and publisher, and a subscriber without vLLM."""

    def __init__(self, place: str) -> None:
        config = base.OffloadingKVEventsConfig(
            enable_kv_cache_events=True, self_describing_kv_events=True
        )
        self._tracker = OffloadingEventsTracker(config)
        self._publisher = ZmqEventPublisher(0, endpoint=place, topic=TOPIC)
        self._subscriber = zmq.Context.instance().socket(zmq.SUB)
        self._subscriber.connect(place)
        self._subscriber.setsockopt_string(zmq.SUBSCRIBE, TOPIC)
        self._sequence: int | None = None
        while self._sequence is None:
            self._publisher.publish(KVEventBatch(ts=time.time(), events=[]))
            self._receive(100)

    def record(self, keys: list[Any]) -> None:
        """As vLLM's scheduler does when a request's chunks are stored."""
        count = len(keys)
        request = SimpleNamespace(
            block_hashes=[base.get_offload_block_hash(key) for key in keys],
            all_token_ids=list(range(count * TOKENS)),
            lora_request=None,
        )
        group = SimpleNamespace(
            group_idx=0,
            hashes_per_chunk=1,
            tokens_per_chunk=TOKENS,
            tokens_per_block=TOKENS,
            sliding_window_size_in_chunks=None,
            kv_event_group_spec=OffloadingEventGroupSpec("full_attention", None),
        )
        for number, key in enumerate(keys):
            self._tracker.record_store(request, group, number, key)

    def through(self, events: list[Any]) -> list[Event]:
        """The received events of these events of vLLM's manager."""
        told = list(self._tracker.take_events(events))
        if not told:
            return []
        self._publisher.publish(KVEventBatch(ts=time.time(), events=told))
        came = self._receive(5000)
        assert len(came) == len(told)
        return came

    def close(self) -> None:
        self._publisher.shutdown()
        self._subscriber.close(linger=0)

    def _receive(self, patience_ms: int) -> list[Event]:
        if not self._subscriber.poll(patience_ms):
            return []
        topic, sequence, payload = self._subscriber.recv_multipart()
        assert topic.decode() == TOPIC and len(sequence) == 8
        number = int.from_bytes(sequence, "big")
        assert self._sequence is None or number == self._sequence + 1
        self._sequence = number
        _, events, rank = msgspec.msgpack.decode(payload)
        assert rank == 0 and all(isinstance(it, dict) for it in events)
        return events


@pytest.fixture
def wire(tmp_path) -> Iterator[Wire]:
    wire = Wire(f"ipc://{tmp_path}/events")
    yield wire
    wire.close()


def check(event: Event) -> None:
    """Fields with which Dynamo's and llm-d's routers count a block, and those with which they drop
    it."""
    assert event["type"] in ("BlockStored", "BlockRemoved")
    assert event["medium"] == "STORAGE" and event["locality"] == "LOCAL"
    assert event.get("ownership") is None
    assert all(type(it) is int and 0 <= it < 1 << 64 for it in event["block_hashes"])
    if event["type"] == "BlockStored":
        assert event["block_size"] == TOKENS
        assert len(event["token_ids"]) == TOKENS * len(event["block_hashes"])


def test_a_routers_view_equals_the_store(wire, host):
    """More is stored than fits: stored and not removed is what lookups find."""
    tier = {"type": "Tier", "module_path": "kvrail.vllm", "socket": str(host.socket)}
    more = {"locality": "LOCAL", "enable_kv_events": True}
    tiers = Tiers(tier | more, chunks=32, chunk_bytes=CHUNK, events=True)
    known, counts, count = set[int](), {"BlockStored": 0, "BlockRemoved": 0}, 3072

    def follow() -> None:
        for it in wire.through(tiers.events()):
            if it["medium"] == "CPU":
                continue
            check(it)
            counts[it["type"]] += len(it["block_hashes"])
            hashes = set(it["block_hashes"])
            known.update(hashes) if it["type"] == "BlockStored" else known.difference_update(hashes)

    content = numpy.random.default_rng(1).integers(0, 256, (16, CHUNK), dtype=numpy.uint8)
    for first in range(0, count, 16):
        keys = keys_of(range(first, first + 16))
        wire.record(keys)
        tiers.store(keys, content)
        tiers.settle()
        tiers.forget()
        follow()
    for _ in range(8):
        time.sleep(1.1 * _tier.FEED_S)
        follow()
    found = tiers.tier._link.lookup(keys_of(range(count)))
    there = {number for number, it in enumerate(found) if it}
    tiers.close()
    assert known == there and 0 < len(there) < count
    assert counts["BlockStored"] == count and counts["BlockRemoved"] == count - len(there)
