"""kvrail as a native_plugin L2 adapter of LMCache (tried with LMCache 0.5.6).

    --l2-adapter '{"type": "native_plugin", "module_path": "kvrail_lmcache",
                   "class_name": "KvrailConnector",
                   "adapter_params": {"socket": "/run/kvrail/kvrail.sock", "slot_bytes": 4194304}}'

LMCache hands over buffers one by one and does not say where its memory lies, so each object is
copied once, between its buffer and an arena.
"""

import os
import select
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import kvrail
import numpy
from kvrail_slots import Slots

Completed = tuple[int, bool, str, list[bool] | None]


@dataclass
class _Batch:
    """One call of LMCache."""

    number: int
    results: list[bool]
    missing: int
    error: str = ""
    tells_each: bool = False


@dataclass
class _Piece:
    """One object of a batch."""

    batch: _Batch
    index: int
    key: str
    memory: numpy.ndarray
    load: bool
    offset: int = -1
    position: int = -1


class KvrailConnector:
    """Objects of LMCache in the slots of a volume."""

    def __init__(
        self, socket: str, volume: str = "kv", slot_bytes: int = 4 << 20, staging: int = 32
    ) -> None:
        self._lock = threading.Lock()
        self._client = kvrail.Client(socket, name="lmcache")
        self._volume = self._client.volume(volume)
        self._slots = Slots(self._volume.capacity, slot_bytes)
        self._arena = self._client.create_arena(staging * slot_bytes)
        self._staged = numpy.frombuffer(self._arena, dtype=numpy.uint8)
        self._free = [at * slot_bytes for at in range(staging)]
        # As many pieces as all of the staging memory can fall into.
        pieces = slot_bytes // self._volume.stripe_bytes + 2
        self._queue = self._volume.open_queue(staging * pieces)
        self._waiting: deque[_Piece] = deque()
        self._flying: dict[int, _Piece] = {}
        self._done: list[Completed] = []
        self._number = 0
        # One descriptor for LMCache: the sidecar's bell, and our own for what needs no device.
        self._own = os.eventfd(0, os.EFD_NONBLOCK)
        self._events = select.epoll()
        self._events.register(self._queue.fileno(), select.EPOLLIN)
        self._events.register(self._own, select.EPOLLIN)

    def event_fd(self) -> int:
        return self._events.fileno()

    def submit_batch_set(self, keys: Sequence[str], memoryviews: Sequence[memoryview]) -> int:
        return self._submit(keys, memoryviews, load=False)

    def submit_batch_get(self, keys: Sequence[str], memoryviews: Sequence[memoryview]) -> int:
        return self._submit(keys, memoryviews, load=True)

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        with self._lock:
            return self._answer([key in self._slots for key in keys])

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        with self._lock:
            there = [key in self._slots for key in keys]
            self._slots.forget(keys)
            return self._answer(there)

    def drain_completions(self) -> list[Completed]:
        with self._lock:
            try:
                os.eventfd_read(self._own)
            except BlockingIOError:
                pass
            for end in self._queue.poll():
                self._end(self._flying.pop(end.ticket), end.ok, end.status)
            self._start()
            self._arm()
            done, self._done = self._done, []
            return done

    def close(self) -> None:
        with self._lock:
            if not self._client.closed:
                self._events.close()
                os.close(self._own)
                self._client.close()

    def _submit(
        self, keys: Sequence[str], memoryviews: Sequence[memoryview], *, load: bool
    ) -> int:
        with self._lock:
            self._number += 1
            batch = _Batch(self._number, [False] * len(keys), len(keys), tells_each=load)
            for index, (key, memory) in enumerate(zip(keys, memoryviews, strict=True)):
                flat = numpy.frombuffer(memory, dtype=numpy.uint8)
                self._waiting.append(_Piece(batch, index, key, flat, load))
            if not keys:
                self._finish(batch)
            self._start()
            self._arm()
            return batch.number

    def _answer(self, results: list[bool]) -> int:
        self._number += 1
        self._done.append((self._number, True, "", results))
        os.eventfd_write(self._own, 1)
        return self._number

    def _start(self) -> None:
        """Submits as much as there is memory to copy to."""
        while self._waiting and self._free:
            piece = self._waiting.popleft()
            place = self._slots.read(piece.key) if piece.load else self._slots.reserve()
            if len(piece.memory) > self._slots.slot_bytes:
                problem = f"{len(piece.memory)} bytes do not fit into a slot; raise slot_bytes"
            elif place is None:
                problem = "not there" if piece.load else "all slots are being read"
            else:
                problem = self._send(piece, place)
            if problem:
                self._fail(piece, place, problem)

    def _send(self, piece: _Piece, place: int) -> str:
        block = self._volume.logical_block
        length = -(-len(piece.memory) // block) * block
        position = self._free.pop()
        try:
            if piece.load:
                ticket = self._queue.read(self._arena, place, length, position)
            else:
                self._staged[position : position + len(piece.memory)] = piece.memory
                ticket = self._queue.write(
                    self._arena, place, length, position, priority="background"
                )
        except kvrail.KvrailError as error:
            self._free.append(position)
            return str(error)
        piece.offset, piece.position = place, position
        self._flying[ticket] = piece
        return ""

    def _fail(self, piece: _Piece, place: int | None, problem: str) -> None:
        if place is not None:
            (self._slots.done if piece.load else self._slots.give_back)(place)
        self._count(piece, False, problem)

    def _end(self, piece: _Piece, ok: bool, status: str) -> None:
        if piece.load:
            if ok:
                piece.memory[:] = self._staged[piece.position :][: len(piece.memory)]
            self._slots.done(piece.offset)
        elif ok:
            self._slots.publish(piece.key, piece.offset)
        else:
            self._slots.give_back(piece.offset)
        # What a dead sidecar left behind may still be written by its devices.
        if status != "RESTARTED":
            self._free.append(piece.position)
        self._count(piece, ok, status)

    def _count(self, piece: _Piece, ok: bool, problem: str) -> None:
        batch = piece.batch
        batch.results[piece.index] = ok
        if not ok:
            batch.error = batch.error or f"{piece.key}: {problem}"
        batch.missing -= 1
        if batch.missing == 0:
            self._finish(batch)

    def _finish(self, batch: _Batch) -> None:
        results = batch.results if batch.tells_each else None
        self._done.append((batch.number, all(batch.results), batch.error, results))
        os.eventfd_write(self._own, 1)

    def _arm(self) -> None:
        if self._flying and self._queue.arm():
            os.eventfd_write(self._own, 1)
