"""Types of arguments."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, SupportsIndex, TypedDict


class Array(Protocol):
    """A one-dimensional array of 64-bit integers: NumPy's, ``array.array``, a memoryview."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> Any: ...


Numbers = SupportsIndex | Sequence[int] | Array
"""One integer for each request, or one for all of them."""


class GpuInfo(TypedDict):
    """A GPU that a sidecar serves."""

    index: int
    """Its number in the sidecar; another process may count otherwise."""
    uuid: str
    """The same everywhere, as ``nvidia-smi -L`` prints it."""
    name: str
    """What it is called."""
    pci_address: str
    """Its PCIe address."""
    memory_bytes: int
    """Bytes of its memory."""


class Options(TypedDict, total=False):
    """What a request may ask for."""

    priority: Literal["demand", "prefetch", "background"]
    """Who goes first when the device is busy; ``"demand"`` unless said otherwise."""
    durable: bool
    """A write is on stable media when it completes."""
    checksum: bool
    """Return CRC-64/NVME of the bytes."""
    verify: Numbers | None
    """CRC-64/NVME that the bytes must have, else :class:`kvrail.CorruptError`."""
    deadline: float | None
    """Seconds after which a queue brings a notice (``Completion.is_notice``)."""
    timeout: float | None
    """Seconds that a synchronous call may take; none is for ever."""
    tag: int
    """Comes back in ``Completion.tag``."""
