"""Calls of the CUDA driver from a thread of kvrail, with a stand-in for the driver."""

import ctypes

import pytest
from kvrail import GpuError, _cuda, _mover, gpu
from kvrail._mover import Batch, Mover, Shape, Way

GLOBAL, RELAXED = 0, 2
UNSUPPORTED, NOT_READY, LAUNCH_FAILED = 900, 600, 719


class Capturing:
    """The driver while another thread captures a graph in the mode `global`, as PyTorch does."""

    def __init__(self) -> None:
        self.mode, self.contexts, self.spoilt = GLOBAL, 0, 0

    def cuCtxPushCurrent_v2(self, context) -> int:
        self.contexts += 1
        return 0

    def cuCtxPopCurrent_v2(self, context) -> int:
        self.contexts -= 1
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode) -> int:
        it = mode._obj
        self.mode, it.value = it.value, self.mode
        return 0

    def cuEventQuery(self, event) -> int:
        if self.mode != RELAXED:
            self.spoilt += 1
            return UNSUPPORTED
        return NOT_READY

    def cuGetErrorName(self, status, text) -> int:
        text._obj.value = b"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
        return 0


@pytest.fixture
def driver():
    made = object.__new__(_cuda.Driver)
    made._library = made._holding = Capturing()
    return made


def test_a_query_spoils_no_graph_that_another_thread_captures(driver):
    its = driver._library
    for _ in range(2):
        with driver.within(ctypes.c_void_p(1)):
            assert driver.is_done(ctypes.c_void_p(2)) is False
        assert (its.mode, its.contexts, its.spoilt) == (GLOBAL, 0, 0)


def test_an_error_leaves_the_thread_as_it_was(driver):
    its = driver._library
    with pytest.raises(GpuError, match="no launch"), driver.within(ctypes.c_void_p(1)):
        raise GpuError("no launch")
    assert (its.mode, its.contexts) == (GLOBAL, 0)


class Halfway(Capturing):
    """The driver of a GPU that moves what is launched until its stream is waited for. One call
    fails, and the wait too if the GPU has failed for good."""

    def __init__(self, fails: str, *, for_good: bool) -> None:
        super().__init__()
        self.fails, self.for_good = fails, for_good
        self.moving: list[int] = []
        self.waited: list[int] = []

    def _status(self, name: str) -> int:
        return LAUNCH_FAILED if name == self.fails else 0

    def cuLaunchKernel(self, kernel, *rest) -> int:
        if status := self._status(kernel.value.decode()):
            return status
        self.moving.append(rest[-3].value)
        return 0

    def cuStreamWaitEvent(self, stream, event, flags) -> int:
        return 0

    def cuEventRecord(self, event, stream) -> int:
        return self._status("record" if stream.value == 9 else "arrived")

    def cuStreamSynchronize(self, stream) -> int:
        self.waited.append(stream.value)
        self.moving = [it for it in self.moving if it != stream.value]
        return LAUNCH_FAILED if self.for_good else 0


@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("fails", ["arrived", "check", "record"])
def test_what_has_begun_in_part_moves_nothing_after_its_error(driver, fails, for_good):
    """The scatter is on its way: without an event nothing else would wait for it."""
    driver._library = driver._holding = its = Halfway(fails, for_good=for_good)
    shape = Shape(gpu.Pages(4, [gpu.Span(0x1000, 4096, 4096)]), 1)
    mover = object.__new__(Mover)
    mover._driver, mover._call, mover._context = driver, driver.call, ctypes.c_void_p(1)
    mover._shape, mover.why_host, mover._launch = shape, None, _mover._Launch()
    mover._rows = shape.copies([1])
    mover._kernels = {it: ctypes.c_char_p(it.encode()) for it in ("gather", "scatter", "check")}
    mover._streams, mover._checks = {Way.IN: ctypes.c_void_p(8)}, ctypes.c_void_p(9)
    control = ctypes.create_string_buffer(Batch.nbytes(shape, 2))
    batch = Batch(ctypes.addressof(control), shape, 2, ctypes.c_void_p(3), ctypes.c_void_p(4))
    batch.fill([0x2000, 0x3000], [[1], [2]])
    with pytest.raises(GpuError, match=r"\(719\)"):
        mover.begin(Way.IN, batch)
    assert (its.moving, its.waited) == ([], [8, 9])
    assert (its.mode, its.contexts) == (GLOBAL, 0)
