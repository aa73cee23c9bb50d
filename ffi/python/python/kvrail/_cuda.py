"""The CUDA driver: loaded when memory is exported or blocks are moved, not before."""

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kvrail.errors import GpuError, TensorError

# Pointer attributes (CUpointer_attribute).
_MEMORY_TYPE = 2
_IS_MANAGED = 8
_DEVICE_ORDINAL = 9
_IS_LEGACY_IPC_CAPABLE = 10
_ALLOWED_HANDLE_TYPES = 14
_MAPPING_SIZE = 18
_MAPPING_BASE = 19

_MEMORY_OF_DEVICE = 2
_POSIX_FD = 1
_INVALID_VALUE = 1
_NOT_READY = 600

# Of a thread while another one captures a graph (CUstreamCaptureMode).
_CAPTURE_RELAXED = 2

# Calls that wait for nothing: the interpreter's lock is kept, since to get it back from a thread
# that computes takes milliseconds.
_SHORT = frozenset(
    {
        "cuCtxPopCurrent_v2",
        "cuCtxPushCurrent_v2",
        "cuEventQuery",
        "cuEventRecord",
        "cuLaunchKernel",
        "cuMemcpy2DAsync_v2",
        "cuStreamWaitEvent",
        "cuThreadExchangeStreamCaptureMode",
    }
)


class Descriptor:
    """A descriptor that is closed with the object."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number

    def __del__(self) -> None:
        os.close(self._number)


@dataclass(frozen=True)
class Allocation:
    """An exported allocation, or one mapping of virtual memory."""

    gpu: str
    address: int
    nbytes: int
    handle: bytes = b""
    file: Descriptor | None = None

    def holds(self, address: int) -> bool:
        return self.address <= address < self.address + self.nbytes


def export(name: str, address: int) -> Allocation:
    """Exports the allocation that the address is in; ``name`` is for errors."""
    driver = load()
    attribute = functools.partial(driver.attribute, name, address)
    if attribute(_MEMORY_TYPE) != _MEMORY_OF_DEVICE or attribute(_IS_MANAGED):
        raise TensorError(
            f"{name} is managed memory or memory of the host, which cannot be shared as memory of "
            "a GPU; allocate it on the device"
        )
    device = ctypes.c_int()
    driver.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(attribute(_DEVICE_ORDINAL)))
    gpu = driver.uuid(device)
    if attribute(_IS_LEGACY_IPC_CAPABLE):
        return driver.inside(device, lambda: _legacy(driver, gpu, address))
    if attribute(_ALLOWED_HANDLE_TYPES) & _POSIX_FD:
        nbytes, base = attribute(_MAPPING_SIZE), attribute(_MAPPING_BASE)
        return driver.inside(device, lambda: _virtual(driver, gpu, base, nbytes))
    raise TensorError(
        f"{name} cannot be shared between processes: its allocator (cudaMallocAsync, or expandable "
        "segments without handles) made it so; use PyTorch's default allocator with "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"
    )


def _legacy(driver: "Driver", gpu: str, address: int) -> Allocation:
    base, nbytes = ctypes.c_uint64(), ctypes.c_size_t()
    driver.call(
        "cuMemGetAddressRange_v2",
        ctypes.byref(base),
        ctypes.byref(nbytes),
        ctypes.c_uint64(address),
    )
    handle = (ctypes.c_ubyte * 64)()
    driver.call("cuIpcGetMemHandle", ctypes.byref(handle), base)
    return Allocation(gpu, base.value, nbytes.value, handle=bytes(handle))


def _virtual(driver: "Driver", gpu: str, base: int, nbytes: int) -> Allocation:
    handle, number = ctypes.c_uint64(), ctypes.c_int(-1)
    driver.call("cuMemRetainAllocationHandle", ctypes.byref(handle), ctypes.c_void_p(base))
    try:
        driver.call(
            "cuMemExportToShareableHandle",
            ctypes.byref(number),
            handle,
            ctypes.c_int(_POSIX_FD),
            ctypes.c_uint64(0),
        )
    finally:
        driver.call("cuMemRelease", handle)
    return Allocation(gpu, base, nbytes, file=Descriptor(number.value))


class Driver:
    """libcuda, with statuses turned into exceptions."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
            self._holding = ctypes.PyDLL("libcuda.so.1")
        except OSError as error:
            raise GpuError(
                f"no CUDA driver: {error}; install the NVIDIA driver, or give the container its "
                "libraries (runtime class nvidia)"
            ) from None
        self.call("cuInit", ctypes.c_uint(0))

    def call(self, name: str, *arguments: Any) -> None:
        status = self._try(name, *arguments)
        if status != 0:
            raise GpuError(f"{name}: {self._name_of(status)}")

    def _try(self, name: str, *arguments: Any) -> int:
        try:
            function = getattr(self._holding if name in _SHORT else self._library, name)
        except AttributeError:
            raise GpuError(
                f"the CUDA driver has no {name}; it is older than CUDA 12.4, install driver 550 on"
            ) from None
        return int(function(*arguments))

    def _name_of(self, status: int) -> str:
        text = ctypes.c_char_p()
        self._try("cuGetErrorName", ctypes.c_int(status), ctypes.byref(text))
        return f"{(text.value or b'unknown').decode()} ({status})"

    def attribute(self, name: str, address: int, which: int) -> int:
        value = ctypes.c_uint64()
        status = self._try(
            "cuPointerGetAttribute",
            ctypes.byref(value),
            ctypes.c_int(which),
            ctypes.c_uint64(address),
        )
        if status == _INVALID_VALUE:
            raise TensorError(f"{name} is not memory that CUDA knows; it may have been freed")
        if status != 0:
            raise GpuError(f"cuPointerGetAttribute: {self._name_of(status)}")
        return value.value

    def uuid(self, device: ctypes.c_int) -> str:
        raw = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid_v2", ctypes.byref(raw), device)
        text = bytes(raw).hex()
        return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def is_done(self, event: ctypes.c_void_p) -> bool:
        """Whether the recorded work is done; an error of earlier work is raised here."""
        status = self._try("cuEventQuery", event)
        if status not in (0, _NOT_READY):
            raise GpuError(f"cuEventQuery: {self._name_of(status)}")
        return status == 0

    @contextlib.contextmanager
    def within(self, context: ctypes.c_void_p) -> Iterator[None]:
        """Makes a context this thread's for a while. An engine's thread may capture a graph, in
        which a call of another thread such as `cuEventQuery` fails, and spoils the graph: these
        calls touch nothing that is captured, and are let through."""
        self.call("cuCtxPushCurrent_v2", context)
        mode = ctypes.c_int(_CAPTURE_RELAXED)
        try:
            self.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
            try:
                yield
            finally:
                self.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def inside(self, device: ctypes.c_int, body: Callable[[], Allocation]) -> Allocation:
        """Runs the body in the device's primary context, whatever this thread has."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            with self.within(context):
                return body()
        finally:
            self.call("cuDevicePrimaryCtxRelease_v2", device)


@functools.cache
def load() -> Driver:
    """The driver of this process."""
    return Driver()
