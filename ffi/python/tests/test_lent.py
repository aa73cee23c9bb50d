"""The memory of tiers as the CUDA driver takes it, and copies of rows, with a stand-in for the
driver."""

import ctypes
import threading
import weakref

import pytest
from kvrail import _cuda, _lent, _mover, gpu
from kvrail._mover import Batch, Mover, Shape, Way

CONTEXT, READ_ONLY, REFUSED = 77, 113, 801
RANGES = [(0x10000, 8192), (0x90000, 4096)]


class Registering:
    """The driver: memory that is only read can be registered, or cannot."""

    def __init__(self) -> None:
        self.reads_only, self.refused = 1, 0
        self.memory: dict[int, tuple[int, int]] = {}
        self.retained, self.contexts = 0, threading.local()
        self.gate = threading.Event()
        self.gate.set()

    def cuDevicePrimaryCtxRetain(self, context, device) -> int:
        context._obj.value, self.retained = CONTEXT, self.retained + 1
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device) -> int:
        self.retained -= 1
        return 0

    def cuCtxPushCurrent_v2(self, context) -> int:
        self.contexts.now = context.value
        return 0

    def cuCtxPopCurrent_v2(self, context) -> int:
        self.contexts.now = None
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode) -> int:
        return 0

    def cuDeviceGetAttribute(self, value, which, device) -> int:
        assert which.value == READ_ONLY
        self.gate.wait(10)
        value._obj.value = self.reads_only
        return 0

    def cuMemHostRegister_v2(self, base, nbytes, flags) -> int:
        if base.value == self.refused:
            return REFUSED
        assert self.contexts.now == CONTEXT and base.value not in self.memory
        self.memory[base.value] = (nbytes.value, flags.value)
        return 0

    def cuMemHostUnregister(self, base) -> int:
        assert self.contexts.now == CONTEXT
        del self.memory[base.value]
        return 0

    def cuMemHostGetDevicePointer_v2(self, mapped, base, flags) -> int:
        mapped._obj.value = base.value + (1 << 40)
        return 0

    def cuGetErrorName(self, status, text) -> int:
        text._obj.value = b"CUDA_ERROR_NOT_SUPPORTED"
        return 0


class Keeper:
    """What keeps the memory mapped."""


@pytest.fixture
def driver():
    made = object.__new__(_cuda.Driver)
    made._library = made._holding = Registering()
    yield made
    assert not made._library.memory and not made._library.retained and not _lent._all


def test_a_range_is_registered_once_for_all_that_read_it(driver):
    its, keeper = driver._library, Keeper()
    is_there = weakref.ref(keeper)
    its.gate.clear()
    first = _lent.lend(driver, 0, RANGES, keeper)
    assert first.why == "the driver takes the memory tier now" and not its.memory
    second = _lent.lend(driver, 0, RANGES, keeper)
    del keeper
    assert second is first
    its.gate.set()
    first._thread.join(10)
    assert first.why is None
    assert its.memory == {0x10000: (8192, 11), 0x90000: (4096, 11)}, "portable, mapped, only read"
    assert first.on_gpu(0x90000 + 4095) == (1 << 40) + 0x90000 + 4095
    second.give_back()
    assert len(its.memory) == 2 and is_there() is not None
    first.give_back()
    assert not its.memory and is_there() is None


def test_a_driver_that_takes_no_read_only_memory(driver):
    driver._library.reads_only = 0
    lent = _lent.lend(driver, 0, RANGES, None)
    lent._thread.join(10)
    assert lent.why == "the driver takes no memory that can only be read"
    assert not driver._library.memory
    lent.give_back()


def test_a_range_that_is_refused_leaves_none_registered(driver):
    driver._library.refused = RANGES[1][0]
    lent = _lent.lend(driver, 0, RANGES, None)
    lent._thread.join(10)
    assert "CUDA_ERROR_NOT_SUPPORTED (801)" in lent.why and not driver._library.memory
    lent.give_back()


def test_memory_is_given_back_also_while_it_is_registered(driver):
    driver._library.gate.clear()
    lent = _lent.lend(driver, 0, RANGES, None)
    threading.Timer(0.1, driver._library.gate.set).start()
    lent.give_back()
    assert not lent._thread.is_alive()


LAYERS, RUN, PAGES = 8, 64, 6


def spans(bases, run=RUN, stride=RUN):
    return Shape(gpu.Pages(PAGES, [gpu.Span(base, stride, run) for base in bases]), 1)


def test_runs_that_lie_evenly_are_one_copy():
    even = spans(range(0x1000, 0x1000 + 32 * 4096, 4096)).copies([1] * 32)
    assert [(it.count, it.pitch, it.step) for it in even] == [(32, 4096, RUN)]
    # K and V of a layer side by side, and layers further apart.
    apart = spans([0x1000 * at + kv for at in range(1, 33) for kv in (0, 512)]).copies([1] * 64)
    assert [(it.count, it.pitch, it.step) for it in apart] == [(32, 4096, 2 * RUN)] * 2
    (one,) = spans([0x1000]).copies([1])
    assert (one.count, one.address) == (1, 0x1000)
    # The driver refuses a copy that reaches into another allocation, however even.
    others = spans(range(0x1000, 0x1000 + 32 * 4096, 4096)).copies([1] * 16 + [2] * 16)
    assert [it.count for it in others] == [16, 16]


@pytest.mark.parametrize(
    ("bases", "count"),
    [
        ([0x1000, 0x2000, 0x9000], 2),  # uneven
        ([0x3000, 0x2000, 0x1000], 3),  # downwards
        ([0x1000, 0x1000 + RUN - 16], 2),  # over each other
        ([0x1000, 0x1000 + (1 << 31)], 2),  # further than a pitch reaches
    ],
)
def test_runs_that_do_not_are_several(bases, count):
    assert len(spans(bases).copies([1] * len(bases))) == count


