"""Groups of blocks of an engine: begun now, ended later, once each."""

import os
import select
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

import kvrail
from kvrail._chains import Places
from kvrail._mapping import Memory
from kvrail._types import Worth

QUARANTINE_S = 5.0
"""Time for which memory that a dead sidecar was filling is kept from the engine, where nothing
shows when its drives write there no more."""

LOOK_S, LOOK_LATER_S = 0.01, 0.5
"""Time between two looks at what shows it: within QUARANTINE_S, and afterwards."""

ANSWERS = frozenset({"OK", "PRESENT", "PENDING", "DECLINED", "MISS"})
"""Statuses that are no failures."""

STORED = frozenset({"OK", "PRESENT", "PENDING"})
"""Statuses of puts behind which the block is in the store, or is on its way."""

STALL_S = 0.1
"""A get for which no drive answers for this long is not waited for where something else can be done
instead."""

SILENT_S = 0.04
"""Time behind which a get has the sidecar asked whether it answers, and time without an answer
behind which it is not waited for. On an idle machine it answers within 0.2 ms."""

TOUCH_S = 1.0
"""A touch that is not answered by then is given up."""

T = TypeVar("T")
Work = Literal["put", "get"]


@dataclass(frozen=True)
class Blocks:
    """Blocks of one group: the engine's names, and the places of their bytes."""

    keys: Sequence[bytes]
    addresses: Sequence[int]
    lengths: Sequence[int]
    metadata: Sequence[bytes] | None = None
    """Metadata of each put block, for listings and the feed of gone blocks."""
    places: Places | None = None
    """Places of put blocks in their chains, where these are known."""
    worths: Sequence[Worth] | None = None
    """The worth of each put block; none where all are worth as much as others."""

    @property
    def nbytes(self) -> int:
        return sum(self.lengths)


@dataclass(frozen=True)
class Ended(Generic[T]):
    """A group that has ended, and when its memory is the engine's again."""

    tag: T
    work: Work
    blocks: Blocks
    ok: Sequence[bool]
    """For each block whether it is in the store, or whole in its memory."""
    words: Sequence[str]
    """For each block its status; empty if no sidecar has answered."""
    declines: Mapping[str, int]
    """How many puts were declined, by reason."""
    replaced: Sequence[int]
    """For each block that was put the bytes of the other one that it has replaced."""
    seconds: float

    @property
    def went_well(self) -> bool:
        """Whether nothing has failed: a miss is an answer, and so is a put that is declined."""
        return bool(self.words) and ANSWERS.issuperset(self.words)

    @property
    def was_settled(self) -> bool:
        """Whether each block that was put is in the store, or the store has room for none of the
        new chains that they belong to: then there is no remedy."""
        settled = self.declines.keys() <= {"colder"} and self.went_well
        return settled and "MISS" not in self.words


@dataclass
class _Group(Generic[T]):
    tag: T
    work: Work
    blocks: Blocks
    is_copied: bool = False
    """Whether drives read and write an arena of the client's instead of its memory."""
    begun: float = field(default_factory=time.monotonic)


class Transfers:
    """Whether transfers between host memory and drives of a sidecar that was killed have ended:
    the end of a pipe, which hangs up then. An earlier release of the sidecar has none."""

    def __init__(self, client: kvrail.Client) -> None:
        self._pipe: int | None = None
        self._pipe = client._watch_transfers()

    @property
    def are_seen(self) -> bool:
        return self._pipe is not None

    def have_ended(self, within: float = 0.0) -> bool:
        """Waits for that, at most `within` seconds."""
        if self._pipe is None:
            time.sleep(within)
            return False
        looks = select.poll()
        looks.register(self._pipe, 0)  # a hang-up is always among the answers
        answers = looks.poll(within * 1000)
        if any(events & select.POLLHUP for _, events in answers):
            return True
        if answers:
            time.sleep(within)  # someone has closed the descriptor: it shows nothing any more
        return False

    def __del__(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)


