"""Memory of the sidecar's tiers, lent to the GPU for reading: registered with CUDA once in a
process, whatever number of caches reads it, and in a thread, for 64 GiB take seconds."""

import contextlib
import ctypes
import functools
import threading
from collections.abc import Sequence

from kvrail import _cuda, _forks
from kvrail.errors import GpuError

_PORTABLE_MAPPED_READ_ONLY = 1 | 2 | 8
_CAN_READ_ONLY = 113  # CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED

_lock = _forks.lock()
_all: dict[tuple[tuple[int, int], ...], "Lent"] = {}


class Lent:
    """Ranges of mapped memory that is only read."""

    def __init__(
        self,
        driver: _cuda.Driver,
        device: int,
        ranges: tuple[tuple[int, int], ...],
        keep: object,
    ) -> None:
        self._call, self._within = functools.partial(driver.call), driver.within
        self._device, self._ranges = ctypes.c_int(device), ranges
        self._keep: object | None = keep
        self.users = 0
        self.why: str | None = "the driver takes the memory tier now"
        """Why the GPU does not read it; none once it does."""
        self._offsets: list[tuple[int, int, int]] = []
        # Of its own: caches on other GPUs of the process may outlive the one that came first.
        self._context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self._thread = threading.Thread(
            target=self._register, name="kvrail lends memory to a GPU", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:
            self.why = f"no thread for the memory tier ({error})"

    def on_gpu(self, address: int) -> int:
        """The GPU's address of a place in it."""
        its = (offset for first, end, offset in self._offsets if first <= address < end)
        return address + next(its)

    def give_back(self) -> None:
        """One user less: the last one takes the memory back from the driver. Nothing of it may be
        in flight."""
        with _lock:
            self.users -= 1
            if self.users:
                return
            del _all[self._ranges]
        if self._thread.ident is not None:
            self._thread.join()
        self._unregister()
        with contextlib.suppress(GpuError):
            self._call("cuDevicePrimaryCtxRelease_v2", self._device)
        self._keep = None  # it may be unmapped

    def _register(self) -> None:
        try:
            with self._within(self._context):
                can = ctypes.c_int()
                attribute = (ctypes.c_int(_CAN_READ_ONLY), self._device)
                self._call("cuDeviceGetAttribute", ctypes.byref(can), *attribute)
                if not can.value:
                    self.why = "the driver takes no memory that can only be read"
                    return
                for first, nbytes in self._ranges:
                    self._register_range(first, nbytes)
        except GpuError as error:
            self._unregister()
            self.why = f"the driver does not take the memory tier ({error})"
            return
        self.why = None

    def _register_range(self, first: int, nbytes: int) -> None:
        base, flags = ctypes.c_void_p(first), ctypes.c_uint(_PORTABLE_MAPPED_READ_ONLY)
        self._call("cuMemHostRegister_v2", base, ctypes.c_size_t(nbytes), flags)
        self._offsets.append((first, first + nbytes, 0))
        mapped = ctypes.c_uint64()
        self._call("cuMemHostGetDevicePointer_v2", ctypes.byref(mapped), base, ctypes.c_uint(0))
        self._offsets[-1] = (first, first + nbytes, mapped.value - first)

    def _unregister(self) -> None:
        # A GPU that has failed, or a driver that is being unloaded, has let go of it already.
        with contextlib.suppress(GpuError), self._within(self._context):
            for first, _, _ in self._offsets:
                with contextlib.suppress(GpuError):
                    self._call("cuMemHostUnregister", ctypes.c_void_p(first))
        self._offsets.clear()


def lend(
    driver: _cuda.Driver, device: int, ranges: Sequence[tuple[int, int]], keep: object
) -> Lent:
    """These ranges for one user more.

    :param keep: with it they stay mapped.
    """
    key = tuple(ranges)
    with _lock:
        if key not in _all:
            _all[key] = Lent(driver, device, key, keep)
        lent = _all[key]
        lent.users += 1
        return lent
