"""vLLM's offloading without a CPU tier: blocks go between the GPU's pages and the store.

The scheduler's half only looks up: the store has the answer. The worker's half moves whole
chunks by key through `kvrail.paged`, which checks them where they are. A thread goes on with them
while the engine computes a step.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    OffloadingSpec,
    OffloadingWorker,
    OffloadKey,
    OffloadPolicy,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    TransferResult,
)

import kvrail
from kvrail import _forks, _identity, _vllm_stats, gpu, paged
from kvrail._chains import Places, Prompt
from kvrail._lane import STALL_S, Lane, Session
from kvrail._load_choice import LoadChoice, Speed
from kvrail._log import Warnings
from kvrail._pump import Pump
from kvrail._tier import Link
from kvrail._types import ChainWord, Worth
from kvrail._vllm_hints import Hinted, Hints
from kvrail._vllm_loads import Failed, Loads
from kvrail._vllm_marks import Marks
from kvrail._vllm_pages import ExpectsLoads, GivesUpLoads, ReportsPages

HOLD_S = 30.0
"""Time for which found blocks are not evicted: until their load has ended."""

TOUCH_DEPTH = 16
"""Requests of touches that are in flight."""

DRAIN_S = 10.0
"""Longest wait of a shutdown for requests in flight."""

STAGED, STAGING_BYTES_MAX = 16, 512 << 20
"""Chunks that pinned memory has room for, and the most bytes of it, where none are given."""



@dataclass
class Keys(LoadStoreSpec):
    """Where chunks are: in the store, by key."""

    keys: list[OffloadKey]
    places: Places | None = None
    """Those of chunks that are stored."""
    worths: Sequence[Worth] | None = None
    """The worth of each chunk that is stored; none where all are worth as much as others."""


class KvrailOffloadingSpec(OffloadingSpec):
    """`spec_name`; the rest of `kv_connector_extra_config` is `socket`, `store`, `namespace`,
    `identity`, `prefer`, `prefill_tokens_per_second` (as of :class:`kvrail.vllm.Tier`),
    `staging_bytes` (pinned memory of each worker and group) and `locality`."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if getattr(config, "canonical_layout", False):
            raise ValueError(
                "KvrailOffloadingSpec stores pages as they lie on the GPU; leave canonical_layout "
                "away, or use TieringOffloadingSpec with the tier of kvrail"
            )
        # Where all workers have the same bytes, one stores them and all load them.
        self.replicated_layout = getattr(config, "replicated_layout", False)
        self._named = dict(config.extra_config.get("identity", {}))
        self._engine = _identity.vllm_engine(config, self._named)
        self._manager: _Manager | None = None
        self._worker: _Worker | None = None

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        return super().build_metric_definitions(extra_config) | _vllm_stats.definitions()

    def get_manager(self) -> OffloadingManager:
        if self._manager is None:
            ranks = 1 if self.replicated_layout else self.config.parallel.world_size
            links = [self._link(rank) for rank in range(ranks)]
            loads = Loads(self._choice())
            self._manager = _Manager(links, loads, self._locality(), self._has_events())
        return self._manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._worker is None:
            link = self._link(0 if self.replicated_layout else self.config.parallel.rank)
            self._worker = _Worker(
                link,
                _pages(kv_caches),
                self.blocks_per_chunk,
                self.extra_config.get("staging_bytes"),
            )
        return self._worker

    def _link(self, rank: int) -> Link:
        extra, config = self.extra_config, self.config
        if "socket" not in extra:
            raise ValueError("kv_connector_extra_config needs socket: where the sidecar listens")
        everywhere = None if self.replicated_layout else rank
        return Link(
            "vllm",
            socket=extra["socket"],
            store=extra.get("store", "kv"),
            identity=_identity.vllm_pages(config, self._engine, everywhere, self._named),
            namespace=extra.get("namespace"),
        )

    def _choice(self) -> LoadChoice:
        extra = self.extra_config
        speed = Speed() if self._engine is None else self._engine.speed
        return LoadChoice(
            speed, extra.get("prefer", "latency"), extra.get("prefill_tokens_per_second")
        )

    def _locality(self) -> Locality | None:
        locality = self.extra_config.get("locality")
        return None if locality is None else Locality(locality)

    def _has_events(self) -> bool:
        return bool(self.kv_events_config.enable_kv_cache_events)