@dataclass(frozen=True)
class _Kept(Generic[T]):
    """A get whose memory a drive may still write."""

    end: Ended[T]
    until: float
    """When its time is over."""
    session: "Session"
    was_closed: bool
    """Whether this process has ended the session itself: its sidecar may live."""

    def is_over(self, now: "Session | None") -> bool:
        """Whether no drive writes there any more.

        :param now: the session that there is now. A sidecar that lives shows nothing, and neither
            does an earlier release: there, time has to do. Behind one that has ended time proves
            nothing, for a drive may answer whenever it can.
        """
        transfers = self.session.transfers
        if transfers.have_ended():
            return True
        is_alive = self.was_closed or (now is not None and now.run == self.session.run)
        return (is_alive or not transfers.are_seen) and self.until <= time.monotonic()

    def look_at(self) -> float:
        """When to look again."""
        now = time.monotonic()
        if not self.session.transfers.are_seen:
            return self.until
        return now + (LOOK_S if now < self.until else LOOK_LATER_S)

    def wait(self, seconds: float) -> None:
        left = self.until - time.monotonic()
        self.session.transfers.have_ended(min(seconds, left) if left > 0 else seconds)


@dataclass(frozen=True, eq=False)
class Session:
    """Resources of one run of the sidecar."""

    client: kvrail.Client
    space: kvrail.Namespace
    memory: Memory
    events: kvrail.Events
    uid: int
    pulse: "kvrail.Queue[kvrail.GroupEnd]"
    """Asks whether the sidecar answers, without waiting."""
    reads_tier: bool
    """Whether the sidecar shows this engine a memory tier."""
    transfers: "Transfers"
    run: int
    """Which run of the sidecar it is with."""


class Attached(Protocol):
    """What a lane needs of the link that it belongs to."""

    @property
    def session(self) -> Session | None:
        """The session; none while there is no sidecar."""

    @property
    def hangs(self) -> bool:
        """Whether a drive holds groups for longer than drives do."""

    def silent_s(self) -> float:
        """Seconds for which the sidecar has not answered a question."""

    def watch(self, age: Callable[[], float]) -> None:
        """Counts the lane's oldest group, whose age in seconds `age` returns."""

    def failed(self, session: Session, error: kvrail.KvrailError) -> None:
        """Logs an error of the session, and lets a session go that has ended."""

    def keeps(self, gets: int, seconds: float) -> None:
        """Logs that memory of this number of gets is kept for longer than drives take."""


