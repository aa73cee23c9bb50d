"""Blocks between the pages of a cache in GPU memory and slots in host memory, in this process's own
CUDA context and streams. With kernels that compute CRC-64/NVME where the bytes are; where the
driver does not take them, by plain copies, and the check is the host's."""

import array
import contextlib
import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from kvrail import _crc, _cuda, _lent
from kvrail.errors import GpuError
from kvrail.gpu import Pages, Span

SLICE_UNITS = 32 * _crc.THREADS
"""Units of 16 bytes that a group of threads takes: 128 KiB."""

_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_PORTABLE_MAPPED = 1 | 2
_NON_BLOCKING = 1
_NO_TIMING = 2
# Before kernels of the model that have not begun: a load is awaited, and takes little of a GPU.
_FIRST = -100  # clamped to the device's highest
_KERNELS = Path(__file__).with_name("blocks.ptx")
_UNIFIED = 4  # CU_MEMORYTYPE_UNIFIED: addresses tell whose memory it is
_PITCH_MAX = (1 << 31) - 1  # CU_DEVICE_ATTRIBUTE_MAX_PITCH
# Copies of this size leave the bus idle for a fiftieth of their time, smaller ones for longer than
# a kernel that moves all runs of a batch.
_COPY_BYTES = 1 << 20


class Way(Enum):
    """Where blocks are moved."""

    OUT = "gather"
    IN = "scatter"


