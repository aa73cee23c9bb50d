"""kvrail as a secondary tier of vLLM's offloading connector: vLLM 0.30 and later.

    --kv-transfer-config '{"kv_connector": "KvrailOffloadingConnector", "kv_role": "kv_both",
      "kv_connector_module_path": "kvrail.vllm_connector", "kv_load_failure_policy": "recompute",
      "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": ...,
        "secondary_tiers": [{"type": "kvrail", "socket": "/run/kvrail/kvrail.sock",
                             "store": "kv"}]}}'

The primary tier is one file below /dev/shm, which cannot be sealed: with
`memory.unsealed_imports = "accept"` in the sidecar's configuration its drives read and write the
rows in place, else each row is copied once.
"""

import inspect
import logging
import sys
import time
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import compress
from typing import Any, ClassVar

from kvrail.engines import require

require("vllm")

import numpy
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from kvrail import _identity, _vllm_stats
from kvrail._chains import GROUP_BYTES, Prompt
from kvrail._lane import Blocks, Ended, Lane
from kvrail._load_choice import LoadChoice, Prefer, Speed
from kvrail._tier import Link
from kvrail._vllm_hints import Hinted, Hints
from kvrail._vllm_loads import Failed, Loads
from kvrail._vllm_marks import Marks
from kvrail._vllm_needs import Needs
from kvrail._vllm_pages import LosesPatience
from kvrail._vllm_turns import Turns

TIER = "kvrail"
"""What the tier is called in vLLM's configuration."""

HOLD_S = 30.0
"""Time for which found chunks are not evicted: until vLLM has begun to load them."""

STORES_BYTES = 64 << 20
"""Bytes of stores that are begun and have not ended: the rest waits, and loads go first."""

DRAIN_S = 10.0
"""Longest wait of a shutdown for requests in flight."""

log = logging.getLogger("kvrail")


def __getattr__(name: str) -> Any:
    """`KvrailOffloadingSpec`, at its first use: not every release has its base class."""
    if name != "KvrailOffloadingSpec":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvrail._vllm_spec import KvrailOffloadingSpec

    return KvrailOffloadingSpec


def register() -> None:
    """The entry point of `vllm.general_plugins`: makes the tier known by its short name."""
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

    if TIER not in SecondaryTierFactory._registry:
        SecondaryTierFactory.register_tier(TIER, __name__, "Tier")