class Lane(Generic[T]):
    """Groups of blocks. For one thread at a time; each thread of an engine that moves blocks has a
    lane of its own."""

    def __init__(self, link: Attached, depth: int = 128) -> None:
        self._link, self._depth = link, depth
        self._session: Session | None = None
        self._queue: kvrail.Queue[kvrail.GroupEnd] | None = None
        self._flying: dict[int, _Group[T]] = {}
        self._ended: deque[Ended[T]] = deque()
        self._kept: list[_Kept[T]] = []
        self._storing_bytes = 0
        self._oldest: float | None = None
        self._touch: int | None = None
        link.watch(self.age)

    def begin(self, work: Work, tag: T, blocks: Blocks) -> None:
        """Begins a group. It ends in :meth:`poll`, exactly once, whatever happens."""
        group = _Group(tag, work, blocks)
        if work == "put":
            self._storing_bytes += blocks.nbytes
        queue = None if self._link.hangs or not blocks.keys else self._open()
        if queue is None or self._session is None:
            self._end(group, None)
            return
        try:
            self._flying[_submit(queue, self._session, group)] = group
        except kvrail.KvrailError as error:
            self._link.failed(self._session, error)
            self._end(group, None)
        self._note_oldest()

    def poll(self) -> list[Ended[T]]:
        """The groups that have ended."""
        self._take(0.0)
        if self._kept:
            self._release()
        ended = list(self._ended)
        self._ended.clear()
        return ended

    def _release(self) -> None:
        """Ends gets whose memory no drive writes any more."""
        now, kept = self._link.session, list(self._kept)
        over = [it.is_over(now) for it in kept]
        self._ended.extend(it.end for it, is_over in zip(kept, over, strict=True) if is_over)
        self._kept = [it for it, is_over in zip(kept, over, strict=True) if not is_over]
        since = [time.monotonic() - it.until for it in self._kept]
        if since and max(since) > 0.0:
            self._link.keeps(len(since), max(since) + QUARANTINE_S)

    def late(self, expected: Callable[[T], float | None] = lambda _: None) -> list[T]:
        """Gets that are not worth a wait, although their memory is not the engine's yet: their
        sidecar has ended, or does not answer, or they take much longer than they should.

        :param expected: the seconds that a get should take.
        """
        kept, now = [it.end.tag for it in self._kept], time.monotonic()
        gets = [(it.tag, now - it.begun) for it in self._flying.values() if it.work == "get"]
        is_asked = max((age for _, age in gets), default=0.0) > SILENT_S
        is_silent = is_asked and self._link.silent_s() > SILENT_S

        def is_late(tag: T, age: float) -> bool:
            if is_silent:
                return age > SILENT_S
            should = expected(tag)
            return should is not None and age > STALL_S + 2 * should

        return kept + [tag for tag, age in gets if is_late(tag, age)]

    def wait(self, seconds: float) -> None:
        """Waits until a group has ended, nothing is in flight, or the time is over."""
        if self._flying:
            self._take(seconds)
        elif self._kept:
            self._kept[0].wait(seconds)
            self._release()

    def touch(self, keys: Sequence[bytes], *, demote: bool = False) -> bool:
        """Makes the store count blocks as used, without waiting, or with `demote` as those that go
        first. False: it cannot now, because the last touch is in flight, or there is no sidecar."""
        return self._look(keys, touch=not demote, demote=demote)

    def fetch(self, keys: Sequence[bytes]) -> bool:
        """Has the sidecar's memory tier read blocks that are loaded soon, as `touch`. Where it has
        none there is nothing to do."""
        session = self._link.session
        return session is None or not session.reads_tier or self._look(keys, fetch=True)

    def _look(self, keys: Sequence[bytes], **how: bool) -> bool:
        self._take(0.0)
        queue = None if self._touch is not None or self._link.hangs else self._open()
        if queue is None or self._session is None:
            return False
        try:
            self._touch = queue.submit_lookup(keys, timeout=TOUCH_S, **how)
        except kvrail.KvrailError as error:
            self._link.failed(self._session, error)
            return False
        return True

    @property
    def works(self) -> bool:
        """Whether there is a sidecar, and none of its drives hangs."""
        return self._link.session is not None and not self._link.hangs

    @property
    def looks(self) -> bool:
        """Whether the last touch or fetch is in flight."""
        self._take(0.0)
        return self._touch is not None

    @property
    def flying(self) -> int:
        """Groups that are in flight."""
        return len(self._flying)

    @property
    def busy(self) -> int:
        """Groups whose memory is not the engine's yet."""
        return len(self._flying) + len(self._kept)

    @property
    def pending(self) -> int:
        """Groups that :meth:`poll` has not handed out yet."""
        return self.busy + len(self._ended)

    @property
    def storing_bytes(self) -> int:
        """Bytes of puts that are in flight."""
        return self._storing_bytes

    def age(self) -> float:
        """Seconds since the oldest group that is in flight began. For any thread."""
        oldest = self._oldest
        return 0.0 if oldest is None else time.monotonic() - oldest

    def wake_at(self) -> float | None:
        """When :meth:`poll` has a result without the queue."""
        if self._ended:
            return 0.0
        return min((it.look_at() for it in self._kept), default=None)

    def arm(self) -> int | None:
        """Prepares to wait: a descriptor that becomes readable when a group ends; none if nothing
        is in flight, or something has ended."""
        if not self._flying or self._queue is None or self._queue.arm():
            return None
        return self._queue.fileno()

    def _open(self) -> "kvrail.Queue[kvrail.GroupEnd] | None":
        """The queue of the link's session. While groups of one that has ended are in flight there
        is none."""
        session = self._link.session
        if session is None or (session is not self._session and self._flying):
            return None
        if session is not self._session:
            try:
                self._queue = session.space.queue(self._depth)
            except kvrail.KvrailError as error:
                self._link.failed(session, error)
                return None
            self._session, self._touch = session, None
        return self._queue

    def _take(self, seconds: float) -> None:
        """Fetches completions, and waits this long for them."""
        idle = not self._flying and self._touch is None
        if idle or self._queue is None or self._session is None:
            return
        try:
            ends = self._queue.wait(timeout=seconds) if seconds else self._queue.poll()
            for end in ends:
                if end.ticket == self._touch:
                    self._touch = None  # whatever came of it: a block that ages is no failure
                else:
                    self._end(self._flying.pop(end.ticket), end.results)
        except kvrail.KvrailError as error:
            self._link.failed(self._session, error)
            self._touch = None
            flying, self._flying = self._flying, {}
            closed = isinstance(error, kvrail.ClosedError | kvrail.ForkedError)
            for group in flying.values():
                self._end(group, None, restarted=True, closed=closed)
        self._note_oldest()

    def _end(
        self,
        group: _Group[T],
        results: "kvrail.Results | None",
        *,
        restarted: bool = False,
        closed: bool = False,
    ) -> None:
        blocks = group.blocks
        ok, words, replaced = [False] * len(blocks.keys), list[str](), [0] * len(blocks.keys)
        declines: Mapping[str, int] = {}
        if group.work == "put":
            self._storing_bytes -= blocks.nbytes
        if results is not None:
            ok, words = [bool(it) for it in results.ok], list(results)
            replaced, declines = list(results.replaced), results.declines
        if results is not None and group.work == "get":
            # A block of another length is another configuration's: a miss.
            came = zip(ok, results.lengths, blocks.lengths, strict=True)
            ok = [there and length == capacity for there, length, capacity in came]
        if "RESTARTED" in words and self._session is not None:
            restarted = True
            self._link.failed(self._session, kvrail.SessionEndedError("the sidecar has ended"))
        now = time.monotonic()
        seconds = now - group.begun
        ended = Ended(group.tag, group.work, blocks, ok, words, declines, replaced, seconds)
        # A queue whose lanes cannot be believed ends its gets like that, and the drives go on.
        is_open = group.work == "get" and (restarted or "INTERNAL" in words)
        if is_open and not group.is_copied and self._session is not None:
            self._kept.append(_Kept(ended, now + QUARANTINE_S, self._session, closed))
        else:
            self._ended.append(ended)

    def _note_oldest(self) -> None:
        oldest = next(iter(self._flying.values()), None)
        self._oldest = None if oldest is None else oldest.begun


def _submit(queue: "kvrail.Queue[kvrail.GroupEnd]", session: Session, group: _Group[T]) -> int:
    blocks = group.blocks
    buffers = session.memory.buffers(blocks.addresses, blocks.lengths)
    group.is_copied = session.memory.are_copied(buffers, blocks.addresses)
    if group.work == "get":
        return queue.submit_get(blocks.keys, buffers, priority="demand")
    places = blocks.places
    # An engine's second put of a key replaces the first.
    return queue.submit_put(
        blocks.keys,
        buffers,
        metadata=blocks.metadata,
        chain=places.chains if places is not None else None,
        depth=places.depths if places is not None else None,
        worth=blocks.worths,
        priority="background",
        replace=True,
    )