class _Launch(ctypes.Structure):
    """The same layout as `Launch` in `kernels/blocks.cu`."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("fragments", "tables", "weights", "behind")),
        *((name, ctypes.c_uint64) for name in ("pages", "slots", "sums")),
        *((name, ctypes.c_uint32) for name in ("block_pages", "page_units")),
        *((name, ctypes.c_uint32) for name in ("slice_units", "slices")),
    ]


class _Copy(ctypes.Structure):
    """`CUDA_MEMCPY2D`."""

    _fields_ = [
        (f"{end}_{name}", of)
        for end in ("from", "to")
        for name, of in (
            ("x", ctypes.c_size_t),
            ("y", ctypes.c_size_t),
            ("type", ctypes.c_uint),
            ("host", ctypes.c_void_p),
            ("address", ctypes.c_uint64),
            ("array", ctypes.c_void_p),
            ("pitch", ctypes.c_size_t),
        )
    ] + [("nbytes", ctypes.c_size_t), ("count", ctypes.c_size_t)]


@dataclass(frozen=True)
class Rows:
    """Runs of a page that lie evenly in the cache and in a block: one copy moves them."""

    at: int
    """Where the first begins in the bytes of a page."""
    step: int
    """From one to the next there."""
    address: int
    """Of the first run of page 0."""
    pitch: int
    """From one to the next there."""
    stride: int
    """From one page to the next."""
    nbytes: int
    """Of one run."""
    allocation: int = 0
    """The one that all of them are in."""
    count: int = 1

    def behind(self, row: "Rows") -> "Rows | None":
        """These and one more, if it lies as they do."""
        step, pitch = self.step, self.pitch
        if self.count == 1:
            step, pitch = row.at - self.at, row.address - self.address
        of_next = (self.at + self.count * step, self.address + self.count * pitch)
        is_next = of_next == (row.at, row.address)
        alike = (row.stride, row.nbytes, row.allocation)
        is_even = alike == (self.stride, self.nbytes, self.allocation)
        if not (is_next and is_even and self.nbytes <= pitch <= _PITCH_MAX):
            return None
        return replace(self, step=step, pitch=pitch, count=self.count + 1)


def _joined(rows: Sequence[Rows]) -> list[Rows]:
    joined: list[Rows] = []
    for row in rows:
        together = joined[-1].behind(row) if joined else None
        if together is None:
            joined.append(row)
        else:
            joined[-1] = together
    return joined


@dataclass(frozen=True)
class Shape:
    """The moved blocks, of this number of pages each."""

    pages: Pages
    block_pages: int

    @functools.cached_property
    def page_bytes(self) -> int:
        return self.pages.page_bytes

    @functools.cached_property
    def block_bytes(self) -> int:
        return self.block_pages * self.page_bytes

    @property
    def units(self) -> int:
        return self.block_bytes // _crc.UNIT

    @functools.cached_property
    def slices(self) -> int:
        return -(-self.units // SLICE_UNITS)

    def copies(self, allocations: Sequence[int]) -> list[Rows]:
        """The fewest copies that move a page: of all runs in a row, or of K and V apart.

        :param allocations: for each run the allocation it is in: no copy reaches into two.
        """
        rows, at = [], 0
        for it, of in zip(self.pages.spans, allocations, strict=True):
            rows.append(Rows(at, it.nbytes, it.address, it.nbytes, it.stride, it.nbytes, of))
            at += it.nbytes
        apart = [*_joined(rows[::2]), *_joined(rows[1::2])]
        return min(_joined(rows), apart, key=len)

    def fragments(self) -> "array.array[int]":
        """The rows of `Fragment` in `kernels/blocks.cu`."""
        rows, end = array.array("Q"), 0
        for span in self.pages.spans:
            end += span.nbytes // _crc.UNIT
            rows.extend((span.address, span.stride, end))
        return rows


class Batch:
    """Blocks that move together: what the kernels read and write of them, and the events of their
    end and, on the way in, of their bytes' arrival in the pages."""

    def __init__(
        self,
        address: int,
        shape: Shape,
        most: int,
        event: ctypes.c_void_p,
        arrived: ctypes.c_void_p,
    ) -> None:
        count = most * shape.block_pages
        self.event, self.arrived, self.count = event, arrived, 0
        self.sums = (ctypes.c_uint64 * (most * shape.slices)).from_address(address)
        self.slots = (ctypes.c_uint64 * most).from_address(address + ctypes.sizeof(self.sums))
        behind = ctypes.addressof(self.slots) + ctypes.sizeof(self.slots)
        self.pages = (ctypes.c_int32 * count).from_address(behind)

    @staticmethod
    def nbytes(shape: Shape, most: int) -> int:
        return -(-most * (8 * shape.slices + 8 + 4 * shape.block_pages) // 256) * 256

    def fill(self, slots: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        """:param slots: for each block where its bytes are, by the GPU's addresses."""
        self.count = len(slots)
        for at, slot in enumerate(slots):
            self.slots[at] = slot
        for at, page in enumerate(page for row in rows for page in row):
            self.pages[at] = page


class Mover:
    """The GPU that a cache is on. Blocks are moved to and from `arena`, and from `tier`; at most
    `batches` of `most` blocks are in flight."""

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
        """
        :param tier: memory that is only read, and where blocks may lie: addresses and bytes.
        :param keep: with it that memory stays mapped.
        """
        self._driver = driver = _cuda.load()
        self._shape = shape
        self._device = ctypes.c_int(
            driver.attribute("the cache", shape.pages.spans[0].address, _ORDINAL)
        )
        self._context = ctypes.c_void_p()
        self._open: list[tuple[str, Any]] = []
        self._call = functools.partial(driver.call)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self.why_host: str | None = "asked for" if check == "host" else None
        """Why the check is the host's; none where the GPU computes it."""
        self._lent: _lent.Lent | None = None
        try:
            with driver.within(self._context):
                self._prepare(arena, most, batches)
            if tier and self.why_host is None:
                self._lent = _lent.lend(driver, self._device.value, tier, keep)
        except BaseException:
            self.close()
            raise

    def _prepare(self, arena: memoryview, most: int, batches: int) -> None:
        self._arena = (ctypes.c_ubyte * arena.nbytes).from_buffer(arena)
        self.base = ctypes.addressof(self._arena)
        base, nbytes = ctypes.c_void_p(self.base), ctypes.c_size_t(arena.nbytes)
        self._call("cuMemHostRegister_v2", base, nbytes, ctypes.c_uint(_PORTABLE_MAPPED))
        self._open.append(("cuMemHostUnregister", base))
        mapped = ctypes.c_uint64()
        self._call("cuMemHostGetDevicePointer_v2", ctypes.byref(mapped), base, ctypes.c_uint(0))
        self._offset = mapped.value - self.base
        self._streams = {Way.OUT: self._stream(), Way.IN: self._stream(_FIRST)}
        # Batches are checked while the next ones are moved, which do not wait for that.
        self._checks = self._stream(_FIRST)
        self._marks: list[ctypes.c_void_p] = []
        self._rows = self._shape.copies([self._allocation(it.address) for it in self._spans])
        each = Batch.nbytes(self._shape, most)
        control = ctypes.c_void_p()
        self._call(
            "cuMemHostAlloc",
            ctypes.byref(control),
            ctypes.c_size_t(each * batches),
            ctypes.c_uint(_PORTABLE_MAPPED),
        )
        self._open.append(("cuMemFreeHost", control))
        first = control.value or 0
        self.batches = [
            Batch(first + each * at, self._shape, most, self._event(), self._event())
            for at in range(batches)
        ]
        if self.why_host is None:
            self._load()

    def _load(self) -> None:
        """The kernels and their tables; without them the host checks."""
        module = ctypes.c_void_p()
        try:
            self._call("cuModuleLoadData", ctypes.byref(module), _KERNELS.read_bytes() + b"\0")
        except GpuError as error:
            self.why_host = f"the driver does not take the kernels ({error})"
            return
        self._open.append(("cuModuleUnload", module))
        self._kernels = {name: ctypes.c_void_p() for name in ("gather", "scatter", "check")}
        for name, kernel in self._kernels.items():
            symbol = f"kvrail_blocks_{name}".encode()
            self._call("cuModuleGetFunction", ctypes.byref(kernel), module, symbol)
        shape = self._shape
        self._launch = _Launch(
            fragments=self._constant(shape.fragments()),
            tables=self._constant(_crc.tables()),
            weights=self._constant(_crc.weights()),
            behind=self._constant(_crc.behind(shape.units, SLICE_UNITS)),
            block_pages=shape.block_pages,
            page_units=shape.page_bytes // _crc.UNIT,
            slice_units=SLICE_UNITS,
            slices=shape.slices,
        )

    @property
    def _spans(self) -> Sequence[Span]:
        return self._shape.pages.spans

    def _allocation(self, address: int) -> int:
        base, nbytes = ctypes.c_uint64(), ctypes.c_size_t()
        which = (ctypes.byref(base), ctypes.byref(nbytes), ctypes.c_uint64(address))
        self._call("cuMemGetAddressRange_v2", *which)
        return base.value

    def _constant(self, rows: "array.array[int]") -> int:
        address, (at, count) = ctypes.c_uint64(), rows.buffer_info()
        nbytes = ctypes.c_size_t(count * rows.itemsize)
        self._call("cuMemAlloc_v2", ctypes.byref(address), nbytes)
        self._open.append(("cuMemFree_v2", address))
        self._call("cuMemcpyHtoD_v2", address, ctypes.c_void_p(at), nbytes)
        return address.value

    def _stream(self, priority: int = 0) -> ctypes.c_void_p:
        stream, flags = ctypes.c_void_p(), ctypes.c_uint(_NON_BLOCKING)
        name = "cuStreamCreateWithPriority"
        self._call(name, ctypes.byref(stream), flags, ctypes.c_int(priority))
        self._open.append(("cuStreamDestroy_v2", stream))
        return stream

    def _event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(_NO_TIMING))
        self._open.append(("cuEventDestroy_v2", event))
        return event

    def mark(self, stream: int) -> ctypes.c_void_p:
        """The work that a stream has now, for work that is to run behind it."""
        with self._driver.within(self._context):
            mark = self._marks.pop() if self._marks else self._event()
            self._call("cuEventRecord", mark, ctypes.c_void_p(stream))
        return mark

    def unmark(self, mark: ctypes.c_void_p) -> None:
        """Nothing more is begun behind it."""
        self._marks.append(mark)

    def begin(self, way: Way, batch: Batch, behind: ctypes.c_void_p | None = None) -> None:
        """Moves blocks between their pages and their slots, and computes the CRCs of the pages;
        behind work that was marked. After an error nothing of the batch moves any more."""
        try:
            self._begin(way, batch, behind)
        except GpuError:
            self._settle(way)
            raise

    def _begin(self, way: Way, batch: Batch, behind: ctypes.c_void_p | None) -> None:
        stream = self._streams[way]
        with self._driver.within(self._context):
            if behind is not None:
                self._call("cuStreamWaitEvent", stream, behind, ctypes.c_uint(0))
            if self.why_host is not None:
                self._copy(way, batch, stream)
            elif way is Way.OUT or not self._copied(batch, stream):
                self._run(way.value, batch, stream)
            if self.why_host is None and way is Way.IN:
                # Of the bytes in the pages now, not of those that were read for them.
                self._call("cuEventRecord", batch.arrived, stream)
                stream = self._checks
                self._call("cuStreamWaitEvent", stream, batch.arrived, ctypes.c_uint(0))
                self._run("check", batch, stream)
            self._call("cuEventRecord", batch.event, stream)

    def _settle(self, way: Way) -> None:
        """Waits for a batch that was begun in part, and has no event: its pages are the caller's
        next, and its slots are freed. A GPU that has failed moves nothing."""
        for stream in (self._streams[way], self._checks):
            with contextlib.suppress(GpuError), self._driver.within(self._context):
                self._call("cuStreamSynchronize", stream)

    @property
    def copies(self) -> bool:
        """Whether the GPU's copy engines fill pages: beside a model's kernels, which a kernel of
        ours would wait for. Where runs lie unevenly, or are small together, a kernel does."""
        return 0 < _COPY_BYTES * len(self._rows) <= self._shape.page_bytes

    @property
    def why_staged(self) -> str | None:
        """Why blocks that lie in the tier move through the arena; none where the GPU reads them
        there."""
        if self.why_host is not None:
            return "the host checks blocks"
        return "the sidecar shows no memory tier" if self._lent is None else self._lent.why

    def _run(self, kernel: str, batch: Batch, stream: ctypes.c_void_p) -> None:
        launch = self._launch
        launch.pages = ctypes.addressof(batch.pages)
        launch.slots = ctypes.addressof(batch.slots)
        launch.sums = ctypes.addressof(batch.sums)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(launch))
        grid = (self._shape.slices, batch.count, 1, _crc.THREADS, 1, 1, 0)
        sizes = [ctypes.c_uint(it) for it in grid]
        self._call("cuLaunchKernel", self._kernels[kernel], *sizes, stream, parameters, None)

    def _copied(self, batch: Batch, stream: ctypes.c_void_p) -> bool:
        """Whether copy engines fill the pages. Where the driver refuses, a kernel does from then
        on: allocators may put memory together in ways that it does not show."""
        if not self.copies:
            return False
        try:
            self._copy(Way.IN, batch, stream)
        except GpuError:
            self._rows = []
            return False
        return True

    def _copy(self, way: Way, batch: Batch, stream: ctypes.c_void_p) -> None:
        page_bytes, places = self._shape.page_bytes, range(self._shape.block_pages)
        pages = iter(batch.pages)
        for slot in batch.slots[: batch.count]:
            for at, page in zip(places, pages, strict=False):
                for rows in self._rows if page >= 0 else ():
                    staged = (slot + at * page_bytes + rows.at, rows.step)
                    paged = (rows.address + page * rows.stride, rows.pitch)
                    source, target = (staged, paged) if way is Way.IN else (paged, staged)
                    self._copy_rows(source, target, rows, stream)

    def _copy_rows(
        self, source: tuple[int, int], target: tuple[int, int], rows: Rows, stream: ctypes.c_void_p
    ) -> None:
        (address, pitch), (to_address, to_pitch) = source, target
        copy = _Copy(
            from_type=_UNIFIED,
            from_address=address,
            from_pitch=pitch,
            to_type=_UNIFIED,
            to_address=to_address,
            to_pitch=to_pitch,
            nbytes=rows.nbytes,
            count=rows.count,
        )
        self._call("cuMemcpy2DAsync_v2", ctypes.byref(copy), stream)

    def on_gpu(self, address: int) -> int:
        """The GPU's address of a place in the arena or the tier."""
        in_arena = 0 <= address - self.base < ctypes.sizeof(self._arena)
        if in_arena or self._lent is None:
            return address + self._offset
        return self._lent.on_gpu(address)

    def is_done(self, batch: Batch) -> bool:
        with self._driver.within(self._context):
            return self._driver.is_done(batch.event)

    def crcs(self, batch: Batch) -> list[int]:
        """The CRCs of the pages of a batch that is done."""
        shape = self._shape
        sums = batch.sums[: batch.count * shape.slices]
        return list(_crc.joined(sums, batch.count, shape.slices, shape.block_bytes))

    def close(self) -> None:
        """Frees everything. Nothing may be in flight."""
        lent, self._lent = self._lent, None
        if lent is not None:
            lent.give_back()
        opened, self._open = self._open[::-1], []
        # A GPU that has failed, or a driver that is being unloaded, has freed it already.
        with contextlib.suppress(GpuError), self._driver.within(self._context):
            for release, what in opened:
                with contextlib.suppress(GpuError):
                    self._call(release, what)
        with contextlib.suppress(GpuError):
            self._call("cuDevicePrimaryCtxRelease_v2", self._device)