class Copying(Registering):
    """A driver that copies rows at once, and launches nothing but the check."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[tuple[int, int]] = []
        self.launched: list[tuple[str, int]] = []
        self.waited: list[tuple[int, int]] = []
        self.refuses = False

    def cuMemcpy2DAsync_v2(self, copy, stream) -> int:
        it = copy._obj
        if self.refuses:
            return 1
        assert it.from_type == it.to_type == 4
        for row in range(it.count):
            source = it.from_address + row * it.from_pitch
            ctypes.memmove(it.to_address + row * it.to_pitch, source, it.nbytes)
        self.copies.append((it.nbytes * it.count, stream.value))
        return 0

    def cuLaunchKernel(self, kernel, *rest) -> int:
        self.launched.append((kernel.value.decode(), rest[-3].value))
        return 0

    def cuStreamWaitEvent(self, stream, event, flags) -> int:
        self.waited.append((stream.value, event.value))
        return 0

    def cuEventRecord(self, event, stream) -> int:
        return 0


def mover_of(shape, why_host=None):
    made = object.__new__(_cuda.Driver)
    made._library = made._holding = Copying()
    mover = object.__new__(Mover)
    mover._driver, mover._call, mover._context = made, made.call, ctypes.c_void_p(1)
    mover._shape, mover.why_host, mover._launch = shape, why_host, _mover._Launch()
    mover._rows = shape.copies([1] * len(shape.pages.spans))
    mover._kernels = {it: ctypes.c_char_p(it.encode()) for it in ("gather", "scatter", "check")}
    mover._streams = {Way.OUT: ctypes.c_void_p(7), Way.IN: ctypes.c_void_p(8)}
    mover._checks = ctypes.c_void_p(9)
    return mover, made._library


def batch_of(shape, addresses, rows):
    control = ctypes.create_string_buffer(Batch.nbytes(shape, len(rows)))
    events = ctypes.c_void_p(3), ctypes.c_void_p(4)
    batch = Batch(ctypes.addressof(control), shape, len(rows), *events)
    batch.control = control
    batch.fill(addresses, rows)
    return batch


@pytest.mark.parametrize("why_host", [None, "asked for"])
def test_copy_engines_fill_pages(monkeypatch, why_host):
    monkeypatch.setattr(_mover, "_COPY_BYTES", RUN)
    layers = [ctypes.create_string_buffer(PAGES * RUN) for _ in range(LAYERS)]
    whole = ctypes.create_string_buffer(bytes(range(256)) * 16)
    bases = [ctypes.addressof(it) for it in layers]
    shape = Shape(gpu.Pages(PAGES, [gpu.Span(base, RUN, RUN) for base in bases]), 2)
    mover, its = mover_of(shape, why_host)
    first = ctypes.addressof(whole)
    batch = batch_of(shape, [first, first + shape.block_bytes], [[4, -1], [0, 2]])
    mover.begin(Way.IN, batch, ctypes.c_void_p(5))
    page = LAYERS * RUN
    for number, at in [(4, 0), (0, 2), (2, 3)]:
        for layer, its_bytes in enumerate(layers):
            begin = at * page + layer * RUN
            assert its_bytes[number * RUN : (number + 1) * RUN] == whole[begin : begin + RUN]
    assert not any(bytes(it[RUN : 2 * RUN]).strip(b"\0") for it in layers), "of no block"
    # Batches are checked beside the copies of the next; on the way out a kernel does both.
    assert its.launched == ([] if why_host else [("check", 9)])
    assert its.waited == ([(8, 5)] if why_host else [(8, 5), (9, 4)])
    assert {stream for _, stream in its.copies} == {8}
    batch.fill([first], [[5, 3]])
    mover.begin(Way.IN, batch)
    layers[0][5 * RUN : 6 * RUN] = b"\5" * RUN
    mover.begin(Way.OUT, batch)
    assert (whole[:RUN] == b"\5" * RUN) if why_host else its.launched[-1] == ("gather", 7)


def test_copies_that_the_driver_refuses_are_a_kernels_from_then_on(monkeypatch):
    monkeypatch.setattr(_mover, "_COPY_BYTES", RUN)
    mover, its = mover_of(spans([0x1000]))
    batch = batch_of(mover._shape, [0x5000], [[1]])
    its.refuses = True
    assert mover.copies
    mover.begin(Way.IN, batch)
    its.refuses = False
    mover.begin(Way.IN, batch)
    assert its.launched == [("scatter", 8), ("check", 9)] * 2
    assert not its.copies


def test_small_pages_are_filled_by_a_kernel():
    mover, its = mover_of(spans([0x1000, 0x9000, 0x2000]))
    batch = batch_of(mover._shape, [0x5000], [[1]])
    mover.begin(Way.IN, batch)
    assert its.launched == [("scatter", 8), ("check", 9)] and its.copies == []


def test_addresses_of_the_arena_and_the_tier():
    mover, _ = mover_of(spans([0x1000]))
    mover._arena = (ctypes.c_ubyte * 4096)()
    mover.base, mover._offset, mover._lent = ctypes.addressof(mover._arena), 1 << 41, None
    assert mover.on_gpu(mover.base + 17) == mover.base + 17 + (1 << 41)
    assert mover.why_staged == "the sidecar shows no memory tier"
    mover._lent = object.__new__(_lent.Lent)
    mover._lent._offsets, mover._lent.why = [(0x10000, 0x20000, 1 << 40)], None
    assert mover.on_gpu(0x10001) == 0x10001 + (1 << 40) and mover.why_staged is None
    mover.why_host = "asked for"
    assert mover.why_staged == "the host checks blocks"
