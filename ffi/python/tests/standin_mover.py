"""The work of `kernels/blocks.cu`, by NumPy in memory of the host: with the same tables, slices and
order of sums, so that they are tested where there is no GPU."""

import ctypes
from collections.abc import Sequence

import numpy
from kvrail import _crc
from kvrail._mover import SLICE_UNITS, Batch, Shape, Way

_TABLES = numpy.array(_crc.tables(), dtype=numpy.uint64).reshape(8, 256)
_WEIGHTS = numpy.array(_crc.weights(), dtype=numpy.uint64).reshape(-1, 2)


def _bytes(address: int, nbytes: int) -> numpy.ndarray:
    return numpy.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def _multiply(a: numpy.ndarray, b: numpy.ndarray) -> numpy.ndarray:
    one, product = numpy.uint64(1), numpy.zeros_like(a)
    for bit in range(63, -1, -1):
        product ^= b * (a >> numpy.uint64(bit) & one)
        b = b >> one ^ numpy.uint64(_crc.POLYNOMIAL) * (b & one)
    return product


def _later(sums: numpy.ndarray) -> numpy.ndarray:
    after = numpy.zeros_like(sums)
    for at in range(8):
        after ^= _TABLES[at][sums >> numpy.uint64(8 * at) & numpy.uint64(255)]
    return after


def _slice(units: numpy.ndarray) -> int:
    rows = -(-len(units) // _crc.THREADS)
    filled = numpy.zeros((rows * _crc.THREADS, 2), numpy.uint64)
    filled[rows * _crc.THREADS - len(units) :] = units
    sums = numpy.zeros((_crc.THREADS, 2), numpy.uint64)
    for row in filled.reshape(rows, _crc.THREADS, 2):
        sums = _later(sums) ^ row
    return int(numpy.bitwise_xor.reduce(_multiply(sums, _WEIGHTS), axis=None))


class StandIn:
    """Stands in for `kvrail._mover.Mover`. Begun work is done at the second poll. `spoil` is called
    when a batch was moved, before the pages are summed on the way in: its changes happened to
    GPU memory."""

    def __init__(
        self,
        shape: Shape,
        arena: memoryview,
        *,
        most: int,
        batches: int,
        check: str,
        tier: Sequence[tuple[int, int]] = (),
        keep: object = None,
    ) -> None:
        self._shape, self._keep = shape, keep
        self._arena = (ctypes.c_uint8 * arena.nbytes).from_buffer(arena)
        self.base = ctypes.addressof(self._arena)
        self._behind = list(_crc.behind(shape.units, SLICE_UNITS))
        self._control = [
            ctypes.create_string_buffer(Batch.nbytes(shape, most)) for _ in range(batches)
        ]
        self.batches = [
            Batch(ctypes.addressof(it), shape, most, ctypes.c_void_p(), ctypes.c_void_p())
            for it in self._control
        ]
        self.why_host = "asked for" if check == "host" else None
        self.why_staged = None if tier and self.why_host is None else "the test has no memory tier"
        self.spoil = lambda way, batch: None
        self.ordered: list[tuple[Way, int]] = []
        self.looks: dict[Batch, int] = {}
        self.closed, self.marks = False, 0

    def mark(self, stream: int) -> int:
        self.marks += 1
        return stream

    def unmark(self, mark: int) -> None:
        self.marks -= 1

    def begin(self, way: Way, batch: Batch, behind: int | None = None) -> None:
        if behind is not None:
            self.ordered.append((way, behind))
        for at in range(batch.count):
            if way is Way.OUT:
                self._sum(batch, at)
            self._move(way, batch, at)
        self.spoil(way, batch)
        if way is Way.IN:
            for at in range(batch.count):
                self._sum(batch, at)
        self.looks[batch] = 0

    def _runs(self, batch: Batch, at: int):
        """Of each run of a block: its bytes in the slot, and in the page, or where there is none in
        the slot."""
        shape, slot = self._shape, batch.slots[at]
        for page in batch.pages[at * shape.block_pages : (at + 1) * shape.block_pages]:
            for span in shape.pages.spans:
                paged = span.address + page * span.stride if page >= 0 else slot
                yield _bytes(slot, span.nbytes), _bytes(paged, span.nbytes)
                slot += span.nbytes

    def _move(self, way: Way, batch: Batch, at: int) -> None:
        for staged, paged in self._runs(batch, at):
            target, source = (staged, paged) if way is Way.OUT else (paged, staged)
            if staged.ctypes.data != paged.ctypes.data:  # a memory tier cannot be written
                target[:] = source

    def _sum(self, batch: Batch, at: int) -> None:
        data = numpy.concatenate([paged for _, paged in self._runs(batch, at)])
        units, first = data.view(numpy.uint64).reshape(-1, 2), at * self._shape.slices
        for number in range(self._shape.slices):
            total = _slice(units[number * SLICE_UNITS : (number + 1) * SLICE_UNITS])
            batch.sums[first + number] = _crc.multiply(total, self._behind[number])

    def on_gpu(self, address: int) -> int:
        return address

    def is_done(self, batch: Batch) -> bool:
        self.looks[batch] += 1
        return self.looks[batch] > 1

    def crcs(self, batch: Batch) -> list[int]:
        shape = self._shape
        sums = batch.sums[: batch.count * shape.slices]
        return list(_crc.joined(sums, batch.count, shape.slices, shape.block_bytes))

    def close(self) -> None:
        self.closed = True
