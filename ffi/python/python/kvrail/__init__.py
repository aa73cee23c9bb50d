"""Client of the kvrail sidecar: attach, put and get KV blocks by key.

>>> import kvrail
>>> client = kvrail.Client("/run/kvrail/kvrail.sock")    # doctest: +SKIP
>>> space = client.store("kv").namespace("demo", {"model": "m", "dtype": "fp8"})  # doctest: +SKIP
>>> space.put(b"key", b"bytes"), space.get(b"key")       # doctest: +SKIP
('OK', b'bytes')

A :class:`Store` has blocks by key, in namespaces that programs of the same identity share: a
:class:`Namespace` puts, gets and looks up, one block or many in one call, and waits. Its
:class:`Queue` does the same without waiting; :class:`kvrail.aio.Queue` is for ``asyncio``. Got
bytes are verified, and are never those of another block; a miss is no exception.

A :class:`Volume` is raw: requests name offsets. An :class:`Arena` is memory that devices reach:
wrap it with ``numpy.frombuffer`` or ``torch.from_dlpack``, without a copy; blocks in any other
memory are copied once. A :class:`GpuRegion` is a paged KV cache in GPU memory, made of tensors by
:meth:`Client.gpu_region`; requests to volumes name its blocks.

Threads: clients, stores, namespaces, volumes and arenas may be used from any thread. A queue is
for one thread at a
time; another one gets :class:`QueueBusyError`. Calls that wait release the interpreter lock.

Bytes in flight belong to the sidecar's devices: do not read memory while a read into it is under
way, nor change it while it is written. A call that raises :class:`TimedOutError` or
``KeyboardInterrupt`` leaves its requests in flight; closing the arena or region waits for them.
The sidecar does not see CUDA streams: synchronize before you write blocks that kernels have
made, and use blocks that are read only after their requests have ended.
"""

import os as _os

from kvrail._kvrail import (
    Arena,
    Block,
    Client,
    Completion,
    Events,
    Found,
    Gone,
    GpuRegion,
    GroupEnd,
    Keys,
    Listing,
    Namespace,
    Probed,
    Queue,
    Results,
    Store,
    View,
    Volume,
    __version__,
    _forked,
    uniform,
)
from kvrail._serve import Sidecar, serve
from kvrail.errors import (
    AccessError,
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
    "AccessError",
    "Arena",
    "Block",
    "Client",
    "ClosedError",
    "Completion",
    "CorruptError",
    "DeviceError",
    "Events",
    "ForkedError",
    "Found",
    "Gone",
    "GpuError",
    "GpuRegion",
    "GroupEnd",
    "InternalError",
    "Keys",
    "KvrailError",
    "LayoutError",
    "Listing",
    "MemoryUnusableError",
    "MissError",
    "Namespace",
    "NamespaceError",
    "NoSidecarError",
    "NoSpaceError",
    "NoStoreError",
    "NotAdmittedError",
    "Probed",
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
    "View",
    "Volume",
    "__version__",
    "serve",
    "uniform",
]

# A child must not write the lanes of its parent: its objects notice, and raise.
_os.register_at_fork(after_in_child=_forked)