class _Expected:
    """State of a request whose blocks are on their way into the sidecar's memory tier."""


class _Manager(GivesUpLoads, ExpectsLoads, OffloadingManager):
    """The scheduler's half. There is a block if all workers' stores have it."""

    def __init__(
        self, links: list[Link], loads: Loads, locality: Locality | None, events: bool
    ) -> None:
        super().__init__()
        self._links, self._loads, self._locality = links, loads, locality
        self._stats = _vllm_stats.Stats(loads)
        self._answers: dict[OffloadKey, bool] = {}
        self._hinted = Hinted()
        self._marks = Marks(self._hinted, [Lane[None](link, TOUCH_DEPTH) for link in links])
        self._events: list[OffloadingEvent] | None = [] if events else None
        # What this step has found for requests, by request: they load it, or wait for pages.
        self._found_now: dict[str, tuple[ReqContext, list[bytes]]] = {}

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        failed = req_context.get_state(Failed)
        if failed is not None and key in failed.keys:
            return LookupResult.MISS
        if key not in self._answers:
            asked = self._loads.asked(key, req_context, self._answers)
            answers = self._loads.answers(req_context, asked, self._found(asked, HOLD_S))
            self._answers.update(zip(map(OffloadKey, asked), answers, strict=True))
            _, found = self._found_now.setdefault(req_context.req_id, (req_context, []))
            found += _from(req_context, asked, answers)
        return LookupResult.HIT if self._answers[key] else LookupResult.MISS

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        listed = list(keys)
        self._found_now.pop(req_context.req_id, None)
        self._there(listed, HOLD_S)  # held again: the lookup may be some steps ago
        self._marks.used(listed)
        self._loads.begin(req_context, len(listed))
        return Keys(listed)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        is_whole = req_context.req_id not in self.failing
        self.failing.discard(req_context.req_id)
        self._loads.end(req_context.req_id, whole=is_whole)
        if not is_whole:
            # Else a request finds and fails to load them again while its worker has no session.
            Failed.of(req_context).keys.update(keys)

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        listed = list(keys)
        there = self._there(listed, 0.0)
        failed = req_context.get_state(Failed)
        # What was wrong is found until the sidecar has read it; the worker knows what it was.
        computed: Collection[bytes] = () if failed is None else failed.keys
        is_new = [
            not found or key in computed for key, found in zip(listed, there, strict=True)
        ]
        new = [key for key, its in zip(listed, is_new, strict=True) if its]
        # vLLM 0.33 tells no manager which chunks it found in the GPU's cache: it offers them.
        self.touch([key for key, its in zip(listed, is_new, strict=True) if not its], req_context)
        places = Prompt.of(req_context).places(new, self._chain)
        worths = Hints.of(req_context).worths(req_context, new)
        return PrepareStoreOutput(new, Keys(new, places, worths), evicted_keys=[])

    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        if self._events is None:
            return
        # A store may have been declined: only present blocks are announced.
        there = zip(keys, self._there(list(keys), 0.0), strict=True)
        self._announce([key for key, found in there if found], removed=False)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        # A loaded block that was wrong is offered again when it is computed, and so is a block that
        # a store before left out. Present blocks cost the lookup of `prepare_store`.
        self._hinted.begin(req_context)
        return RequestOffloadingContext(policy=OffloadPolicy.REQUEST_LEVEL)

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._found_now.pop(req_context.req_id, None)
        self._marks.end(req_context)

    def expect(self, req_context: ReqContext, keys: Collection[bytes]) -> None:
        """A request will load these: once they come into the sidecar's memory tier ahead."""
        if req_context.get_state(_Expected) is None and keys:
            req_context.set_state(_Expected())
            self._marks.expect(keys)

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self._marks.touch(keys)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        # A request that loads nothing of what was found for it waits for pages of the GPU.
        for request, found in self._found_now.values():
            self.expect(request, found)
        self._found_now.clear()
        self._answers.clear()
        self._loads.step()
        self._marks.send()

    def has_pending_work(self) -> bool:
        return self._marks.pending

    def take_events(self) -> Iterable[OffloadingEvent]:
        if self._events is None:
            return ()
        for link in self._links:
            self._announce([OffloadKey(it.metadata) for it in link.gone()], removed=True)
        events, self._events = self._events, []
        return events

    def get_stats(self) -> Any:
        return self._stats.take()

    def reset_cache(self) -> None:
        # As of vLLM's own tiers that last: blocks stay, for this engine and for all others that
        # share them. Other weights need another identity.
        self._answers.clear()
        self._loads.forget()
        self.failing.clear()

    def status(self) -> list[dict[str, Any]]:
        """Whether each worker's namespace is attached, what was declined to be loaded, and what
        became of hints."""
        its = self._loads.status() | self._hinted.status()
        return [link.status() | its for link in self._links]

    def shutdown(self) -> None:
        for link in self._links:
            link.close()

    def _there(self, keys: list[OffloadKey], hold: float) -> list[bool]:
        return [all(its) for its in zip(*self._found(keys, hold), strict=True)]

    def _found(self, keys: Sequence[bytes], hold: float) -> list[Sequence[bool]]:
        return [link.lookup([bytes(key) for key in keys], hold=hold) for link in self._links]

    def _chain(self, keys: Sequence[bytes]) -> ChainWord:
        words = {link.chain(keys) for link in self._links}
        return "begins" if "begins" in words else "extends"

    def _announce(self, keys: list[OffloadKey], *, removed: bool) -> None:
        if self._events is None or not keys:
            return
        event = OffloadingEvent(keys, Medium.STORAGE, removed, self._locality)
        # Without this vLLM drops the data that it needs to announce a removal.
        event.removal_expected = not removed
        self._events.append(event)


