"""Blocks of a paged KV cache in GPU memory, by key.

>>> cache = kvrail.paged.Cache(client, space, tensors)       # doctest: +SKIP
>>> cache.put(keys, [0, 1, 2], stream=stream).counts         # doctest: +SKIP
{'OK': 3}
>>> cache.get(keys, [7, 8, 9], stream=stream).prefix         # doctest: +SKIP
3

The bytes move between the store and pinned memory of this process, and between that and the pages,
in this process's own CUDA context. Blocks in the sidecar's memory tier move from there to the pages
(`Cache.route`). Nothing of the cache is exported, and no drive touches a page.

A CRC of each block is computed by the GPU: of the pages that are put, before they leave them, and
of the pages that were filled, after the last byte came. It is the check that the store keeps with
the block: a bit that flips on the drive, on the way or in GPU memory is found, and the block is a
miss. `Cache.check` has the place of the check.

A caller passes its CUDA stream and synchronizes nothing: pages are read, and filled, behind what
the stream has when the call is made. After a get has ended its bytes are in the pages, for any
stream.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, SupportsIndex, overload

import kvrail
from kvrail import gpu
from kvrail._mover import Mover, Shape, Way
from kvrail._paged_jobs import PRIORITIES, Job, Wave, Work, check, each_of

__all__ = ["Cache", "Ended", "Rest", "Results"]

STAGING_BYTES = 32 << 20
"""Default size of the pinned memory that blocks move through."""

WAVE_BYTES = 4 << 20
"""Blocks of this size together are begun at once."""

TIER_WAVE_BYTES, TIER_WAVES = 16 << 20, 4
"""The same of blocks that the GPU reads in the memory tier; and as many waves are on their way: the
GPU has work for a millisecond, in which somebody looks."""

_PAGE = 4096
_UNIT = 16
_SLICE_S, _TIER_SLICE_S = 0.0001, 0.00002
# Looks without a pause at a wave of the memory tier, at most: less than a millisecond.
_SPINS = 40
# Work of the GPU has no descriptor: a pause ends this often to look at it.
_LOOK_S, _TIER_LOOK_S = 0.001, 0.0003
_BEHIND, _WRONG = "a block before it is not there", "its bytes were wrong on the GPU"
# Blocks in doubt that are remembered: of the oldest the store decides alone.
_DOUBTS = 4096
# Weight of the last wave in the time that waves take, and how many of them a drive may be silent.
_NOTICE, _WAVES = 0.25, 8
# Caches that were closed while the GPU had blocks of theirs.
_touched: list["Cache"] = []
_WELL = frozenset({"OK", "PRESENT"})
_ANSWERS = frozenset({"OK", "PRESENT", "PENDING", "DECLINED", "MISS"})
Rows = Iterable[SupportsIndex] | Iterable[Iterable[SupportsIndex]] | Any
"""The pages of each block: one number, or one for each page of a block."""


class Results(Sequence[str]):
    """How a put or get ended: one status for each key, in their order; the words of
    :class:`kvrail.Results`."""

    def __init__(self, words: Sequence[str], reasons: Mapping[int, str]) -> None:
        self._words, self._reasons = words, reasons

    def __len__(self) -> int:
        return len(self._words)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        return self._words[at]

    @property
    def ok(self) -> list[bool]:
        """For each key whether its block is in the store, or whole in its pages."""
        return [word in _WELL for word in self._words]

    @property
    def all_ok(self) -> bool:
        """Whether all are."""
        return all(self.ok)

    @property
    def prefix(self) -> int:
        """Keys from the first on that are."""
        return next((at for at, ok in enumerate(self.ok) if not ok), len(self))

    @property
    def counts(self) -> dict[str, int]:
        """How many blocks have each status."""
        return dict(Counter(self._words))

    @property
    def went_well(self) -> bool:
        """Whether nothing has failed: a miss is an answer, and so is a put that is declined."""
        return _ANSWERS.issuperset(self._words)

    def check(self) -> None:
        """Raises :class:`kvrail.DeviceError` if a block has failed: a miss is no failure, nor a put
        that was declined."""
        if not self.went_well:
            raise kvrail.DeviceError(f"not all blocks were moved: {self.counts}")

    def reason(self, at: int) -> str | None:
        """Details of one block beyond its status."""
        return self._reasons.get(range(len(self))[at])

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {word}" for word, count in sorted(self.counts.items()))
        return f"<kvrail.paged.Results of {len(self)}: {counts}>"


class Ended(NamedTuple):
    """A put or get that has ended."""

    ticket: int
    results: Results


class Rest(NamedTuple):
    """What ends a pause between polls, whichever comes first."""

    descriptors: list[int]
    """Input of one of them."""
    seconds: float | None
    """Time; None: no time does."""


class Cache:
    """A paged cache whose blocks are put into a namespace, and got from it. For one thread at a
    time; a context manager."""

    def __init__(
        self,
        client: kvrail.Client,
        space: kvrail.Namespace,
        tensors: Iterable[Any] | gpu.Pages,
        *,
        block_dim: int = 0,
        block_pages: int = 1,
        staging_bytes: int = STAGING_BYTES,
        depth: int = 128,
        check: Literal["auto", "host"] = "auto",
    ) -> None:
        """
        :param tensors: the cache, as for :func:`kvrail.gpu.paged`: K and V of each layer, or one
            tensor a layer, with pages in `block_dim`; or where its pages are.
        :param block_pages: pages of a block.
        :param staging_bytes: pinned memory that blocks move through; room for 4 at least.
        :param depth: blocks in flight between the store and that memory.
        :param check: "auto": where the bytes are, on the GPU; "host": in the pinned memory.
        """
        pages = tensors if isinstance(tensors, gpu.Pages) else gpu.pages(tensors, block_dim)
        self._shape = shape = _shape(pages, block_pages)
        self._slot_bytes = -(-shape.block_bytes // _PAGE) * _PAGE
        slots = max(4, staging_bytes // self._slot_bytes)
        self._most = max(1, min(WAVE_BYTES // self._slot_bytes, slots // 4))
        self._tier_most = max(1, TIER_WAVE_BYTES // self._slot_bytes)
        tier = space._tier_memory()
        if tier:
            # Asks the sidecar, once: not in an engine's step. Two waves at least are to have views.
            self._tier_most = min(self._tier_most, max(1, space._views_left() // 2))
        self._arena = client.create_arena(slots * self._slot_bytes)
        # Waves of gets that may have memory: as many as the drives are given, and one that the GPU
        # has. If more had, they would wait in the sidecar, and drives fill more memory in turns:
        # a virtual disk fills 12 MiB faster than 32, by a tenth. The first one goes alone: it shows
        # how long an answer takes, and a slow drive that has all of them is silent for long.
        self._window, self._window_most = 1, -(-slots // self._most)
        self._space, self._queue = space, space.queue(depth)
        self._mover = Mover(
            shape,
            memoryview(self._arena).cast("B"),
            most=max(self._most, self._tier_most),
            batches=2 * self._window_most + TIER_WAVES,
            check=check,
            tier=tier,
            keep=space,
        )
        self._slots, self._batches = list(range(slots)), list(self._mover.batches)
        self._waiting: dict[Work, list[Job]] = {"get": [], "put": []}
        self._jobs: dict[int, Job] = {}
        self._on_drive: dict[int, Wave] = {}
        self._on_gpu: list[Wave] = []
        self._ended: list[Ended] = []
        self._last_ticket = 0
        self._spins = 0
        self._failure: kvrail.KvrailError | None = None
        self._closed = False
        # Blocks that were wrong, and those behind them, which were not read: where one is damaged,
        # others are.
        self._doubted: dict[int, None] = {}
        # Wrong blocks that are to be read again and reported, by job.
        self._suspects: list[tuple[Job, list[int]]] = []
        # When a drive answered last, when blocks of the tier came last, and how long waves of gets
        # take at the drives, for each of those that are there together.
        self._answered, self._came, self._wave_s = 0.0, 0.0, 0.0

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self._shape.block_bytes

    @property
    def check(self) -> str:
        """Where blocks are checked: "gpu", or "host: " and why."""
        why = self._mover.why_host
        return "gpu" if why is None else f"host: {why}"

    @property
    def route(self) -> str:
        """The way of blocks to the GPU: "memory tier" where those that lie there come from there,
        without a copy by a core; or "staged: " and why all take the pinned memory."""
        why = self._mover.why_staged
        return "memory tier" if why is None else f"staged: {why}"

    @property
    def outstanding(self) -> int:
        """Puts and gets that were not fetched yet."""
        return len(self._jobs) + len(self._ended)

    def put(
        self,
        keys: Any,
        blocks: Rows,
        *,
        stream: Any = None,
        timeout: float | None = None,
        **more: Any,
    ) -> Results:
        """Puts blocks as of these keys; waits. Statuses as of `Namespace.put_many`."""
        return self._wait_for(self.submit_put(keys, blocks, stream=stream, **more), timeout)

    def get(
        self,
        keys: Any,
        blocks: Rows,
        *,
        stream: Any = None,
        timeout: float | None = None,
        **more: Any,
    ) -> Results:
        """Fills blocks with those of these keys; waits. Statuses as of `Namespace.get_many`; pages
        of blocks that are not OK have any bytes."""
        return self._wait_for(self.submit_get(keys, blocks, stream=stream, **more), timeout)

    def submit_put(
        self,
        keys: Any,
        blocks: Rows,
        *,
        stream: Any = None,
        metadata: Sequence[bytes] | None = None,
        **options: Any,
    ) -> int:
        """Begins a put; its ticket. Leave the pages as they are until it has ended. A block that a
        get of this cache found wrong, or gave up behind such a one, is read first, and put anew if
        it is wrong still.

        :param keys: as for `Namespace.put_many`.
        :param blocks: for each key the number of its page, or of its pages in their order.
        :param stream: behind what it has now the pages are read: a number, or an object of
            PyTorch; by default the default stream.
        :param metadata: for each key up to 1 KiB that stays with the block.
        :param options: `priority`, `durable`, `depth`, `chain`, `replace`, `worth`, `ttl` as for
            `Namespace.put_many`; a chain has a word. The rest of one that is declined is put too.
            A session that has ended is `Namespace.lookup(keys, demote=True)`.
        """
        return self._submit("put", keys, blocks, stream, options, metadata)

    def submit_get(self, keys: Any, blocks: Rows, *, stream: Any = None, **options: Any) -> int:
        """Begins a get; its ticket. The pages are filled behind what the stream has now. A number
        of -1 is no page: its bytes are verified, and go nowhere. A block whose bytes are wrong is
        a MISS at once; it is read again behind the get's end, and reported.

        :param options: `priority` as for `Namespace.get_many`; with `prefix` the blocks behind the
            first that is not there are given up: they end as MISS, although they may be there; so
            do all that are not on the GPU yet when no drive has answered for `patience` seconds,
            and for several times as long as it takes lately.
        """
        return self._submit("get", keys, blocks, stream, options, None)

    def poll(self) -> list[Ended]:
        """Makes progress without waiting; returns ended puts and gets."""
        self._advance(0.0)
        ended, self._ended = self._ended, []
        return ended

    def wait(self, count: int = 1, timeout: float | None = None) -> list[Ended]:
        """Waits until this number has ended, nothing is outstanding, or the seconds are over."""
        until = None if timeout is None else time.monotonic() + timeout
        self._advance(0.0)
        while len(self._ended) < count and self._jobs:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                break
            self._advance(left)
        ended, self._ended = self._ended, []
        return ended

    def rest(self) -> Rest:
        """What a pause between polls has to end with, so that what is in flight goes on."""
        look = _TIER_LOOK_S if any(wave.views for wave in self._on_gpu) else _LOOK_S
        looks = [look] if self._on_gpu else []
        if self._failure is not None or self._closed:
            return Rest([], min(looks, default=None))
        looks += (job.patience / 2 for job in self._jobs.values() if job.patience is not None)
        if self._on_drive and self._queue.arm():
            looks.append(0.0)
        return Rest([self._queue.fileno()] if self._on_drive else [], min(looks, default=None))

    def cut_short(self, tickets: Collection[int]) -> int:
        """Lets the pages of these puts go: returns when nothing reads them any more. Blocks that
        were still in their pages end as DECLINED; their number. No drive is waited for."""
        cut = 0
        for job in [job for job in self._waiting["put"] if job.ticket in tickets]:
            self._waiting["put"].remove(job)
            for at in range(job.begun, len(job.keys)):
                job.end(at, "DECLINED", "its page was needed before there was memory for the block")
            cut += len(job.keys) - job.begun
            job.begun = len(job.keys)
        for wave in self._on_drive.values():
            if wave.checked and wave.job.ticket in tickets and not wave.given_up:
                wave.given_up = True
                for at in wave.places:
                    wave.job.end(at, "DECLINED", "its page was needed before the block was read")
                cut += len(wave.places)
        self._advance(0.0)
        while any(wave.way is Way.OUT and wave.job.ticket in tickets for wave in self._on_gpu):
            self._advance(_SLICE_S)
        return cut

    def close(self, timeout: float = 5.0) -> None:
        """Waits until nothing is in flight, and frees the pinned memory."""
        if self._closed:
            return
        for waiting in self._waiting.values():
            waiting.clear()
        self._suspects.clear()
        until = time.monotonic() + timeout
        while (self._on_drive or self._on_gpu) and time.monotonic() < until:
            self._advance(_SLICE_S)
        self._closed = True
        self._queue.close()
        if self._on_gpu:
            _touched.append(self)  # the GPU may touch its memory: it stays until the process ends
        else:
            self._mover.close()
            self._arena.close()

    def __enter__(self) -> "Cache":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _submit(
        self,
        work: Work,
        keys: Any,
        blocks: Rows,
        stream: Any,
        options: Mapping[str, Any],
        metadata: Sequence[bytes] | None,
    ) -> int:
        if self._closed:
            raise kvrail.ClosedError("the cache was closed")
        if self._failure is not None:
            raise self._failure
        check(work, options, metadata)
        keys = keys if isinstance(keys, kvrail.Keys) else kvrail.Keys(keys)
        rows = self._rows(work, blocks)
        each = each_of(options, metadata, len(keys))
        for what, given in [("blocks", rows), *each.items()]:
            if len(given) != len(keys):
                text = f"{what} has {len(given)} items for {len(keys)} keys; pass one each"
                raise kvrail.RequestError(text)
        self._last_ticket += 1
        rest = {key: value for key, value in options.items() if key not in each}
        own = {name: rest.pop(name) for name in ("prefix", "patience") if name in rest}
        job = Job(self._last_ticket, work, keys, rows, rest, each, **own)
        job.behind = self._mover.mark(_handle(stream))
        self._jobs[job.ticket] = job
        self._waiting[work].append(job)
        self._waiting[work].sort(key=_urgency)
        self._advance(0.0)
        return job.ticket

    def _rows(self, work: Work, blocks: Rows) -> list[list[int]]:
        listed = blocks.tolist() if hasattr(blocks, "tolist") else list(blocks)
        rows = [[int(it)] if hasattr(it, "__index__") else [int(at) for at in it] for it in listed]
        count, each = self._shape.pages.count, self._shape.block_pages
        for at, row in enumerate(rows):
            if len(row) != each:
                raise kvrail.RequestError(f"block {at} has {len(row)} pages, {each} are one")
        filled = [page for row in rows for page in row]
        lowest = -1 if work == "get" else 0
        if filled and not lowest <= min(filled) <= max(filled) < count:
            at, page = next(
                (at // each, page) for at, page in enumerate(filled) if not lowest <= page < count
            )
            text = f"block {at}: there is no page {page}; the cache has {count}"
            raise kvrail.RequestError(text)
        if lowest in filled:
            filled = [page for page in filled if page >= 0]
        if work == "get" and len(set(filled)) != len(filled):
            twice = next(page for page, times in Counter(filled).items() if times > 1)
            raise kvrail.RequestError(f"page {twice} is given twice; a get fills each page once")
        return rows

    def _wait_for(self, ticket: int, timeout: float | None) -> Results:
        until = None if timeout is None else time.monotonic() + timeout
        self._advance(0.0)
        while ticket in self._jobs:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise kvrail.TimedOutError(
                    f"not all of {len(self._jobs[ticket].keys)} blocks ended in time: leave their "
                    "pages alone until the cache is closed"
                )
            self._advance(left)
        ended = next(it for it in self._ended if it.ticket == ticket)
        self._ended.remove(ended)
        if self._failure is not None and not ended.results.went_well:
            raise self._failure
        if "RESTARTED" in ended.results:
            raise kvrail.SessionEndedError("the sidecar has ended; attach again")
        return ended.results

    def _advance(self, seconds: float | None) -> None:
        """Takes ended waves, waiting this long, and begins waves that there is room for."""
        try:
            for end in self._arrived(seconds):
                if (wave := self._on_drive.pop(end.ticket, None)) is not None:  # else a drop
                    self._drive_ended(wave, end.results)
            self._lose_patience()
            for wave in self._over():
                self._on_gpu.remove(wave)
                self._spins = 0
                wave.let_go()
                if self._failure is None:
                    self._gpu_ended(wave)
                else:
                    self._end_failed(wave.job, wave.places)
            self._begin()
        except kvrail.KvrailError as error:
            self._fail(error)
        for job in [job for job in self._jobs.values() if job.open == 0]:
            del self._jobs[job.ticket]
            self._mover.unmark(job.behind)
            self._ended.append(Ended(job.ticket, Results(job.words, job.reasons)))

    def _arrived(self, seconds: float | None) -> list[kvrail.GroupEnd]:
        if self._on_gpu:
            # Work of the GPU has no descriptor: it is polled now and then.
            most = _TIER_SLICE_S if self._on_gpu[0].views else _SLICE_S
            if most == _TIER_SLICE_S and len(self._on_gpu) == 1 and self._spins < _SPINS:
                # The last one ends before a core that slept would be back.
                self._spins, most = self._spins + 1, 0.0
            seconds = most if seconds is None else min(seconds, most)
        if self._on_drive:
            return self._queue.poll() if seconds == 0 else self._queue.wait(timeout=seconds)
        if self._on_gpu and seconds:
            time.sleep(seconds)
        return []

    def _begin(self) -> None:
        """Begins waves while there is memory: loads first, of both the urgent ones."""
        self._report()
        for work in ("get", "put"):
            waiting = self._waiting[work]
            while waiting and self._batches:
                job = waiting[0]
                if job.begun < len(job.keys) and not self._begin_some(job):
                    break
                if job.begun == len(job.keys):
                    waiting.remove(job)

    def _begin_some(self, job: Job) -> bool:
        """Begins the next wave of a job, if there is memory for it now."""
        if job.work == "get" and self._reads_tier(job):
            ahead = sum(bool(wave.views) for wave in self._on_gpu)
            if ahead == TIER_WAVES or (ahead and not self._space._views_left()):
                return False  # the GPU has work; then there are views again
            if self._from_tier(job):
                return True
        if not self._slots or not self._has_room(job.work):
            return False
        places = job.next(min(self._most, len(self._slots)))
        slots = [self._slots.pop() for _ in places]
        wave = Wave(job, places, self._batches.pop(), slots, addresses=self._staged(slots))
        job.begun += len(places)
        (self._from_pages if job.work == "put" else self._from_drive)(wave)
        return True

    def _reads_tier(self, job: Job) -> bool:
        # A view counts as a use of its block, which work in the background is not.
        return self._mover.why_staged is None and job.options.get("priority") != "background"

    def _from_tier(self, job: Job) -> bool:
        """Begins a wave of blocks that the memory tier has, from the next one of the job on. Each
        is viewed until the GPU has it."""
        # A job's first wave is short: the GPU begins while the next one is made.
        places = job.next(self._tier_most if job.begun else -(-self._tier_most // 4))
        found = self._space._views(job.named(places))
        right = next(
            (at for at, (view, *_) in enumerate(found) if len(view) != self.block_bytes), len(found)
        )
        for view, *_ in found[right:]:
            view.release()  # a get has the answer
        if right == 0:
            return False
        views, addresses, crcs = (list(its) for its in zip(*found[:right], strict=True))
        wave = Wave(
            job, places[:right], self._batches.pop(), [], views, addresses=addresses, crcs=crcs
        )
        job.begun += right
        self._to_gpu(wave)
        return True

    def _staged(self, slots: Sequence[int]) -> list[int]:
        return [self._mover.base + slot * self._slot_bytes for slot in slots]

    def _has_room(self, work: Work) -> bool:
        staged = [wave for wave in self._on_gpu if not wave.views]
        return work == "put" or _gets(self._on_drive.values()) + _gets(staged) < self._window

    def _fit(self, wave: Wave, queue_ns: int) -> None:
        """Derives the number of waves at the drives from an ended wave: all but those that waited
        for them, and twice as many where none did."""
        given = round(wave.among * (1 - queue_ns / (time.monotonic_ns() - wave.begun_ns)))
        waited = given < wave.among
        window = given + 1 if waited else max(self._window, 2 * given)
        self._window = min(max(2, window), self._window_most)

    def _from_pages(self, wave: Wave) -> None:
        """Begins a wave of a put. Blocks in doubt are read first, into the memory that the pages
        will have: another engine may have put them anew, and what is whole must not be dropped."""
        keys = [wave.job.keys[at] for at in wave.places]
        wave.checked = [at for at, key in enumerate(keys) if key in self._doubted]
        if not wave.checked:
            self._to_gpu(wave)
            return
        positions = [wave.slots[at] * self._slot_bytes for at in wave.checked]
        ticket = self._queue.submit_get(
            kvrail.uniform([keys[at] for at in wave.checked]),
            (self._arena, positions, [self.block_bytes] * len(positions)),
            priority="background",
            verify=True,
        )
        self._on_drive[ticket] = wave

    def _checked(self, wave: Wave, results: kvrail.Results) -> None:
        """Blocks in doubt were read: the whole ones are in doubt no more."""
        whole = zip(wave.checked, results.ok, results.lengths, strict=True)
        places = [wave.places[at] for at, ok, size in whole if ok and size == self.block_bytes]
        self._believe([wave.job.keys[at] for at in places])
        wave.checked = ()
        self._to_gpu(wave)

    def _to_gpu(self, wave: Wave) -> None:
        slots = [self._mover.on_gpu(address) for address in wave.addresses]
        wave.batch.fill(slots, [wave.job.rows[at] for at in wave.places])
        try:
            # Not before its first wave: waves of jobs before it do not wait for the caller's work.
            self._mover.begin(wave.way, wave.batch, wave.job.behind if wave.job.waits else None)
        except kvrail.GpuError:
            wave.let_go()  # nothing of it moves, and the error may be kept for long
            raise
        wave.job.waits = False
        self._on_gpu.append(wave)

    def _named(self, wave: Wave) -> tuple[kvrail.Keys, Any]:
        positions = [slot * self._slot_bytes for slot in wave.slots]
        memory = (self._arena, positions, [self.block_bytes] * len(positions))
        return wave.job.named(wave.places), memory

    def _from_drive(self, wave: Wave) -> None:
        verify = self._mover.why_host is not None
        wave.begun_ns, wave.among = time.monotonic_ns(), _gets(self._on_drive.values()) + 1
        ticket = self._queue.submit_get(*self._named(wave), verify=verify, **wave.job.options)
        self._on_drive[ticket] = wave

    def _report(self) -> None:
        """Reads blocks whose pages were wrong: the client verifies them, and reports those that are
        wrong in the memory tier or on the drive."""
        while self._suspects and self._slots and self._batches:
            job, wrong = self._suspects.pop(0)
            places, rest = wrong[: len(self._slots)], wrong[len(self._slots) :]
            if rest:
                self._suspects.insert(0, (job, rest))
            slots = [self._slots.pop() for _ in places]
            wave = Wave(job, places, self._batches.pop(), slots, addresses=self._staged(slots))
            wave.given_up = True
            again: dict[str, Any] = {"priority": "background", "verify": True}
            self._on_drive[self._queue.submit_get(*self._named(wave), **again)] = wave

    def _to_drive(self, wave: Wave) -> None:
        job, more = wave.job, dict(wave.job.options)
        if self._mover.why_host is None:
            more["crc"] = self._mover.crcs(wave.batch)
        more |= {key: [values[at] for at in wave.places] for key, values in job.each.items()}
        doubted = [job.keys[at] for at in wave.places if job.keys[at] in self._doubted]
        if doubted:
            # They were read. A put would find them PRESENT: the store has the check of what should
            # be there.
            self._queue.submit_drop(kvrail.uniform(doubted))
            self._believe(doubted)
        self._on_drive[self._queue.submit_put(*self._named(wave), **more)] = wave

    def _drive_ended(self, wave: Wave, results: kvrail.Results | None) -> None:
        assert results is not None, "groups have results"
        self._answered = time.monotonic()
        if wave.given_up:
            self._keep(wave, ())
            return
        if wave.checked:
            self._checked(wave, results)
            return
        if wave.way is Way.IN:
            self._fit(wave, results.queue_ns)
            took = self._answered - wave.begun_ns / 1e9
            self._wave_s += _NOTICE * (took / wave.among - self._wave_s)
        job, lengths, came, missed = wave.job, results.lengths, [], []
        for at, word in enumerate(results):
            if job.work == "put" or word != "OK":
                job.end(wave.places[at], word, results.reason(at))
                missed.append(at)
            elif lengths[at] != self.block_bytes:
                why = f"the block has {lengths[at]} bytes, one of this cache {self.block_bytes}"
                job.end(wave.places[at], "MISS", why)
                missed.append(at)
            else:
                came.append(at)
        if job.prefix and missed:
            job.give_up((wave.places[at] for at in came if at > missed[0]), _BEHIND)
            came = [at for at in came if at < missed[0]]
            self._give_up(job, wave.places[missed[0]], _BEHIND)
        wave.crcs = list(results.crcs)
        self._keep(wave, came)
        if came:
            self._to_gpu(wave)

    def _doubt(self, wave: Wave, wrong: Sequence[int]) -> None:
        job, places = wave.job, [wave.places[at] for at in wrong]
        if job.prefix:
            places += (at for at in range(places[0], len(job.keys)) if job.words[at] == "MISS")
        self._doubted |= dict.fromkeys(job.keys[at] for at in places)
        for key in list(self._doubted)[:-_DOUBTS]:
            del self._doubted[key]

    def _believe(self, keys: Iterable[int]) -> None:
        for key in keys if self._doubted else ():
            self._doubted.pop(key, None)

    def _give_up(self, job: Job, hole: int, reason: str) -> None:
        """Ends the blocks behind one that is not there, but those that the GPU has."""
        if job in self._waiting[job.work]:
            self._waiting[job.work].remove(job)
            job.give_up(range(job.begun, len(job.keys)), reason)
            job.begun = len(job.keys)
        for wave in self._on_drive.values():
            if wave.job is job and not wave.given_up and wave.places[0] > hole:
                wave.given_up = True
                job.give_up(wave.places, reason)

    def _lose_patience(self) -> None:
        """Gives up gets that wait for drives which do not answer."""
        on_drive = (it for it in self._on_drive.values() if it.way is Way.IN and not it.given_up)
        starts = [(it.job, it.begun_ns / 1e9) for it in on_drive]
        # Those that wait may wait for the GPU: it has blocks of the memory tier.
        starts += [(job, max(job.since, self._came)) for job in self._waiting["get"]]
        now, silent_s = time.monotonic(), _WAVES * self._wave_s * _gets(self._on_drive.values())
        for job, start in starts:
            if job.patience is not None and job.open:
                most = max(job.patience, silent_s)
                if now - max(self._answered, start) > most:
                    self._give_up(job, -1, f"no drive has answered for {most:.1f} s")

    def _gpu_ended(self, wave: Wave) -> None:
        if wave.job.work == "put":
            self._to_drive(wave)
            return
        wrong = []
        if not wave.slots:
            self._came = time.monotonic()
        if self._mover.why_host is None:
            are = enumerate(zip(self._mover.crcs(wave.batch), wave.crcs, strict=True))
            wrong = [at for at, (has, must) in are if has != must]
        for at, place in enumerate(wave.places):
            if at in wrong:
                wave.job.end(place, "MISS", _WRONG)
            else:
                wave.job.end(place, "OK")
                self._believe([wave.job.keys[place]])
        if wave.job.prefix and wrong:
            self._give_up(wave.job, wave.places[wrong[0]], _BEHIND)
        if wrong:
            self._doubt(wave, wrong)
            self._suspects.append((wave.job, [wave.places[at] for at in wrong]))
        self._keep(wave, ())

    def _keep(self, wave: Wave, indices: Sequence[int]) -> None:
        """Goes on with some blocks of a wave; the pinned memory of the others is free."""
        kept = set(indices)
        self._slots += [slot for at, slot in enumerate(wave.slots) if at not in kept]
        wave.only(indices)
        if not indices:
            self._batches.append(wave.batch)

    def _over(self) -> list[Wave]:
        """Waves that the GPU is done with: it ends those of one way in their order, nearly."""
        over: list[Wave] = []
        for way in Way:
            for wave in self._on_gpu:
                if wave.way is way:
                    if not self._is_over(wave):
                        break
                    over.append(wave)
        return over

    def _is_over(self, wave: Wave) -> bool:
        """Whether the GPU is done with a wave. One that has failed moves nothing more."""
        try:
            return self._mover.is_done(wave.batch)
        except kvrail.GpuError as error:
            self._fail(error)
            return True

    def _fail(self, error: kvrail.KvrailError) -> None:
        """The session or the GPU has failed: all that is open ends, once. What the GPU still moves
        ends with it: its pages are not the caller's before."""
        self._failure = self._failure or error
        for waiting in self._waiting.values():
            waiting.clear()
        self._suspects.clear()
        moved = {(wave.job.ticket, at) for wave in self._on_gpu for at in wave.places}
        for job in self._jobs.values():
            open_ = [at for at, word in enumerate(job.words) if word == "LATE"]
            self._end_failed(job, [at for at in open_ if (job.ticket, at) not in moved])
        self._on_drive.clear()

    def _end_failed(self, job: Job, places: Iterable[int]) -> None:
        word = "GPU_ERROR" if isinstance(self._failure, kvrail.GpuError) else "RESTARTED"
        for at in places:
            if job.words[at] == "LATE":
                job.end(at, word, str(self._failure))


def _shape(pages: gpu.Pages, block_pages: int) -> Shape:
    odd = [it for it in pages.spans if (it.address | it.stride | it.nbytes) % _UNIT]
    if odd or not pages.spans or block_pages < 1:
        raise kvrail.LayoutError(
            f"blocks of {block_pages} pages with {len(pages.spans)} runs, {len(odd)} of them not "
            f"at multiples of {_UNIT} bytes; addresses, strides and lengths must be, and there "
            "must be a page and a run"
        )
    return Shape(pages, block_pages)


def _gets(waves: Iterable[Wave]) -> int:
    return sum(wave.way is Way.IN and not wave.given_up for wave in waves)


def _urgency(job: Job) -> int:
    return PRIORITIES.index(job.options.get("priority", "demand"))


def _handle(stream: Any) -> int:
    return int(getattr(stream, "cuda_stream", stream or 0))

