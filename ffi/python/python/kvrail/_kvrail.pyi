"""The compiled half of the package."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, SupportsIndex, TypeVar, Unpack, overload

from kvrail._types import (
    BlockMemory,
    BlockName,
    BlockOptions,
    ChainWord,
    DropOptions,
    GetOptions,
    GpuInfo,
    NamespaceInfo,
    Numbers,
    Options,
    PutOptions,
)
from kvrail.gpu import Layout

__version__: str

_End = TypeVar("_End", Completion, GroupEnd)

class _HasFileno(Protocol):
    def fileno(self) -> int: ...

class Client:
    """A session with the sidecar behind a socket. A context manager."""

    def __init__(
        self,
        socket: str | os.PathLike[str],
        *,
        name: str | None = None,
        timeout: float | None = None,
        wait: float | None = None,
    ) -> None:
        """Attaches. `name` is shown by `kvrail status`; `timeout` is the longest wait in seconds
        for the sidecar's answers about sessions, namespaces and memory (30 unless said otherwise):
        calls that move or look up blocks have one of their own. `wait` is the longest wait in
        seconds for a sidecar where there is none or one that is stopping, as while it is upgraded;
        without it that is an error at once."""
    @property
    def epoch(self) -> int:
        """Number of the sidecar's run."""
    @property
    def session(self) -> int:
        """Number of this session within the epoch."""
    @property
    def sidecar(self) -> str:
        """The sidecar's release."""
    @property
    def volumes(self) -> list[Volume]:
        """All volumes."""
    def volume(self, name: str) -> Volume:
        """The volume of this name; UnknownVolumeError names those there are."""
    def region_of(self, of: int | BlockMemory) -> tuple[Arena, int] | None:
        """The arena that an address or the beginning of a buffer lies in, and where in it; also
        through another mapping of the same file in this process, such as that of a memfd that was
        imported. Names memory as `(arena, positions, lengths)` do."""
    def store(self, name: str) -> Store:
        """The store of this name; NoStoreError when the volume of this name is none."""
    @property
    def copied_bytes(self) -> int:
        """Bytes of blocks that were copied by the calls of this client, because they were put from
        or got into memory that is in none of its arenas."""
    @property
    def dropped_hints(self) -> int:
        """Worths, times to live and demotions that were left out, because the sidecar is of a
        release without them: the puts and lookups themselves were sent."""
    def _watch_transfers(self) -> int | None:
        """A descriptor of the caller's, which hangs up once the sidecar's process and all of its
        transfers have ended. None of a sidecar of an earlier release, or of some kernels."""
    def create_arena(self, nbytes: int, *, pages: str = "auto") -> Arena:
        """Has the sidecar make an arena of at least so many bytes. `pages` is "auto" (what the
        sidecar's configuration says), "base", "2MiB" or "1GiB"."""
    def import_arena(self, file: int | _HasFileno, nbytes: int) -> Arena:
        """Registers memory of the program's own: a memfd of exactly so many bytes, fully
        allocated, sealed against shrinking, growing and sealing. The file stays the caller's."""
    @property
    def gpus(self) -> list[GpuInfo]:
        """The GPUs that the sidecar serves."""
    def gpu_region(
        self,
        tensors: Iterable[Any] | None = None,
        *,
        layout: Layout | None = None,
        block_dim: int = 0,
    ) -> GpuRegion:
        """Has the sidecar use GPU memory of this process: a paged cache of CUDA tensors, such as K
        and V of every layer, each with the block index in `block_dim` (see `kvrail.gpu.paged`), or
        what a layout says. The region keeps the tensors until it is closed."""
    def status(self) -> dict[str, Any]:
        """The sidecar's state: devices, modes in force, latencies, sessions."""
    @property
    def quarantined_bytes(self) -> int:
        """Bytes that hardware may still write although their request has ended."""
    @property
    def closed(self) -> bool:
        """Whether it was closed; then its calls raise ClosedError."""
    def close(self) -> None:
        """Ends the session, and with it its arenas and queues. Waits some seconds for what is
        in flight."""
    def __enter__(self) -> Client: ...
    def __exit__(self, *raised: object) -> None: ...

