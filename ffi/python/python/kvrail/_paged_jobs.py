"""Jobs of a paged cache, what they may ask for, and the waves that their blocks move in."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import kvrail
from kvrail._mover import Batch, Way

METADATA_BYTES_MAX = 1024
"""Longest metadata of a block."""

PRIORITIES = ("demand", "prefetch", "background")
"""Priorities, in order."""

WORTHS = ("low", "normal", "high")
"""Worths of blocks."""

TTL_MAX = 1 << 32
"""Longest time to live, in seconds."""

Work = Literal["put", "get"]


@dataclass(eq=False)
class Job:
    """Blocks of one call."""

    ticket: int
    work: Work
    keys: kvrail.Keys
    rows: list[list[int]]
    options: Mapping[str, Any]
    each: Mapping[str, Sequence[Any]]
    """Options with a value for each block."""
    words: list[str] = field(init=False)
    reasons: dict[int, str] = field(default_factory=dict)
    prefix: bool = False
    """Of no use behind a block that is not there."""
    patience: float | None = None
    """Seconds without an answer of a drive after which it is given up."""
    since: float = field(default_factory=time.monotonic)
    behind: Any = None
    """Work of the caller that its waves wait for on the GPU."""
    waits: bool = True
    """Whether no wave of it has waited yet."""
    begun: int = 0
    open: int = field(init=False)

    def __post_init__(self) -> None:
        self.words, self.open = ["LATE"] * len(self.keys), len(self.keys)

    def end(self, at: int, word: str, reason: str | None = None) -> None:
        self.words[at] = word
        if reason is not None:
            self.reasons[at] = reason
        self.open -= 1

    def give_up(self, places: Iterable[int], reason: str) -> None:
        for at in places:
            self.end(at, "MISS", reason)

    def next(self, most: int) -> list[int]:
        """The places of its next blocks, at most so many."""
        return list(range(self.begun, min(len(self.keys), self.begun + most)))

    def named(self, places: Sequence[int]) -> kvrail.Keys:
        """The keys of some of its blocks."""
        if not places:
            return self.keys[:0]
        first, end = places[0], places[0] + len(places)
        return self.keys[first:end] if places == list(range(first, end)) else kvrail.uniform(
            [self.keys[at] for at in places]
        )


@dataclass(eq=False)
class Wave:
    """Some blocks of a job, on their way."""

    job: Job
    places: list[int]
    batch: Batch
    slots: list[int] = field(default_factory=list)
    """Of the pinned memory."""
    views: list[kvrail.View] = field(default_factory=list)
    """Of blocks that the GPU reads where the memory tier has them."""
    addresses: list[int] = field(default_factory=list)
    """Where the blocks' bytes are."""
    crcs: list[int] = field(default_factory=list)
    """Of a get: CRCs that the pages must have."""
    checked: Sequence[int] = ()
    """Of a put: blocks that are read, because they are in doubt, before pages are read."""
    given_up: bool = False
    """Its job does not wait for it: the bytes go nowhere."""
    begun_ns: int = 0
    """When their requests were submitted."""
    among: int = 0
    """Waves that were with the drives then, this one included."""

    @property
    def way(self) -> Way:
        return Way.OUT if self.job.work == "put" else Way.IN

    def only(self, indices: Sequence[int]) -> None:
        self.places = [self.places[at] for at in indices]
        self.slots = [self.slots[at] for at in indices]
        self.addresses = [self.addresses[at] for at in indices]
        self.crcs = [self.crcs[at] for at in indices] if self.crcs else []

    def let_go(self) -> None:
        """The GPU reads no block of the memory tier any more."""
        for view in self.views:
            view.release()
        self.views = []


def check(work: Work, options: Mapping[str, Any], metadata: Sequence[bytes] | None) -> None:
    """Refuses arguments that a queue would refuse only when the blocks have left the GPU."""
    of_puts = {"priority", "durable", "depth", "chain", "replace", "worth", "ttl"}
    known = {"priority", "prefix", "patience"} if work == "get" else of_puts
    if unknown := options.keys() - known:
        names = ", ".join(sorted(known))
        raise TypeError(f"{min(unknown)!r} is no option of this call; there are {names}")
    if (priority := options.get("priority", "demand")) not in PRIORITIES:
        text = f'priority is {priority!r}; it must be "demand", "prefetch" or "background"'
        raise kvrail.RequestError(text)
    if (ttl := options.get("ttl")) is not None and not 0 <= ttl <= TTL_MAX:
        raise kvrail.RequestError(f"ttl is {ttl}; it must be seconds, {TTL_MAX} at most")
    for at, piece in enumerate(metadata or ()):
        if len(piece) > METADATA_BYTES_MAX:
            text = f"metadata of block {at}: {len(piece)} bytes, {METADATA_BYTES_MAX} at most"
            raise kvrail.RequestError(f"{text}; put shorter metadata")


def each_of(
    options: Mapping[str, Any], metadata: Sequence[bytes] | None, count: int
) -> dict[str, Sequence[Any]]:
    """Options of each block: a wave has some of them."""
    each: dict[str, Sequence[Any]] = {} if metadata is None else {"metadata": metadata}
    chain, depth = options.get("chain", "extends"), options.get("depth", 0)
    words = [chain] * count if isinstance(chain, str | bool) else list(chain)
    for word in words:
        if word not in {"extends", "begins"}:
            text = f'chain is {word!r}; it must be "extends" or "begins", or a word for each block'
            raise kvrail.RequestError(text)
    if "chain" in options:
        each["chain"] = words
    deeper = range(count) if isinstance(options.get("chain"), str) else [0] * count
    if "depth" in options or any(deeper):
        depths = [int(depth) + it for it in deeper] if hasattr(depth, "__index__") else depth
        each["depth"] = list(depths)
    worth = options.get("worth")
    for word in worth if isinstance(worth, list | tuple) else WORTHS if worth is None else [worth]:
        if word not in WORTHS:
            text = f'worth is {word!r}; it must be "low", "normal" or "high"'
            raise kvrail.RequestError(f"{text}, or one of these words for each block")
    if isinstance(worth, list | tuple):
        each["worth"] = worth
    return each
