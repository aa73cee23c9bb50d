"""kvrail as a secondary tier of vLLM's offloading connector (tried with vLLM 0.33.0).

    "spec_name": "TieringOffloadingSpec",
    "cpu_bytes_to_use": ...,
    "secondary_tiers": [{"type": "KvrailTier", "module_path": "kvrail_vllm",
                         "socket": "/run/kvrail/kvrail.sock", "volume": "kv"}]

The primary tier is one file below /dev/shm, which cannot be sealed: the sidecar needs
memory.unsealed_imports = "accept". The file becomes an arena, and the devices read and write its
rows in place; no byte is copied by a CPU.
"""

import os
import re
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import kvrail
import numpy
from kvrail_slots import Slots
from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

QUARANTINE_S = 5.0
"""How long rows of reads that a dead sidecar left behind are kept from the engine: its devices may
still write them."""


@dataclass
class _Job:
    """A transfer in flight: one row of the primary tier and one slot for each key."""

    job: TransferJob
    offsets: dict[OffloadKey, int]
    rows: dict[OffloadKey, int]
    started: float = field(default_factory=time.monotonic)
    submitted: int = 0
    missing: int = 0
    good: set[OffloadKey] = field(default_factory=set)
    not_before: float = 0.0


class KvrailTier(SecondaryTierManager):
    """Chunks of the primary tier in the slots of a volume."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        *,
        socket: str,
        volume: str = "kv",
        depth: int = 256,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self._client = kvrail.Client(socket, name="vllm")
        self._volume = self._client.volume(volume)
        with _file_of(primary_kv_view) as memory:
            self._arena = self._client.import_arena(memory, os.fstat(memory.fileno()).st_size)
        self._queue = self._volume.open_queue(depth)
        self._slots = Slots(self._volume.capacity, self.block_size_bytes)
        self._storing: set[OffloadKey] = set()
        self._waiting: deque[_Job] = deque()
        self._tickets: dict[int, tuple[_Job, OffloadKey]] = {}
        self._finished: list[_Job] = []

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        if key in self._slots:
            return LookupResult.HIT
        return LookupResult.RETRY if key in self._storing else LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        job = _Job(job_metadata, {}, {})
        for key, row in zip(job_metadata.keys, job_metadata.chunk_ids, strict=True):
            if key in self._slots or key in self._storing:
                job.good.add(key)
            elif (offset := self._slots.reserve()) is not None:
                self._storing.add(key)
                job.offsets[key], job.rows[key] = offset, int(row)
        self._begin(job)

    def submit_load(self, job_metadata: TransferJob) -> None:
        job = _Job(job_metadata, {}, {})
        for key, row in zip(job_metadata.keys, job_metadata.chunk_ids, strict=True):
            if (offset := self._slots.read(key)) is not None:
                job.offsets[key], job.rows[key] = offset, int(row)
        self._begin(job)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        self._take(self._queue.poll())
        self._submit()
        now = time.monotonic()
        ready = [job for job in self._finished if job.not_before <= now]
        self._finished = [job for job in self._finished if job.not_before > now]
        return [self._result(job) for job in ready]

    def has_pending_work(self) -> bool:
        return bool(self._tickets or self._waiting or self._finished)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def drain_jobs(self) -> None:
        while self._tickets or self._waiting:
            self._take(self._queue.wait())
            self._submit()

    def shutdown(self) -> None:
        if not self._client.closed:
            self.drain_jobs()
            self._queue.close()
            self._arena.close()
            self._client.close()

    def _begin(self, job: _Job) -> None:
        job.missing = len(job.offsets)
        (self._waiting if job.missing else self._finished).append(job)
        self._submit()

    def _submit(self) -> None:
        """Submits as much as the queue takes; one crossing for each job."""
        while self._waiting:
            job = self._waiting[0]
            keys = list(job.offsets)[job.submitted :]
            offsets = [job.offsets[key] for key in keys]
            positions = [job.rows[key] * self.block_size_bytes for key in keys]
            load = job.job.is_promotion
            move = self._queue.read_many if load else self._queue.write_many
            try:
                tickets = move(
                    self._arena,
                    offsets,
                    positions,
                    self.block_size_bytes,
                    priority="demand" if load else "background",
                )
            except kvrail.KvrailError:
                # Nothing of it went out: these keys fail, and the engine computes them.
                for key in keys:
                    self._end(job, key, ok=False)
                self._waiting.popleft()
                continue
            self._tickets.update(
                (ticket, (job, key)) for ticket, key in zip(tickets, keys, strict=False)
            )
            job.submitted += len(tickets)
            if len(tickets) < len(keys):
                return
            self._waiting.popleft()

    def _take(self, ends: list[kvrail.Completion]) -> None:
        for end in ends:
            if end.is_notice:
                continue
            job, key = self._tickets.pop(end.ticket)
            if end.status == "RESTARTED" and job.job.is_promotion:
                job.not_before = time.monotonic() + QUARANTINE_S
            self._end(job, key, ok=end.ok)

    def _end(self, job: _Job, key: OffloadKey, *, ok: bool) -> None:
        if job.job.is_promotion:
            self._slots.done(job.offsets[key])
        else:
            self._storing.discard(key)
            if ok:
                self._slots.publish(key, job.offsets[key])
            else:
                self._slots.give_back(job.offsets[key])
        if ok:
            job.good.add(key)
        job.missing -= 1
        if job.missing == 0:
            self._finished.append(job)

    def _result(self, job: _Job) -> JobResult:
        return JobResult(
            job_id=job.job.job_id,
            success=len(job.good) == len(job.job.keys),
            successful_keys=list(job.good) if job.job.is_promotion else None,
            transfer_time=time.monotonic() - job.started,
            transfer_bytes=len(job.rows) * self.block_size_bytes,
        )


def _file_of(view: memoryview) -> Any:
    """The file that is mapped where this memory lies, among this process's open ones."""
    base = numpy.asarray(view).ctypes.data
    with open("/proc/self/maps") as maps:
        for line in maps:
            begin, end, device, inode = re.match(
                r"(\w+)-(\w+) \S+ \w+ (\S+) (\d+)", line
            ).groups()
            if int(begin, 16) <= base < int(end, 16):
                break
        else:
            raise kvrail.RequestError("the primary tier is not mapped from a file")
    if int(begin, 16) != base or int(end, 16) - base < view.nbytes:
        raise kvrail.RequestError("the primary tier is not one whole file; use one segment")
    for name in os.listdir("/proc/self/fd"):
        try:
            about = os.stat(f"/proc/self/fd/{name}")
        except OSError:
            continue
        major, minor = os.major(about.st_dev), os.minor(about.st_dev)
        if about.st_ino == int(inode) and f"{major:02x}:{minor:02x}" == device:
            return open(f"/proc/self/fd/{name}", "r+b", buffering=0)
    raise kvrail.RequestError("the file of the primary tier is not open in this process")
