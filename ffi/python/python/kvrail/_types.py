"""Types of arguments."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsIndex, TypedDict

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
elif TYPE_CHECKING:
    from typing_extensions import Buffer
else:
    Buffer = Any


class Array(Protocol):
    """A one-dimensional array of 64-bit integers: NumPy's, ``array.array``, a memoryview."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> Any: ...


Worth = Literal["low", "normal", "high"]
"""How much a block is worth beside others that are used as often."""

ChainWord = Literal["begins", "extends"]
"""The part of a chain that a store has: less than half of it, or the rest."""

Numbers = SupportsIndex | Sequence[int] | Array
"""One integer for each request, or one for all of them."""


class Tensor(Protocol):
    """Memory on the host as PyTorch's tensors describe it."""

    def data_ptr(self) -> int: ...


BlockMemory = Buffer | Tensor
"""The bytes of one block: a slice of an arena (moved without a copy), or any contiguous buffer."""

BlockName = bytes | bytearray | memoryview | SupportsIndex | Buffer
"""An engine's name of a block: bytes of any length, or an integer from 0 to 2**128 - 1."""


class GpuInfo(TypedDict):
    """A GPU that a sidecar serves."""

    index: int
    """Its number in the sidecar; another process may count otherwise."""
    uuid: str
    """The same everywhere, as ``nvidia-smi -L`` prints it."""
    name: str
    """Its name."""
    pci_address: str
    """Its PCIe address."""
    memory_bytes: int
    """Bytes of its memory."""


class NamespaceInfo(TypedDict):
    """Size of a namespace, on all members of its store."""

    name: str
    """Its name."""
    identity: str
    """Its identity, as JSON."""
    uid: int
    """A number that is another one after each clear."""
    blocks: int
    """Blocks of it."""
    bytes: int
    """Bytes of them."""


class BlockOptions(TypedDict, total=False):
    """Options of a call for blocks."""

    priority: Literal["demand", "prefetch", "background"]
    """Order of requests at a busy device; ``"demand"`` by default."""
    timeout: float | None
    """Seconds that the call may take; none is for ever."""


class GetOptions(BlockOptions, total=False):
    """Options of a get of many blocks."""

    verify: bool
    """False: the caller verifies the bytes at their destination. ``Results.crcs`` has their CRCs; a
    wrong block is got once more without this option, which reports it to the sidecar."""


class DropOptions(BlockOptions, total=False):
    """Options of a drop."""

    durable: bool
    """It is answered when it holds over a loss of power."""


class PutOptions(DropOptions, total=False):
    """Options of a put."""

    metadata: bytes | Sequence[bytes] | None
    """Up to 1 KiB for each block, which listings and the feed of what is gone return."""
    crc: Numbers
    """CRC-64/NVME of each block, if the caller has computed it: it is not computed again."""
    depth: Numbers | None
    """How deep in its prompt the (first) block is, or each block; 0 is its head."""
    worth: Worth | Sequence[Worth] | None
    """How much the blocks are worth beside others that are used as often, over restarts too; one
    word, or a word for each block. A quarter of a pool may be ``"high"``; what is beyond is as
    others."""
    ttl: float | None
    """Seconds after which the blocks are worth nothing: they go first, and are served for as
    long as they are there. One in 128 blocks of a store may have an end."""
    replace: bool
    """A block with other bytes or of another length gives way: it is dropped, for good also over a
    loss of power, before these bytes are put; a get between the two is a miss. Of the same bytes
    nothing is written, as without it."""
    chain: bool | ChainWord | Sequence[ChainWord] | None
    """All blocks of the call are one chain, each worth little without those before it: they go out
    in order, each one deeper, and behind one that is declined no more are put. Where little write
    budget is left they are offered all the same: the store takes at second sight what it was
    offered before.

    A word also describes the part of the chain that the store has, counted from its head:
    ``"begins"`` is less than half, ``"extends"`` is the rest, and the default. ``Found.chain`` has
    the word for the keys of a lookup. Chains that begin are taken if they are worth more than the
    coldest blocks of the store, else declined. A sequence has the word of each block, of chains of
    their own."""


class Options(TypedDict, total=False):
    """Options of a request."""

    priority: Literal["demand", "prefetch", "background"]
    """Order of requests at a busy device; ``"demand"`` by default."""
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
