"""Arrays by name in a kvrail store: cut into parts, and there as a whole or not at all.

The KV-cache benchmark of MLPerf Storage has objects of up to some GiB; the longest block of a store
has half a segment. An object is parts of one length and a shorter last one. A write has a number of
its own in the keys of its parts, so parts of two writes of a name never mix. Parts lie side by side
in one arena: an array that was read is a view of it, and its memory is used again when the last
view is gone.
"""

import itertools
import os
import threading
import time
import weakref
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import kvrail
import numpy


@dataclass(frozen=True)
class Took:
    """Seconds of a read or write: all of it, and the part that waited for the sidecar."""

    total: float
    device: float

    @property
    def host(self) -> float:
        return self.total - self.device


class NotWrittenError(RuntimeError):
    """The store did not take all parts of an object: it has none of them now."""


class Ranges:
    """Ranges of an arena, first fit. Any thread takes; a finalizer may give back at any time."""

    def __init__(self, nbytes: int, unit: int) -> None:
        self._nbytes, self._unit = nbytes, unit
        self._free = [(0, nbytes // unit * unit)]  # first byte, first byte behind
        self._lock = threading.Lock()
        # A finalizer runs in the middle of anything, with the lock held as well: it takes no lock.
        self._returned: SimpleQueue[tuple[int, int]] = SimpleQueue()

    def take(self, nbytes: int, patience: float) -> tuple[int, int]:
        """A range of so many bytes or a few more. Waits until others have given enough back."""
        wanted = -(-max(nbytes, 1) // self._unit) * self._unit
        until = time.monotonic() + patience
        with self._lock:
            while True:
                while not self._returned.empty():
                    self._join(self._returned.get())
                for at, (first, behind) in enumerate(self._free):
                    if behind - first >= wanted:
                        rest = (first + wanted, behind)
                        self._free[at : at + 1] = [rest] if rest[0] < behind else []
                        return first, first + wanted
                self._wait(wanted, until - time.monotonic())

    def give_back(self, taken: tuple[int, int]) -> None:
        self._returned.put(taken)

    def _wait(self, wanted: int, seconds: float) -> None:
        try:
            self._join(self._returned.get(timeout=max(seconds, 0.0)))
        except Empty:
            raise MemoryError(
                f"the arena of {self._nbytes} bytes has no {wanted} bytes side by side: "
                "arrays that are still in use fill it; make it larger"
            ) from None

    def _join(self, returned: tuple[int, int]) -> None:
        insort(self._free, returned)
        joined: list[tuple[int, int]] = []
        for first, behind in self._free:
            if joined and joined[-1][1] == first:
                joined[-1] = (joined[-1][0], behind)
            else:
                joined.append((first, behind))
        self._free = joined


@dataclass(frozen=True)
class Entry:
    """An object that was written: how its bytes are read, and the keys of its parts."""

    shape: tuple[int, ...]
    dtype: numpy.dtype
    nbytes: int
    keys: kvrail.Keys


class Objects:
    """Arrays by name. Any thread may call; `calls` of them use the store at once."""

    def __init__(
        self,
        client: kvrail.Client,
        store: str = "kv",
        namespace: str = "mlperf",
        *,
        arena_bytes: int = 2 << 30,
        part_bytes: int = 8 << 20,
        durable: bool = True,
        calls: int = 16,
        patience: float = 60.0,
    ) -> None:
        opened = client.store(store)
        if part_bytes > opened.block_bytes_max:
            most = opened.block_bytes_max
            raise ValueError(f"a part has {part_bytes} bytes, a block of the store at most {most}")
        if part_bytes % opened.memory_alignment:
            raise ValueError(f"parts are multiples of {opened.memory_alignment} bytes")
        self._space = opened.namespace(namespace, {"part_bytes": part_bytes})
        self._part, self._durable, self._patience = part_bytes, durable, patience
        self._arena = client.create_arena(arena_bytes)
        self._bytes = numpy.frombuffer(self._arena, dtype=numpy.uint8)
        self._ranges = Ranges(self._bytes.size, opened.memory_alignment)
        self._calls = threading.BoundedSemaphore(calls)
        # Parts of an earlier process have other keys, whatever is still in the namespace.
        self._process, self._writes = os.urandom(8), itertools.count()
        self._entries: dict[str, Entry] = {}
        self._lock = threading.Lock()

    def write(self, name: str, array: numpy.ndarray) -> Took:
        """Puts the array as this object, in place of what had the name."""
        began = time.perf_counter()
        raw = numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)
        entry = Entry(array.shape, array.dtype, raw.size, self._new_keys(raw.size))
        taken = self._take(raw.size)
        try:
            self._bytes[taken[0] : taken[0] + raw.size] = raw
            copied = time.perf_counter()
            self._put(name, entry, taken[0])
            device = time.perf_counter() - copied
        finally:
            self._ranges.give_back(taken)
        with self._lock:
            before, self._entries[name] = self._entries.get(name), entry
        if before is not None:
            self._drop(before.keys)
        return Took(time.perf_counter() - began, device)

    def read(self, name: str) -> tuple[numpy.ndarray, Took]:
        """The object, in the arena. KeyError: it is not there, or a part of it is not."""
        began = time.perf_counter()
        with self._lock:
            entry = self._entries.get(name)
        if entry is None:
            raise KeyError(f"there is no object {name!r}")
        taken = self._take(entry.nbytes)
        # Views keep the first array of the chain whose base is no array: it must be this one.
        room = memoryview(self._arena)[taken[0] : taken[0] + entry.nbytes]
        held = numpy.ndarray(entry.nbytes, numpy.uint8, buffer=room)
        weakref.finalize(held, self._ranges.give_back, taken)
        asked = time.perf_counter()
        self._get(name, entry, taken[0])
        device = time.perf_counter() - asked
        array = held.view(entry.dtype).reshape(entry.shape)
        return array, Took(time.perf_counter() - began, device)

    def delete(self, name: str) -> None:
        """Drops all parts of the object, if it is there."""
        with self._lock:
            entry = self._entries.pop(name, None)
        if entry is not None:
            self._drop(entry.keys)

    def clear(self) -> None:
        """Drops all objects, of earlier processes too."""
        with self._lock:
            self._entries.clear()
        self._space.clear()

    def _new_keys(self, nbytes: int) -> kvrail.Keys:
        """An object's key is the process and the number of the write; a part's has its place."""
        of_object = self._process + next(self._writes).to_bytes(8, "little")
        parts = -(-nbytes // self._part)
        return kvrail.Keys([of_object + at.to_bytes(4, "little") for at in range(parts)])

    def _places(self, entry: Entry, first: int) -> tuple[kvrail.Arena, list[int], list[int]]:
        starts = range(0, entry.nbytes, self._part)
        lengths = [min(self._part, entry.nbytes - start) for start in starts]
        return self._arena, [first + start for start in starts], lengths

    def _take(self, nbytes: int) -> tuple[int, int]:
        if nbytes > self._bytes.size:
            raise MemoryError(f"an object of {nbytes} bytes in an arena of {self._bytes.size}")
        return self._ranges.take(nbytes, self._patience)

    def _put(self, name: str, entry: Entry, first: int) -> None:
        if not entry.nbytes:
            return
        places = self._places(entry, first)
        with self._calls:
            puts = self._space.put_many(entry.keys, places, durable=self._durable)
        if puts.counts == {"OK": len(entry.keys)}:
            return
        self._drop(entry.keys)
        puts.check()
        raise NotWrittenError(f"object {name!r}: {_of_parts(puts)} {puts.declines}")

    def _get(self, name: str, entry: Entry, first: int) -> None:
        if not entry.nbytes:
            return
        places = self._places(entry, first)
        with self._calls:
            gets = self._space.get_many(entry.keys, places)
        if gets.all_ok and list(gets.lengths) == places[2]:
            return
        gets.check()
        with self._lock:
            if self._entries.get(name) is entry:
                del self._entries[name]
        self._drop(entry.keys)
        raise KeyError(f"object {name!r} is not whole: {_of_parts(gets)}")

    def _drop(self, keys: kvrail.Keys) -> None:
        if len(keys):
            with self._calls:
                self._space.drop(keys)


def _of_parts(results: Sequence[str]) -> str:
    """What became of the parts that are not there."""
    bad = [word for word in results if word != "OK"]
    return f"{len(bad)} of {len(results)} parts are {', '.join(sorted(set(bad)))}"