class Arena:
    """Memory shared with the sidecar: a writable buffer of bytes, for `numpy.frombuffer` and
    `torch.from_dlpack` without a copy. A context manager. Views stay valid for as long as they
    live, also when the arena is closed."""

    def __len__(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes of it."""
    @property
    def page_bytes(self) -> int:
        """Bytes of the pages behind it."""
    @property
    def note(self) -> str | None:
        """Why it has no reserved hugepages although those were wished for."""
    @property
    def closed(self) -> bool:
        """Whether it was closed; then requests with it raise ClosedError."""
    def close(self) -> None:
        """Takes it away from the sidecar. Waits until no device can touch it any more."""
    def __enter__(self) -> Arena: ...
    def __exit__(self, *raised: object) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class View:
    """A block in the sidecar's memory tier, where it lies: a read-only buffer of bytes, for
    `numpy.frombuffer(view)` and `torch.frombuffer(memoryview(view))` without a copy; PyTorch keeps
    no buffer of anything but a memoryview, and does not know that the memory cannot be written. Its
    bytes stay as they are until it is released and the last buffer of it is gone, whatever becomes
    of the block, as long as the sidecar does not end the session. A context manager. A client has 4
    to 255 views at once, one for each 128 blocks of the tier; a view keeps the client's session. It
    is not for a forked child."""

    def __len__(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes of it."""
    @property
    def released(self) -> bool:
        """Whether it was released; then it gives no more buffers."""
    def release(self) -> None:
        """Lets the sidecar use the memory for other blocks, at once or when the last buffer is
        gone."""
    def __enter__(self) -> View: ...
    def __exit__(self, *raised: object) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class GpuRegion:
    """A paged KV cache in GPU memory, attached. A context manager. It keeps its tensors until the
    sidecar has let go of their memory, also when it is dropped without being closed."""

    @property
    def blocks(self) -> int:
        """Blocks of the cache."""
    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all its fragments together."""
    @property
    def gpu(self) -> str:
        """UUID of its GPU."""
    def route(self, volume: Volume) -> tuple[str, str] | None:
        """How bytes get between the volume and the GPU ("direct", "staged", ...), and why so."""
    @property
    def closed(self) -> bool:
        """Whether it was closed; then requests with it raise ClosedError."""
    def close(self) -> None:
        """Takes it away from the sidecar. Waits until nothing can touch the memory any more."""
    def __enter__(self) -> GpuRegion: ...
    def __exit__(self, *raised: object) -> None: ...

class Completion:
    """The end of a request, or a notice that it is late."""

    @property
    def ticket(self) -> int:
        """What the queue gave out for it."""
    @property
    def tag(self) -> int:
        """The request's."""
    @property
    def status(self) -> str:
        """"OK", "IO_ERROR", ...; "LATE" is a notice, the end is still to come."""
    @property
    def ok(self) -> bool:
        """Whether every byte was moved."""
    @property
    def is_notice(self) -> bool:
        """Whether it only says that the deadline passed."""
    @property
    def bytes(self) -> int:
        """Bytes moved."""
    @property
    def checksum(self) -> int:
        """CRC-64/NVME of the bytes, if it was asked for."""
    @property
    def device_ns(self) -> int:
        """Nanoseconds at the device."""
    @property
    def queue_ns(self) -> int:
        """Nanoseconds from acceptance to submission."""
    def check(self) -> None:
        """Raises the exception of the status, unless all went well."""

class Volume:
    """A volume, with calls that wait. Offsets and lengths are multiples of `logical_block`,
    positions in arenas of `memory_alignment`."""

    @property
    def name(self) -> str:
        """Its name in the sidecar's configuration."""
    @property
    def uuid(self) -> str:
        """From its label; another one means other data."""
    @property
    def capacity(self) -> int:
        """Bytes it holds."""
    @property
    def stripe_bytes(self) -> int:
        """Bytes of one stripe; a request within one stripe goes to one device."""
    @property
    def logical_block(self) -> int:
        """Unit of offsets and lengths."""
    @property
    def memory_alignment(self) -> int:
        """Unit of positions in arenas."""
    @property
    def members(self) -> int:
        """Devices it is striped over."""
    def read(
        self,
        arena: Arena,
        offset: SupportsIndex,
        length: SupportsIndex,
        position: SupportsIndex = 0,
        **options: Unpack[Options],
    ) -> Completion:
        """Fills `length` bytes of the arena from `position` on with the volume's from `offset`."""
    def write(
        self,
        arena: Arena,
        offset: SupportsIndex,
        length: SupportsIndex,
        position: SupportsIndex = 0,
        **options: Unpack[Options],
    ) -> Completion:
        """Writes `length` bytes of the arena to the volume."""
    def read_many(
        self,
        arena: Arena,
        offsets: Numbers,
        positions: Numbers,
        length: Numbers,
        **options: Unpack[Options],
    ) -> list[Completion]:
        """Reads many ranges at once; their ends come in order. If some fail, all are waited for,
        and the exception of the first has the others in `failed`."""
    def write_many(
        self,
        arena: Arena,
        offsets: Numbers,
        positions: Numbers,
        length: Numbers,
        **options: Unpack[Options],
    ) -> list[Completion]:
        """Writes many ranges at once, as `read_many` reads them."""
    def read_blocks(
        self,
        region: GpuRegion,
        offsets: Numbers,
        blocks: Numbers,
        *,
        part: tuple[int, int] | None = None,
        **options: Unpack[Options],
    ) -> list[Completion]:
        """Fills blocks of a region, each with the volume's bytes from its offset on; ends as for
        `read_many`. `part` is the first byte and the number of bytes to move of each block."""
    def write_blocks(
        self,
        region: GpuRegion,
        offsets: Numbers,
        blocks: Numbers,
        *,
        part: tuple[int, int] | None = None,
        **options: Unpack[Options],
    ) -> list[Completion]:
        """Writes blocks of a region, as `read_blocks` reads them. Synchronize the streams that
        made them first."""
    def flush(self, **options: Unpack[Options]) -> Completion:
        """Makes every write that was completed before durable."""
    def discard(
        self, offset: SupportsIndex, length: SupportsIndex, **options: Unpack[Options]
    ) -> Completion:
        """Lets the devices forget a range."""
    def open_queue(self, depth: int = 128) -> Queue[Completion]:
        """A queue that holds so many pieces of requests, rounded up to a power of two."""

class Store:
    """A store: blocks by key, in namespaces."""

    @property
    def name(self) -> str:
        """Its name in the sidecar's configuration."""
    @property
    def block_bytes_max(self) -> int:
        """Most bytes of a block."""
    @property
    def memory_alignment(self) -> int:
        """Unit of positions in arenas: a block that begins elsewhere in one is copied."""
    @property
    def members(self) -> int:
        """Devices it has."""
    def namespace(
        self, name: str, identity: Mapping[str, Any] | str, *, create: bool = True
    ) -> Namespace:
        """Opens a namespace, and makes it if it is not there (else MissError). `identity` names
        everything that makes blocks incompatible: model, revision, dtype, layout, tokens in a
        block, rank. NamespaceError names the field in which it differs from the one that the
        namespace was made with.

        >>> space = store.namespace("demo", {"model": "m", "dtype": "fp8"})  # doctest: +SKIP
        """
    def namespaces(self) -> list[NamespaceInfo]:
        """All namespaces, with what they hold."""
    def events(self) -> Events:
        """The feed of what is gone from now on, in all namespaces."""
    def clear(self, name: str) -> None:
        """Makes all blocks of a namespace unreachable, for everybody."""
    def remove(self, name: str) -> None:
        """Forgets a namespace, its blocks and its identity."""

class Namespace:
    """Blocks that programs of the same identity share. All calls wait, may be made by any thread,
    and give the interpreter lock away.

    Keys are bytes of any length or integers from 0 to 2**128 - 1, one in a sequence or each row of
    an array; they are folded to 128 bits by BLAKE3. `kvrail.uniform` says that they need not be.

    Buffers are a sequence with contiguous memory for each block, an array whose rows they are (all
    of it, for one key), or
    `(arena, positions, lengths)` with arrays of integers. What lies in an arena of this client is
    moved without a copy if it begins at a multiple of `Store.memory_alignment`; anything else is
    copied once (`Client.copied_bytes`).

    A namespace that another program clears is opened anew: what was in flight ends as a miss, and
    is never another block."""

    @property
    def name(self) -> str:
        """Its name."""
    @property
    def identity(self) -> str:
        """Its identity, as JSON."""
    def put(
        self, key: BlockName | Keys, buffer: BlockMemory, **options: Unpack[PutOptions]
    ) -> str:
        """Puts the bytes of a buffer as the block of this key. "OK"; "PRESENT": it was there
        already and stays as it was; "PENDING": another program puts it now; "DECLINED": the store
        did not take it. None of them is an error.

        >>> space.put(b"key", b"bytes")  # doctest: +SKIP
        'OK'
        """
    @overload
    def get(
        self, key: BlockName | Keys, buffer: None = None, **options: Unpack[BlockOptions]
    ) -> bytes | None:
        """The bytes of a block (a copy), or None: a miss is no error."""
    @overload
    def get(
        self, key: BlockName | Keys, buffer: BlockMemory, **options: Unpack[BlockOptions]
    ) -> int | None:
        """Fills the buffer with the block of this key; its length, or None: a miss is no error.
        Bytes behind the block stay as they were. TooSmallError has the length that is needed."""
    def view(self, key: BlockName | Keys) -> View | None:
        """The block of this key in the sidecar's memory tier, without a copy, a request or a read;
        None where the tier does not have it, or this client has as many views as it may: get it
        then. Verified at its first view by this client.

        >>> with space.view(b"key") as view:  # doctest: +SKIP
        ...     numpy.frombuffer(view, numpy.uint8).sum()
        """
    def _views(self, keys: Iterable[BlockName] | Keys) -> list[tuple[View, int, int]]:
        """Views of the blocks from the first key on, until one has none: each with its address and
        the CRC that its bytes must have. Nothing is verified here. The interpreter lock is kept."""
    def _views_left(self) -> int:
        """Views that this client may open now; the first call asks the sidecar."""
    def _tier_memory(self) -> list[tuple[int, int]]:
        """The memory tiers as they are mapped here while this object is there: address and bytes
        of each. The sidecar writes all of it but the blocks that are viewed."""
    def put_many(
        self,
        keys: Iterable[BlockName] | Keys,
        buffers: Iterable[BlockMemory] | BlockMemory | tuple[Arena, Numbers, Numbers],
        **options: Unpack[PutOptions],
    ) -> Results:
        """Puts many blocks; statuses as of `put`, in the order of the keys.

        >>> space.put_many(keys, array).counts  # doctest: +SKIP
        {'OK': 98, 'PRESENT': 2}
        """
    def get_many(
        self,
        keys: Iterable[BlockName] | Keys,
        buffers: Iterable[BlockMemory] | BlockMemory | tuple[Arena, Numbers, Numbers],
        **options: Unpack[GetOptions],
    ) -> Results:
        """Gets many blocks: "OK", "MISS", "TOO_SMALL" (`Results.lengths` has what is needed), or
        the failure of a device. No two buffers may overlap.

        >>> hits = space.get_many(keys, (arena, positions, lengths))  # doctest: +SKIP
        >>> hits.prefix  # doctest: +SKIP
        64
        """
    def drop(self, keys: Iterable[BlockName] | Keys, **options: Unpack[DropOptions]) -> Results:
        """Forgets blocks: "OK", or "MISS" for those that were not there."""
    def lookup(
        self,
        keys: Iterable[BlockName] | Keys,
        *,
        hold: float = 0.0,
        prefix_only: bool = False,
        touch: bool = False,
        demote: bool = False,
        fetch: bool = False,
        timeout: float | None = None,
    ) -> Found:
        """Looks which blocks are there. What is found is not evicted for `hold` seconds;
        `held` counts those. Blocks that memory alone has (`memory_tier.write_late`) are not among
        them: they count as used.
        With `prefix_only` little is asked for behind the first key that is missing. With `touch`
        what is found counts as used, as by a get; with `demote` it goes first until it is used
        again, as of a session that has ended; with `fetch` it comes into the sidecar's memory tier
        in the background, as it is needed soon: 64 blocks of each drive at once, and what is beyond
        stays on the drives until it is asked for again.

        >>> space.lookup(keys, hold=5.0).prefix  # doctest: +SKIP
        64
        """
    def release(
        self, keys: Iterable[BlockName] | Keys, *, timeout: float | None = None
    ) -> None:
        """Ends this client's holds on these blocks."""
    def probe(self, key: BlockName | Keys) -> bool | None:
        """Whether a block is there, without asking the sidecar: less than a microsecond, whether
        it sleeps or not, and the interpreter lock is kept. Of a block whose put was acknowledged to
        anybody it is never False, unless it was dropped, cleared or evicted since; True is a hint:
        a get may be a miss. None where only `lookup` knows: the store still reads its drive, the
        namespace was cleared by another program, the sidecar is gone. The first call for a store
        waits for the sidecar's tables.

        >>> space.probe(b"key")  # doctest: +SKIP
        True
        """
    def probe_many(self, keys: Iterable[BlockName] | Keys) -> Probed:
        """As `probe`, for many keys.

        >>> space.probe_many(keys).prefix  # doctest: +SKIP
        64
        """
    def list(self) -> Listing:
        """Its blocks, one by one, with their metadata: all that are there from its begin to its
        end, in the order of the drive. One that the store moves meanwhile may come twice. The pages
        come over the socket: requests do not wait for them.

        >>> {block.metadata: block.length for block in space.list()}  # doctest: +SKIP
        """
    def explain(self, key: BlockName | Keys) -> dict[str, Any]:
        """What the store knows of a key: where its block is, or what became of it."""
    def queue(self, depth: int = 128) -> Queue[GroupEnd]:
        """A queue that has so many blocks in flight, rounded up to a power of two."""
    def clear(self) -> None:
        """Makes all its blocks unreachable, for everybody."""
    def usage(self) -> NamespaceInfo:
        """What it holds, on all members."""

class Block:
    """A block that a listing has met."""

    @property
    def key(self) -> int:
        """Its bits, as `uniform` takes them; a name that was folded is not to be had from them: put
        it into the metadata."""
    @property
    def length(self) -> int:
        """Its bytes."""
    @property
    def metadata(self) -> bytes:
        """What was put with it."""
    @property
    def depth(self) -> int:
        """How deep in its prompt it is."""
    @property
    def put_unix_s(self) -> int:
        """Seconds since 1970 when it was put."""
    @property
    def member(self) -> int:
        """Place of its member in the store."""

class Listing(Iterator[Block]):
    """The blocks of a namespace, one by one."""

    def __iter__(self) -> Listing: ...
    def __next__(self) -> Block: ...

class Gone:
    """A block that is not there any more."""

    @property
    def key(self) -> int:
        """Its bits; 0 where a whole namespace was cleared."""
    @property
    def uid(self) -> int:
        """Of its namespace, as `Namespace.usage` has it."""
    @property
    def length(self) -> int:
        """Its bytes."""
    @property
    def why(self) -> str:
        """"evicted", "dropped" or "cleared"."""
    @property
    def metadata(self) -> bytes:
        """What was put with it, if it was evicted."""
    @property
    def position(self) -> int:
        """Its number in the feed."""

class Events:
    """The feed of what is gone from a store. Any number of them may follow one store."""

    def poll(self, *, timeout: float | None = None) -> tuple[list[Gone], int]:
        """What is gone since the last call, and how many more are gone that the sidecar has not
        remembered: above 0, list again. A sidecar that is slow to answer is waited for as long as
        the client says, or for so many seconds; then a later call tells."""

class GroupEnd:
    """The end of a group or lookup of a namespace's `Queue`: all its blocks have ended."""

    @property
    def ticket(self) -> int:
        """What the queue gave out for it."""
    @property
    def results(self) -> Results | None:
        """Of a put, get or drop. Raises why its namespace could not be opened again, if it was
        cleared or removed meanwhile."""
    @property
    def found(self) -> Found | None:
        """Of a lookup. Raises what it failed with, such as `TimedOutError`."""

class Keys(Sequence[int]):
    """Keys that were folded once, for many calls.

    >>> keys = kvrail.Keys([b"a", b"b"])  # doctest: +SKIP
    """

    def __init__(self, keys: Iterable[BlockName]) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[int]: ...
    @overload
    def __getitem__(self, at: SupportsIndex) -> int:
        """The bits of one key."""
    @overload
    def __getitem__(self, at: slice) -> Keys:
        """Some of the keys."""
    def tobytes(self) -> bytes:
        """16 bytes for each, lowest byte first."""

def uniform(keys: Iterable[BlockName] | BlockName) -> Keys:
    """Keys of hashes that are uniform by themselves, such as SHA-256: their first 16 bytes are the
    key (lowest byte first), or all bits of integers. Nothing is folded.

    >>> space.lookup(kvrail.uniform(block_hashes))  # doctest: +SKIP
    """

class Results(Sequence[str]):
    """How a call for many blocks ended: one status for each key, in their order."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    @overload
    def __getitem__(self, at: SupportsIndex) -> str:
        """The status of one block."""
    @overload
    def __getitem__(self, at: slice) -> list[str]:
        """Those of some."""
    @property
    def ok(self) -> memoryview:
        """For each key whether the block is there now ("OK" or "PRESENT"), was got, or dropped: a
        view of format "?", for `numpy.asarray` and for indexing."""
    @property
    def all_ok(self) -> bool:
        """Whether all are."""
    @property
    def prefix(self) -> int:
        """Keys from the first on that are."""
    @property
    def lengths(self) -> memoryview:
        """Bytes of each block, of the buffer that it needs ("TOO_SMALL"), or of what was dropped; a
        view of format "Q"."""
    @property
    def replaced(self) -> memoryview:
        """Of a put with `replace=True`: bytes of the other block that it has dropped, 0 where there
        was none; a view of format "Q"."""
    @property
    def crcs(self) -> memoryview:
        """Of a get with `verify=False`: the CRC-64/NVME that each block's bytes must have, 0 where
        there are none; a view of format "Q"."""
    @property
    def queue_ns(self) -> int:
        """The longest that one of them waited in the sidecar for its drive, in nanoseconds."""
    @property
    def counts(self) -> dict[str, int]:
        """How many blocks have each status."""
    @property
    def declines(self) -> dict[str, int]:
        """How many were declined for each reason: ``"colder"``, ``"budget"``, ``"first_sight"``,
        ``"index_full"``, ``"busy"``, ``"starting"``, ``"broken"``, ``"refused"``, ``"given_up"``;
        ``"behind"`` is the rest of a chain, ``"stale"`` a namespace that was cleared."""
    @property
    def copied_bytes(self) -> int:
        """Bytes that were copied, because they were in no arena."""
    def reason(self, at: SupportsIndex) -> str | None:
        """What there is to say of one block beside its status, such as why it was declined."""
    def check(self) -> None:
        """Raises the exception of the first block that is neither there, nor missing, nor
        declined: a device or a buffer has failed it."""

class Found(Sequence[bool]):
    """What a lookup found."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[bool]: ...
    @overload
    def __getitem__(self, at: SupportsIndex) -> bool:
        """Whether one block is there."""
    @overload
    def __getitem__(self, at: slice) -> list[bool]:
        """Those of some."""
    @property
    def prefix(self) -> int:
        """Keys from the first on that are all there."""
    @property
    def there(self) -> memoryview:
        """For each key that was asked for whether its block is there; a view of format "?". A hint:
        the block may be evicted or dropped since."""
    @property
    def chain(self) -> ChainWord:
        """What the store has of the chain that these keys are, for puts of what is missing."""
    @property
    def held(self) -> int:
        """Keys that are held now."""
    @property
    def warming(self) -> int:
        """Keys that may yet turn up: the store has not read all of its drive."""
    @property
    def load_seconds(self) -> float | None:
        """Seconds that gets of the prefix would take if they began now: what is ahead of them at
        each drive, and their bytes at the rate of its last reads. None as long as a drive was not
        measured, and from a sidecar of an earlier release."""
    def load_seconds_of(self, count: int) -> float | None:
        """The same for the first keys of the prefix."""

class Probed(Sequence[bool | None]):
    """What a probe of many keys told: for each whether its block is there, None if nobody knows."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[bool | None]: ...
    @overload
    def __getitem__(self, at: SupportsIndex) -> bool | None:
        """Whether one block is there."""
    @overload
    def __getitem__(self, at: slice) -> list[bool | None]:
        """Those of some."""
    @property
    def prefix(self) -> int:
        """Keys from the first on that are all there."""
    @property
    def there(self) -> memoryview:
        """For each key whether its block is there; a view of format "?"."""
    @property
    def chain(self) -> ChainWord:
        """What the store has of the chain that these keys are, as far as nobody has to be asked."""
    @property
    def unknown(self) -> int:
        """Keys of which only a lookup knows."""

class Queue(Generic[_End]):
    """Requests without waiting, for one thread. `Volume.open_queue` opens one for ranges, whose
    ends are `Completion`s, `Namespace.queue` one for blocks, whose ends are `GroupEnd`s. A context
    manager. `fileno` makes it fit for selectors: call `arm`, wait until the descriptor is readable,
    `poll`.

    Each call for blocks submits a group that ends together, of any size; what does not fit goes out
    as earlier blocks end, with each `poll` or `wait`. Keep the memory of a request or a group alone
    until it has ended.

    >>> ticket = queue.submit_get(keys, (arena, positions, lengths))  # doctest: +SKIP
    >>> [end.ticket for end in queue.wait()]  # doctest: +SKIP
    [1]
    """

    def read(
        self: Queue[Completion],
        arena: Arena,
        offset: SupportsIndex,
        length: SupportsIndex,
        position: SupportsIndex = 0,
        **options: Unpack[Options],
    ) -> int:
        """Submits a read; returns its ticket. QueueFullError: poll first."""
    def write(
        self: Queue[Completion],
        arena: Arena,
        offset: SupportsIndex,
        length: SupportsIndex,
        position: SupportsIndex = 0,
        **options: Unpack[Options],
    ) -> int:
        """Submits a write; returns its ticket. QueueFullError: poll first."""
    def read_many(
        self: Queue[Completion],
        arena: Arena,
        offsets: Numbers,
        positions: Numbers,
        length: Numbers,
        **options: Unpack[Options],
    ) -> range:
        """Submits reads until all are, the queue is full or one cannot be; returns the tickets of
        those that were. Raises only if the first one cannot be."""
    def write_many(
        self: Queue[Completion],
        arena: Arena,
        offsets: Numbers,
        positions: Numbers,
        length: Numbers,
        **options: Unpack[Options],
    ) -> range:
        """Submits writes, as `read_many` does reads."""
    def read_blocks(
        self: Queue[Completion],
        region: GpuRegion,
        offsets: Numbers,
        blocks: Numbers,
        *,
        part: tuple[int, int] | None = None,
        **options: Unpack[Options],
    ) -> range:
        """Submits reads into blocks of a region, as `read_many` does into an arena."""
    def write_blocks(
        self: Queue[Completion],
        region: GpuRegion,
        offsets: Numbers,
        blocks: Numbers,
        *,
        part: tuple[int, int] | None = None,
        **options: Unpack[Options],
    ) -> range:
        """Submits writes of blocks of a region, as `read_blocks` does reads."""
    def flush(self: Queue[Completion], **options: Unpack[Options]) -> int:
        """Submits a flush; returns its ticket."""
    def discard(
        self: Queue[Completion],
        offset: SupportsIndex,
        length: SupportsIndex,
        **options: Unpack[Options],
    ) -> int:
        """Submits a discard; returns its ticket."""
    def submit_put(
        self: Queue[GroupEnd],
        keys: Iterable[BlockName] | Keys,
        buffers: Iterable[BlockMemory] | BlockMemory | tuple[Arena, Numbers, Numbers],
        **options: Unpack[PutOptions],
    ) -> int:
        """Submits a put, as `Namespace.put_many` does; returns its ticket."""
    def submit_get(
        self: Queue[GroupEnd],
        keys: Iterable[BlockName] | Keys,
        buffers: Iterable[BlockMemory] | BlockMemory | tuple[Arena, Numbers, Numbers],
        **options: Unpack[GetOptions],
    ) -> int:
        """Submits a get, as `Namespace.get_many` does; returns its ticket."""
    def submit_drop(
        self: Queue[GroupEnd], keys: Iterable[BlockName] | Keys, **options: Unpack[DropOptions]
    ) -> int:
        """Submits a drop; returns its ticket."""
    def submit_lookup(
        self: Queue[GroupEnd],
        keys: Iterable[BlockName] | Keys,
        *,
        hold: float = 0.0,
        prefix_only: bool = False,
        touch: bool = False,
        demote: bool = False,
        fetch: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Asks which blocks are there, without waiting; returns its ticket. What came of it is
        fetched as all ends are, a timeout as well."""
    def poll(self, most: int | None = None) -> list[_End]:
        """Fetches what has ended, without waiting."""
    def wait(self, count: int = 1, timeout: float | None = None) -> list[_End]:
        """Waits until `count` requests or groups have ended, nothing is in flight, or the seconds
        are over; fetches what has ended."""
    def arm(self) -> bool:
        """Prepares to wait for `fileno`. True: something has ended already, so poll instead."""
    def fileno(self) -> int:
        """A descriptor that becomes readable when something has ended, once armed. Never read."""
    @property
    def capacity(self) -> int:
        """Blocks, or pieces of requests for ranges, that it has in flight at most."""
    @property
    def outstanding(self) -> int:
        """Of a volume: pieces of requests in flight. Of a namespace: groups and lookups that were
        not fetched yet."""
    @property
    def closed(self) -> bool:
        """Whether it was closed; then its calls raise ClosedError."""
    def close(self, timeout: float = 5.0) -> None:
        """Waits until nothing is in flight, and closes it. What was not submitted is not done."""
    def __enter__(self) -> Queue[_End]: ...
    def __exit__(self, *raised: object) -> None: ...

def _forked() -> None: ...
