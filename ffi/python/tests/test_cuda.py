"""Calls of the CUDA driver from a thread of kvrail, with a stand-in for the driver."""

import ctypes

import pytest
from kvrail import GpuError, _cuda

GLOBAL, RELAXED = 0, 2
UNSUPPORTED, NOT_READY = 900, 600


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
