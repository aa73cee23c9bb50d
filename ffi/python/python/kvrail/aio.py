"""Queues for ``asyncio``: the event loop waits on the sidecar's bell, no thread is needed."""

import asyncio
import functools
import os
from collections.abc import Callable, Iterable, Sized
from types import TracebackType
from typing import Unpack, cast

from kvrail._kvrail import (
    Arena,
    Completion,
    Found,
    GpuRegion,
    GroupEnd,
    Keys,
    Namespace,
    Results,
    Volume,
)
from kvrail._kvrail import Queue as _Queue
from kvrail._types import (
    BlockMemory,
    BlockName,
    BlockOptions,
    DropOptions,
    Numbers,
    Options,
    PutOptions,
)
from kvrail.errors import ClosedError, KvrailError, QueueFullError

__all__ = ["Queue"]

_EXPECTED_BYTES = 1 << 16
_LOOK_S = 0.25
_CLOSED = "the client is closed; make another one"


class _Bell:
    """Calls ``fetch`` in the loop that made it: when the queue rings, and now and then while
    something is awaited, because a queue rings no more when its client is closed."""

    def __init__(self, queue: "_Queue[Completion]", fetch: Callable[[], None]) -> None:
        self._queue, self._fetch = queue, fetch
        self._loop = asyncio.get_running_loop()
        # A copy: the queue's own is gone with its client, and its number is another file's.
        self._fd = os.dup(queue.fileno())
        self._scheduled = False
        self._look: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._fd, self._ring)

    def arm(self) -> None:
        """Has it ring for what is awaited."""
        if self._look is None:
            self._look = self._loop.call_later(_LOOK_S, self._ring_late)
        if not self._scheduled and self._queue.arm():
            self._scheduled = True
            self._loop.call_soon(self._ring)

    def _ring_late(self) -> None:
        self._look = None
        self._ring()

    def _ring(self) -> None:
        self._scheduled = False
        self._fetch()

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self._look is not None:
            self._look.cancel()