class Tier(SecondaryTierManager, LosesPatience):
    """Chunks of the primary tier as blocks of a namespace."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        *,
        socket: str,
        store: str = "kv",
        namespace: str | None = None,
        identity: dict[str, Any] | None = None,
        depth: int = 128,
        enable_kv_events: bool = False,
        locality: str | None = None,
        poll_between_steps: bool = True,
        prefer: Prefer = "latency",
        prefill_tokens_per_second: float | None = None,
        backpressure_detector: Any = None,
    ) -> None:
        """
        :param socket: where the sidecar listens.
        :param store: the name of its store.
        :param namespace: engines with the same name share chunks; by default all of the identity.
        :param identity: what makes bytes incompatible beyond vLLM's own configuration, such as
            the number of an update of weights in place.
        :param depth: blocks in flight.
        :param enable_kv_events: announce stored and evicted blocks to routers.
        :param locality: "LOCAL" or "REMOTE", for those events.
        :param poll_between_steps: let vLLM's poll thread verify what has come, between steps.
        :param prefer: "latency" computes chunks whose load would take longer, "throughput" loads
            all, because it saves time of the GPU.
        :param prefill_tokens_per_second: the engine's speed until kvrail's connector has measured
            it.
        """
        # vLLM 0.30 has no back-pressure.
        known = inspect.signature(SecondaryTierManager.__init__).parameters
        detector = {"backpressure_detector": backpressure_detector}
        more = detector if "backpressure_detector" in known else {}
        super().__init__(offloading_spec, primary_kv_view, tier_type, **more)
        self.locality = Locality(locality) if locality is not None else None
        self.tolerates_off_thread_polling = poll_between_steps
        self._rows = numpy.asarray(primary_kv_view)
        self._row_bytes = int(self._rows.strides[0])
        config, named = offloading_spec.config, identity or {}
        engine = _identity.vllm_engine(config, named)
        self._link = Link(
            "vllm",
            socket=socket,
            store=store,
            namespace=namespace,
            identity=_identity.vllm_rows(config, engine, self._row_bytes, named),
        )
        speed = Speed() if engine is None else engine.speed
        self._loads = Loads(LoadChoice(speed, prefer, prefill_tokens_per_second))
        self._stats = _vllm_stats.Stats(self._loads)
        self._lane: Lane[TransferJob] = Lane(self._link, depth)
        self._stores: deque[tuple[TransferJob, Blocks]] = deque()
        self._answers: dict[OffloadKey, bool] = {}
        self._turns = Turns(len(self._rows))
        windows = {it.group_id: _window(it) for it in config.groups}
        self._needs = Needs(len(self._rows), windows)
        self._late: set[bytes] = set()
        self._hinted = Hinted()
        self._marks = Marks(self._hinted, [self._lane])
        wanted = offloading_spec.kv_events_config.enable_kv_cache_events
        if enable_kv_events and not wanted:
            log.warning("kvrail announces no events: they are off in vLLM's kv_events_config")
        self._events: list[OffloadingEvent] | None = [] if enable_kv_events and wanted else None

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        failed = req_context.get_state(Failed)
        if failed is not None and key in failed.keys:
            return LookupResult.MISS
        request = req_context.req_id
        if self._turns.waits(request):
            self._loads.waits(req_context)
            return self._later(key, request)
        if key not in self._answers:
            asked = self._loads.asked(key, req_context, self._answers)
            found = self._link.lookup(asked, hold=HOLD_S)
            answers = self._loads.answers(req_context, asked, [found])
            self._answers.update(zip(map(OffloadKey, asked), answers, strict=True))
            self._turns.ask(request, self._needs.rows(req_context, asked, answers))
        if not self._answers[key] or not self._needs.fits(req_context, key):
            return LookupResult.MISS
        if not self._turns.has(request):
            # All its chunks were looked up for another one, or it lacks the first of them.
            self._turns.ask(request, 1)
        return LookupResult.HIT if self._turns.has(request) else self._later(key, request)

    def _later(self, key: OffloadKey, request: str) -> LookupResult:
        """For a request that waits: one chunk to ask for again has vLLM ask for all again, and at
        a chunk that is missing it stops, while others cost it 3 us each in every step. Where a
        group of layers has a window it does not stop."""
        is_first = self._turns.is_first(request, key[-GROUP_BYTES:], key)
        stops = not is_first and not self._needs.has_window(key)
        return LookupResult.MISS if stops else LookupResult.RETRY

    def submit_load(self, job_metadata: TransferJob) -> None:
        job = job_metadata
        self._marks.used(job.keys)
        if job.is_promotion:
            self._loads.begin(job.req_context, len(job.keys), job.job_id)
            self._turns.begin(job.req_context.req_id)
        self._lane.begin("get", job, self._blocks(job))

    def submit_store(self, job_metadata: TransferJob) -> None:
        # Begun by the next poll: to compute checks here would keep the scheduler.
        self._stores.append((job_metadata, self._blocks(job_metadata)))

    def get_finished_jobs(self) -> Iterable[JobResult]:
        results = [self._result(end) for end in self._lane.poll()]
        late = self._lane.late(lambda job: self._loads.expects(job.job_id))
        late = [job for job in late if job.is_promotion]
        self._late = {bytes(key) for job in late for key in job.keys}
        for job in late:
            self._turns.give_up(job.req_context.req_id)
        self._begin_stores(STORES_BYTES)
        self._marks.send()
        return results

    def is_late(self, key: bytes) -> bool:
        return bytes(key) in self._late

    def has_pending_work(self) -> bool:
        return bool(self._stores or self._lane.pending) or self._marks.pending

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self._marks.touch(keys)  # the next poll sends them

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        self._hinted.begin(req_context)
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._marks.end(req_context)
        self._turns.leave(req_context.req_id)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._answers.clear()
        self._loads.step()
        self._turns.step(context.new_req_ids)

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        return _vllm_stats.definitions()

    def get_stats(self) -> Any:
        return self._stats.take()

    def take_events(self) -> Iterable[OffloadingEvent]:
        if self._events is None:
            return ()
        self._announce([OffloadKey(it.metadata) for it in self._link.gone()], removed=True)
        events, self._events = self._events, []
        return events

    def status(self) -> dict[str, Any]:
        """Whether the tier is attached, whether rows are copied, what was declined to be loaded,
        and what became of hints."""
        return self._link.status() | self._loads.status() | self._hinted.status()

    def drain_jobs(self) -> None:
        # Memory must not be given back while a drive may touch it: this waits without a limit.
        self._drain(float("inf"))

    def shutdown(self) -> None:
        self._drain(DRAIN_S)
        self._link.close()
        del self._rows

    def _drain(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._begin_stores(sys.maxsize)
        while self._lane.busy and time.monotonic() < deadline:
            self._lane.wait(0.1)

    def _begin_stores(self, most_bytes: int) -> None:
        while self._stores and self._lane.storing_bytes < most_bytes:
            job, blocks = self._stores.popleft()
            # Looked up now: chunks of the prompt that were stored meanwhile count.
            places = Prompt.of(job.req_context).places(blocks.keys, self._link.chain)
            worths = Hints.of(job.req_context).worths(job.req_context, blocks.keys)
            self._lane.begin("put", job, replace(blocks, places=places, worths=worths))

    def _blocks(self, job: TransferJob) -> Blocks:
        first, keys = self._rows.ctypes.data, [bytes(key) for key in job.keys]
        addresses = [first + int(row) * self._row_bytes for row in job.chunk_ids]
        return Blocks(keys, addresses, [self._row_bytes] * len(keys), metadata=keys)

    def _result(self, end: Ended[TransferJob]) -> JobResult:
        job, good = end.tag, list(compress(end.tag.keys, end.ok))
        told: dict[str, Any] = {"job_id": job.job_id, "transfer_time": end.seconds}
        if job.is_promotion:
            if missed := {key for key, ok in zip(job.keys, end.ok, strict=True) if not ok}:
                Failed.of(job.req_context).keys.update(missed)
            self._loads.end(job.job_id, whole=not missed, seconds=end.seconds)
            self._turns.end(job.req_context.req_id)
            told |= {"success": not missed, "successful_keys": good}
        else:
            told["success"] = end.went_well
            self._announce(good, removed=False)
        if "transfer_bytes" in JobResult.__dataclass_fields__:
            moved = len(good) if job.is_promotion else end.words.count("OK")
            told["transfer_bytes"] = moved * self._row_bytes
        return JobResult(**told)

    def _announce(self, keys: list[OffloadKey], *, removed: bool) -> None:
        if self._events is None or not keys:
            return
        event = OffloadingEvent(keys, self.medium, removed, self.locality)
        # Without this vLLM drops the data that it needs to announce a removal.
        event.removal_expected = not removed
        self._events.append(event)


def _window(group: Any) -> int | None:
    """Chunks that one request has of a group of layers with a window, and the one at which the
    load ends; vLLM 0.30 does not pass them."""
    window = getattr(group, "sliding_window_size_in_chunks", None)
    return None if window is None else window + 1
