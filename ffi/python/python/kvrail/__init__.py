"""Client of the kvrail sidecar: attach, get memory, move KV blocks.

>>> import kvrail
>>> client = kvrail.Client("/run/kvrail/kvrail.sock")    # doctest: +SKIP

A :class:`Client` has volumes and arenas. A :class:`Volume` reads and writes, one range or arrays
of them, and waits. A :class:`Queue` does the same without waiting, for loops that poll;
:class:`kvrail.aio.Queue` is for ``asyncio``. An :class:`Arena` is memory: wrap it with
``numpy.frombuffer`` or ``torch.from_dlpack``, without a copy. A :class:`GpuRegion` is a paged KV
cache in GPU memory, made of tensors by :meth:`Client.gpu_region`; requests name its blocks.

Threads: clients, volumes and arenas may be used from any thread. A queue is for one thread at a
time; another one gets :class:`QueueBusyError`. Calls that wait give the interpreter lock away.

Bytes in flight belong to the sidecar's devices: do not read memory while a read into it is under
way, nor change it while it is written. A call that raises :class:`TimedOutError` or
``KeyboardInterrupt`` leaves its requests in flight; closing the arena or region waits for them.
The sidecar knows nothing of CUDA streams: synchronize before you write blocks that kernels have
made, and use blocks that are read only after their requests have ended.
"""

import os as _os

from kvrail._kvrail import (
    Arena,
    Client,
    Completion,
    Found,
    GpuRegion,
    Keys,
    Namespace,
    Queue,
    Results,
    Store,
    Volume,
    __version__,
    _forked,
    uniform,
)
from kvrail._serve import Sidecar, serve
from kvrail.errors import (
    ClosedError,
    CorruptError,
    DeviceError,
    ForkedError,
    GpuError,
    InternalError,
    KvrailError,
    LayoutError,
    MemoryUnusableError,
    MissError,
    NamespaceError,
    NoSidecarError,
    NoSpaceError,
    NoStoreError,
    NotAdmittedError,
    QueueBusyError,
    QueueFullError,
    QuotaError,
    RequestError,
    ServeError,
    SessionEndedError,
    TensorError,
    TimedOutError,
    TooSmallError,
    UnknownGpuError,
    UnknownVolumeError,
    UnsupportedError,
    VersionMismatchError,
)

__all__ = [
    "Arena",
    "Client",
    "ClosedError",
    "Completion",
    "CorruptError",
    "DeviceError",
    "ForkedError",
    "Found",
    "GpuError",
    "GpuRegion",
    "InternalError",
    "Keys",
    "KvrailError",
    "LayoutError",
    "MemoryUnusableError",
    "MissError",
    "Namespace",
    "NamespaceError",
    "NoSidecarError",
    "NoSpaceError",
    "NoStoreError",
    "NotAdmittedError",
    "Queue",
    "QueueBusyError",
    "QueueFullError",
    "QuotaError",
    "RequestError",
    "Results",
    "ServeError",
    "SessionEndedError",
    "Sidecar",
    "Store",
    "TensorError",
    "TimedOutError",
    "TooSmallError",
    "UnknownGpuError",
    "UnknownVolumeError",
    "UnsupportedError",
    "VersionMismatchError",
    "Volume",
    "__version__",
    "serve",
    "uniform",
]

# A child must not write the lanes of its parent: its objects notice, and say so.
_os.register_at_fork(after_in_child=_forked)