@dataclass
class _Job:
    """A transfer of vLLM's: the chunks of each group."""

    number: int
    is_load: bool
    parts: dict[tuple[int, int], list[list[int]]] = field(default_factory=dict)
    """By group and ticket the pages of its chunks."""
    nbytes: int = 0
    failed: set[int] = field(default_factory=set)
    """Pages that were not filled."""
    begun: float = field(default_factory=time.monotonic)


class _Worker(OffloadingWorker, ReportsPages):
    """A worker's half: the groups' pages, each a cache of `kvrail.paged`. vLLM's calls and the
    slices of a thread bring the caches forward, one at a time."""

    def __init__(
        self, link: Link, groups: list[gpu.Pages], chunk: int, staging_bytes: int | None
    ) -> None:
        self._link, self._groups, self._chunk, self._staging = link, groups, chunk, staging_bytes
        self._session: Session | None = None
        self._caches: list[paged.Cache] = []
        self._jobs: dict[int, _Job] = {}
        self._finished: list[TransferResult] = []
        self._bad: set[int] = set()
        self._failed: set[int] = set()
        self._warnings = Warnings()
        self._left_out = 0
        self._lock = _forks.lock()
        self._pump = Pump("kvrail between vLLM's steps", self._slice)
        self._open()

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        job, before = _Job(job_id, is_load=False), 0
        with self._lock:
            for group, keys, rows in self._cut(src_spec, dst_spec):
                # A chunk that is not on the GPU as a whole is left out.
                whole = [at for at, row in enumerate(rows) if -1 not in row]
                some, pages = [keys[at] for at in whole], [rows[at] for at in whole]
                manner = _manner(dst_spec, [before + at for at in whole])
                self._submit(job, group, (some, pages), manner)
                before += len(keys)
            return self._begun(job)

    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        expedited: bool = False,
    ) -> bool:
        job = _Job(job_id, is_load=True)
        with self._lock:
            for group, keys, rows in self._cut(dst_spec, src_spec):
                # vLLM computes all that is behind a block which is not there.
                manner: dict[str, Any] = {"priority": "demand" if expedited else "prefetch"}
                manner |= {"prefix": True, "patience": STALL_S}
                self._submit(job, group, (keys, rows), manner)
            return self._begun(job)

    def get_finished(self) -> list[TransferResult]:
        with self._lock:
            self._take(0.0)
            if self._jobs:
                self._pump.ring()  # it waits for what there was before
            finished, self._finished = self._finished, []
            # Not before: vLLM would take a job that has not ended for one that has failed.
            self._failed, self._bad = self._failed | self._bad, set()
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """vLLM waits for a load to have filled its pages, and for a store to have read them: also
        before a request that finds them in the GPU's cache. The blocks of a store that are still
        in their pages are left out then, for the drive may take seconds for them. A request that
        has these pages offers them again."""
        with self._lock:
            waited = [self._jobs[number] for number in job_ids if number in self._jobs]
            for group, cache in enumerate(self._caches):
                stores = {
                    ticket
                    for job in waited
                    if not job.is_load
                    for of, ticket in job.parts
                    if of == group
                }
                self._left_out += cache.cut_short(stores) if stores else 0
            while any(job.is_load and job.number in self._jobs for job in waited):
                self._take(0.1)
        self._pump.ring()

    def take_failed_pages(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return failed

    def status(self) -> dict[str, Any]:
        """Whether it is attached, how blocks of each group come to the GPU and where they are
        checked, and how many were not stored because their pages were needed."""
        routes = [cache.route for cache in self._caches]
        moved = {"route": routes, "check": [cache.check for cache in self._caches]}
        return self._link.status() | moved | {"left_out": self._left_out}

    def shutdown(self) -> None:
        self._pump.close()
        deadline = time.monotonic() + DRAIN_S
        if not self._lock.acquire(timeout=DRAIN_S):
            return  # the thread hangs in a slice: what it works on stays
        try:
            while self._jobs and time.monotonic() < deadline:
                self._take(0.1)
            self._close()
        finally:
            self._lock.release()
        self._link.close()

    def _cut(
        self, pages: GPULoadStoreSpec, where: LoadStoreSpec
    ) -> Iterator[tuple[int, list[bytes], list[list[int]]]]:
        """The chunks of each group: their keys and pages. One begins, or ends, in the middle of the
        first or last chunk; missing pages are -1."""
        assert isinstance(where, Keys), "vLLM hands back what prepare_load and prepare_store gave"
        keys, ids = iter(where.keys), iter(int(it) for it in pages.block_ids)
        for group, size in enumerate(pages.group_sizes):
            skipped = int(pages.block_indices[group]) % self._chunk if size else 0
            row = [-1] * skipped + [next(ids) for _ in range(size)]
            row += [-1] * (-len(row) % self._chunk)
            rows = [row[at : at + self._chunk] for at in range(0, len(row), self._chunk)]
            yield group, [bytes(next(keys)) for _ in rows], rows

    def _submit(
        self,
        job: _Job,
        group: int,
        chunks: tuple[Sequence[bytes], list[list[int]]],
        manner: dict[str, Any],
    ) -> None:
        keys, rows = chunks
        if not keys:
            return
        cache = self._cache(group)
        try:
            if cache is None:
                raise kvrail.NoSidecarError("no sidecar")
            if job.is_load:
                ticket = cache.submit_get(keys, rows, stream=_stream(), **manner)
            else:
                ticket = cache.submit_put(keys, rows, stream=_stream(), metadata=keys, **manner)
        except kvrail.KvrailError as error:
            if self._session is not None:
                self._link.failed(self._session, error)
            job.failed.update(page for row in rows for page in row)
            return
        job.parts[group, ticket] = rows
        job.nbytes += len(keys) * cache.block_bytes

    def _begun(self, job: _Job) -> bool:
        self._jobs[job.number] = job
        self._end_whole()
        self._pump.ring()
        return True

    def _slice(self) -> paged.Rest:
        """What the thread does between two pauses."""
        with self._lock:
            self._take(0.0)
            return self._rest()

    def _rest(self) -> paged.Rest:
        rests = [cache.rest() for cache in self._caches]
        times = [it.seconds for it in rests if it.seconds is not None]
        return paged.Rest(sum((it.descriptors for it in rests), []), min(times, default=None))

    def _take(self, seconds: float) -> None:
        """Brings all groups forward; waits for the first that has something in flight."""
        for group, cache in enumerate(self._caches):
            for ended in cache.wait(timeout=seconds) if seconds else cache.poll():
                self._ended(group, ended)
            seconds = 0.0
        self._end_whole()

    def _ended(self, group: int, ended: paged.Ended) -> None:
        its = (it for it in self._jobs.values() if (group, ended.ticket) in it.parts)
        job = next(its, None)
        if job is None:
            return  # its submission failed behind this part, and vLLM was given the error
        rows, results = job.parts.pop((group, ended.ticket)), ended.results
        if not results.went_well and self._session is not None:
            text = f"not all blocks were moved: {results.counts}"
            gone = "RESTARTED" in results
            self._link.failed(
                self._session,
                kvrail.SessionEndedError(text) if gone else kvrail.DeviceError(text),
            )
        for row, ok in zip(rows, results.ok, strict=True):
            if not ok:
                job.failed.update(row)

    def _end_whole(self) -> None:
        """Reports jobs whose parts have all ended. A store that stored nothing is no failure."""
        for job in [job for job in self._jobs.values() if not job.parts]:
            del self._jobs[job.number]
            bad = job.failed - {-1} if job.is_load else set()
            if bad:
                self._warnings.warn("load", "kvrail: %d pages of a load were not filled", len(bad))
            if self.reports_pages:
                self._bad |= bad
            seconds = time.monotonic() - job.begun
            well = self.reports_pages or not bad
            self._finished.append(TransferResult(job.number, well, job.nbytes, seconds))

    def _cache(self, group: int) -> paged.Cache | None:
        """The cache of a group, of the session that there is now."""
        session = self._link.session
        if session is not self._session and not any(job.parts for job in self._jobs.values()):
            self._open()
        return self._caches[group] if session is self._session and self._caches else None

    def _open(self) -> None:
        self._close()
        session = self._link.session
        if session is not None:
            try:
                for pages in self._groups:
                    self._caches.append(
                        paged.Cache(
                            session.client,
                            session.space,
                            pages,
                            block_pages=self._chunk,
                            staging_bytes=_staging_bytes(pages, self._chunk, self._staging),
                        )
                    )
            except (kvrail.SessionEndedError, kvrail.NoSidecarError) as error:
                self._close()
                self._link.failed(session, error)
                return
        self._session = session

    def _close(self) -> None:
        for cache in self._caches:
            cache.close()
        self._caches, self._session = [], None


def _staging_bytes(pages: gpu.Pages, chunk: int, given: int | str | None) -> int:
    """Pinned memory of a group. Chunks lie on drives at random: of four in flight some drives have
    none, and the GPU has one, so four fast drives want more."""
    if given is not None:
        return int(given)
    most = min(STAGED * chunk * pages.page_bytes, STAGING_BYTES_MAX)
    return max(paged.STAGING_BYTES, most)


def _manner(where: LoadStoreSpec, chunks: Sequence[int]) -> dict[str, Any]:
    """How these of the chunks of a store are put."""
    assert isinstance(where, Keys), "vLLM hands back what prepare_store gave"
    manner: dict[str, Any] = {"priority": "background", "replace": True}
    if where.worths is not None:
        manner["worth"] = [where.worths[at] for at in chunks]
    if where.places is None:
        return manner
    places = where.places.some(chunks)
    return manner | {"chain": places.chains, "depth": places.depths}


def _from(
    request: ReqContext, asked: Sequence[bytes], answers: Sequence[bool]
) -> list[bytes]:
    """What was found of a request, from the first key on that it was asked for: those before it are
    on the GPU."""
    ends: Mapping[bytes, int] = getattr(request, "_offload_key_positions", {})
    first = ends.get(asked[0], 0)
    found = zip(asked, answers, strict=True)
    return [key for key, there in found if there and ends.get(key, first) >= first]


def _pages(caches: CanonicalKVCaches) -> list[gpu.Pages]:
    """The pages of each group: one run for each layer, without its padding."""
    groups = []
    for refs in caches.group_data_refs:
        tensors = [caches.tensors[ref.tensor_idx].tensor for ref in refs]
        spans = [
            gpu.Span(
                tensor.data_ptr(), tensor.stride(0) * tensor.element_size(), ref.page_size_bytes
            )
            for tensor, ref in zip(tensors, refs, strict=True)
        ]
        groups.append(gpu.Pages(tensors[0].shape[0], spans, keep=tensors))
    return groups


def _stream() -> Any:
    """The stream that vLLM computes on in this thread."""
    return torch.cuda.current_stream() if torch.cuda.is_available() else None