class _Call:
    """What one call waits for: requests for ranges, a group of blocks, or a lookup."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[None] = loop.create_future()
        self.ends: dict[int, Completion | GroupEnd] = {}
        self.tickets: list[int] = []
        self.complete = False

    def settle(self) -> None:
        """Wakes the caller when everything was submitted and has ended."""
        if self.complete and len(self.ends) == len(self.tickets) and not self.future.done():
            self.future.set_result(None)


def _rest(numbers: Numbers, done: int) -> Numbers:
    """What is left of an array; an integer is for all requests."""
    return numbers[done:] if isinstance(numbers, Sized) else numbers


def _one(key: BlockName | Keys) -> Iterable[BlockName] | Keys:
    """A key as keys."""
    return key if isinstance(key, Keys) else [key]


class Queue:
    """A queue of a volume or of a namespace whose calls are awaited, in the loop that made it.

    >>> async with kvrail.aio.Queue(space) as blocks:  # doctest: +SKIP
    ...     hits = await blocks.get_many(keys, (arena, positions, lengths))

    Calls for ranges are for a volume's queue, calls for blocks for a namespace's. A task that is
    cancelled leaves its requests in flight: their memory is not free before :meth:`drain` returns.
    """

    def __init__(self, of: Volume | Namespace, depth: int = 128) -> None:
        queue = of.open_queue(depth) if isinstance(of, Volume) else of.queue(depth)
        # The compiled queue refuses, with the reason, what its volume or namespace does not have.
        self._ranges_of = cast("_Queue[Completion]", queue)
        self._blocks_of = cast("_Queue[GroupEnd]", queue)
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, _Call] = {}
        self._news = asyncio.Event()
        self._bell = _Bell(self._ranges_of, self._fetch)

    async def read(
        self,
        arena: Arena,
        offset: int,
        length: int,
        position: int = 0,
        **options: Unpack[Options],
    ) -> Completion:
        """Fills ``length`` bytes of the arena with the volume's."""
        return (await self.read_many(arena, [offset], [position], length, **options))[0]

    async def write(
        self,
        arena: Arena,
        offset: int,
        length: int,
        position: int = 0,
        **options: Unpack[Options],
    ) -> Completion:
        """Writes ``length`` bytes of the arena to the volume."""
        return (await self.write_many(arena, [offset], [position], length, **options))[0]

    async def read_many(
        self,
        arena: Arena,
        offsets: Numbers,
        positions: Numbers,
        length: Numbers,
        **options: Unpack[Options],
    ) -> list[Completion]:
        """Reads many ranges; the first that failed raises its exception."""
        numbers = (offsets, positions, length)
        return await self._ranges(self._ranges_of.read_many, arena, numbers, options)

    async def write_many(
        self,
        arena: Arena,
        offsets: Numbers,
        positions: Numbers,
        length: Numbers,
        **options: Unpack[Options],
    ) -> list[Completion]:
        """Writes many ranges; the first that failed raises its exception."""
        numbers = (offsets, positions, length)
        return await self._ranges(self._ranges_of.write_many, arena, numbers, options)

    async def read_blocks(
        self,
        region: GpuRegion,
        offsets: Numbers,
        blocks: Numbers,
        *,
        part: tuple[int, int] | None = None,
        **options: Unpack[Options],
    ) -> list[Completion]:
        """Fills blocks of GPU memory; the first that failed raises its exception."""
        submit = functools.partial(self._ranges_of.read_blocks, part=part)
        return await self._ranges(submit, region, (offsets, blocks), options)

    async def write_blocks(
        self,
        region: GpuRegion,
        offsets: Numbers,
        blocks: Numbers,
        *,
        part: tuple[int, int] | None = None,
        **options: Unpack[Options],
    ) -> list[Completion]:
        """Writes blocks of GPU memory; the first that failed raises its exception."""
        submit = functools.partial(self._ranges_of.write_blocks, part=part)
        return await self._ranges(submit, region, (offsets, blocks), options)

    async def flush(self) -> Completion:
        """Makes every write that was completed before durable."""
        call = _Call(self._loop)
        while not call.tickets:
            try:
                self._add(call, [self._ranges_of.flush()])
            except QueueFullError:
                await self._wait_for_news()
        return (await self._completions(call))[0]

    async def put(
        self, key: BlockName | Keys, buffer: BlockMemory, **options: Unpack[PutOptions]
    ) -> str:
        """Puts one block; its status, as :meth:`kvrail.Namespace.put`."""
        results = await self.put_many(_one(key), [buffer], **options)
        results.check()
        return results[0]

    async def get(
        self, key: BlockName | Keys, buffer: BlockMemory, **options: Unpack[BlockOptions]
    ) -> int | None:
        """Fills the buffer with a block; its length, or None if it is not there."""
        results = await self.get_many(_one(key), [buffer], **options)
        if results[0] != "DEVICE_GONE":
            results.check()
        return results.lengths[0] if results.all_ok else None

    async def get_bytes(
        self, key: BlockName | Keys, **options: Unpack[BlockOptions]
    ) -> bytes | None:
        """The bytes of one block (copied twice), or None if it is not there."""
        room = _EXPECTED_BYTES
        while True:
            buffer = bytearray(room)
            results = await self.get_many(_one(key), [buffer], **options)
            if results[0] == "TOO_SMALL":
                room = results.lengths[0]
                continue
            if results[0] != "DEVICE_GONE":
                results.check()
            return bytes(buffer[: results.lengths[0]]) if results.all_ok else None

    async def put_many(
        self,
        keys: Iterable[BlockName] | Keys,
        buffers: Iterable[BlockMemory] | BlockMemory | tuple[Arena, Numbers, Numbers],
        **options: Unpack[PutOptions],
    ) -> Results:
        """As :meth:`kvrail.Namespace.put_many`."""
        return await self._results(self._blocks_of.submit_put(keys, buffers, **options))

    async def get_many(
        self,
        keys: Iterable[BlockName] | Keys,
        buffers: Iterable[BlockMemory] | BlockMemory | tuple[Arena, Numbers, Numbers],
        **options: Unpack[BlockOptions],
    ) -> Results:
        """As :meth:`kvrail.Namespace.get_many`."""
        return await self._results(self._blocks_of.submit_get(keys, buffers, **options))

    async def drop(
        self, keys: Iterable[BlockName] | Keys, **options: Unpack[DropOptions]
    ) -> Results:
        """As :meth:`kvrail.Namespace.drop`."""
        return await self._results(self._blocks_of.submit_drop(keys, **options))

    async def lookup(
        self, keys: Iterable[BlockName] | Keys, *, hold: float = 0.0, prefix_only: bool = False
    ) -> Found:
        """As :meth:`kvrail.Namespace.lookup`; no device is asked."""
        ticket = self._blocks_of.submit_lookup(keys, hold=hold, prefix_only=prefix_only)
        found = (await self._group_end(ticket)).found
        assert found is not None
        return found

    async def drain(self) -> None:
        """Waits until nothing is in flight, cancelled calls included."""
        while self._waiting:
            await self._wait_for_news()

    async def close(self) -> None:
        """Waits until nothing is in flight, and closes the queue."""
        if self._ranges_of.closed:
            self._give_up()
        await self.drain()
        self._bell.close()
        self._ranges_of.close()

    async def __aenter__(self) -> "Queue":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _ranges(
        self,
        submit: Callable[..., range],
        memory: Arena | GpuRegion,
        numbers: tuple[Numbers, ...],
        options: Options,
    ) -> list[Completion]:
        call = _Call(self._loop)
        count = max((len(it) for it in numbers if isinstance(it, Sized)), default=1)
        try:
            while (done := len(call.tickets)) < count:
                rest = (_rest(it, done) for it in numbers) if done else numbers
                tickets = submit(memory, *rest, **options)
                self._add(call, tickets)
                if not tickets:
                    await self._wait_for_news()
        except Exception:
            # What went out before the one that cannot be still uses its memory.
            await self._ended(call)
            raise
        return await self._completions(call)

    async def _completions(self, call: _Call) -> list[Completion]:
        await self._ended(call)
        ends = [cast(Completion, call.ends[ticket]) for ticket in call.tickets]
        failed = [(at, end.status) for at, end in enumerate(ends) if not end.ok]
        if failed:
            try:
                ends[failed[0][0]].check()
            except KvrailError as error:
                error.failed = failed
                raise
        return ends

    async def _results(self, ticket: int) -> Results:
        results = (await self._group_end(ticket)).results
        assert results is not None
        if {"RESTARTED", "DRAINING", "INTERNAL", "INVALID"} & results.counts.keys():
            results.check()
        return results

    async def _group_end(self, ticket: int) -> GroupEnd:
        call = _Call(self._loop)
        self._add(call, [ticket])
        await self._ended(call)
        return cast(GroupEnd, call.ends[ticket])

    def _add(self, call: _Call, tickets: Iterable[int]) -> None:
        for ticket in tickets:
            call.tickets.append(ticket)
            self._waiting[ticket] = call
        self._arm()

    async def _ended(self, call: _Call) -> None:
        call.complete = True
        call.settle()
        await call.future

    async def _wait_for_news(self) -> None:
        if self._ranges_of.closed:
            return self._give_up()
        self._news.clear()
        if self._ranges_of.outstanding:
            await self._news.wait()
        else:
            await asyncio.sleep(0)

    def _arm(self) -> None:
        if self._waiting:
            self._bell.arm()

    def _fetch(self) -> None:
        if self._ranges_of.closed:
            return self._give_up()
        ends: list[Completion | GroupEnd] = [*self._ranges_of.poll()]
        for end in ends:
            if isinstance(end, Completion) and end.is_notice:
                continue
            if call := self._waiting.pop(end.ticket, None):
                call.ends[end.ticket] = end
                call.settle()
        self._news.set()
        self._arm()

    def _give_up(self) -> None:
        for call in self._waiting.values():
            if not call.future.done():
                call.future.set_exception(ClosedError(_CLOSED))
        self._waiting.clear()
        self._news.set()
