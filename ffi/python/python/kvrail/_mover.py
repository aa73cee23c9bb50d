"""Blocks between the pages of a cache in GPU memory and slots in host memory, in this process's own
CUDA context and streams. With kernels that compute CRC-64/NVME where the bytes are; where the
driver does not take them, by plain copies, and the check is the host's."""

import array
import contextlib
import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from kvrail import _crc, _cuda
from kvrail.errors import GpuError
from kvrail.gpu import Pages

SLICE_UNITS = 32 * _crc.THREADS
"""Units of 16 bytes that a group of threads takes: 128 KiB."""

_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_PORTABLE_MAPPED = 1 | 2
_NON_BLOCKING = 1
_NO_TIMING = 2
# Before kernels of the model that have not begun: a load is awaited, and takes little of a GPU.
_FIRST = -100  # clamped to the device's highest
_KERNELS = Path(__file__).with_name("blocks.ptx")


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


@dataclass(frozen=True)
class Shape:
    """The moved blocks, of this number of pages each."""

    pages: Pages
    block_pages: int

    @functools.cached_property
    def block_bytes(self) -> int:
        return self.block_pages * self.pages.page_bytes

    @property
    def units(self) -> int:
        return self.block_bytes // _crc.UNIT

    @functools.cached_property
    def slices(self) -> int:
        return -(-self.units // SLICE_UNITS)

    def fragments(self) -> "array.array[int]":
        """The rows of `Fragment` in `kernels/blocks.cu`."""
        rows, end = array.array("Q"), 0
        for span in self.pages.spans:
            end += span.nbytes // _crc.UNIT
            rows.extend((span.address, span.stride, end))
        return rows


class Batch:
    """Blocks that move together: what the kernels read and write of them, and their event."""

    def __init__(self, address: int, shape: Shape, most: int, event: ctypes.c_void_p) -> None:
        count = most * shape.block_pages
        self.event, self.count = event, 0
        self.sums = (ctypes.c_uint64 * (most * shape.slices)).from_address(address)
        self.slots = (ctypes.c_uint64 * most).from_address(address + ctypes.sizeof(self.sums))
        behind = ctypes.addressof(self.slots) + ctypes.sizeof(self.slots)
        self.pages = (ctypes.c_int32 * count).from_address(behind)

    @staticmethod
    def nbytes(shape: Shape, most: int) -> int:
        return -(-most * (8 * shape.slices + 8 + 4 * shape.block_pages) // 256) * 256

    def fill(self, slots: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        self.count = len(slots)
        for at, slot in enumerate(slots):
            self.slots[at] = slot
        for at, page in enumerate(page for row in rows for page in row):
            self.pages[at] = page


class Mover:
    """The GPU that a cache is on. `slots` are addresses in `arena`; at most `batches` of `most`
    blocks are in flight."""

    def __init__(
        self, shape: Shape, arena: memoryview, *, most: int, batches: int, check: str
    ) -> None:
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
        try:
            with driver.within(self._context):
                self._prepare(arena, most, batches)
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
        self._marks: list[ctypes.c_void_p] = []
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
            Batch(first + each * at, self._shape, most, self._event()) for at in range(batches)
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
            page_units=shape.pages.page_bytes // _crc.UNIT,
            slice_units=SLICE_UNITS,
            slices=shape.slices,
        )

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
            else:
                self._run(way.value, batch, stream)
                if way is Way.IN:
                    # Of the bytes in the pages now, not of those that were read for them.
                    self._run("check", batch, stream)
            self._call("cuEventRecord", batch.event, stream)

    def _settle(self, way: Way) -> None:
        """Waits for a batch that was begun in part, and has no event: its pages are the caller's
        next, and its slots are freed. A GPU that has failed moves nothing."""
        with contextlib.suppress(GpuError), self._driver.within(self._context):
            self._call("cuStreamSynchronize", self._streams[way])

    def _run(self, kernel: str, batch: Batch, stream: ctypes.c_void_p) -> None:
        launch = self._launch
        launch.pages = ctypes.addressof(batch.pages)
        launch.slots = ctypes.addressof(batch.slots)
        launch.sums = ctypes.addressof(batch.sums)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(launch))
        grid = (self._shape.slices, batch.count, 1, _crc.THREADS, 1, 1, 0)
        sizes = [ctypes.c_uint(it) for it in grid]
        self._call("cuLaunchKernel", self._kernels[kernel], *sizes, stream, parameters, None)

    def _copy(self, way: Way, batch: Batch, stream: ctypes.c_void_p) -> None:
        pages, count = iter(batch.pages), self._shape.block_pages
        for slot in batch.slots[: batch.count]:
            at = slot - self._offset
            for page in (next(pages) for _ in range(count)):
                for span in self._shape.pages.spans:
                    if page >= 0:
                        paged = span.address + page * span.stride
                        self._copy_run(way, at, paged, span.nbytes, stream)
                    at += span.nbytes

    def _copy_run(
        self, way: Way, host: int, paged: int, nbytes: int, stream: ctypes.c_void_p
    ) -> None:
        on_gpu, on_host = ctypes.c_uint64(paged), ctypes.c_void_p(host)
        if way is Way.IN:
            self._call("cuMemcpyHtoDAsync_v2", on_gpu, on_host, ctypes.c_size_t(nbytes), stream)
        else:
            self._call("cuMemcpyDtoHAsync_v2", on_host, on_gpu, ctypes.c_size_t(nbytes), stream)

    def slot(self, position: int) -> int:
        """The GPU's address of a position in the arena."""
        return self.base + self._offset + position

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
        opened, self._open = self._open[::-1], []
        # A GPU that has failed, or a driver that is being unloaded, has freed it already.
        with contextlib.suppress(GpuError), self._driver.within(self._context):
            for release, what in opened:
                with contextlib.suppress(GpuError):
                    self._call(release, what)
        with contextlib.suppress(GpuError):
            self._call("cuDevicePrimaryCtxRelease_v2", self._device)
