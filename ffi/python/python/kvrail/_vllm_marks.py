"""Chunks that count as used from now on, go first, or are loaded soon, on their way to each rank's
store."""

import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Literal

from kvrail._lane import Lane
from kvrail._vllm_hints import Hinted

TOUCHED = 1024
"""Chunks of one kind that are sent at once; of those beyond that, demotions alone are kept
waiting."""

AWAKE_S = 0.25
"""Time without a batch that is taken behind which demotions wait until the engine has requests
again. On an idle machine a batch is answered within a millisecond."""

KINDS: tuple[Literal["fetch", "demote", "touch"], ...] = ("fetch", "demote", "touch")
"""They take turns: an engine at work touches chunks in each step."""


class Marks:
    """Touches, demotions and fetches. What one lane was sent, all are sent before anything else: a
    lane whose last lookup is in flight takes none."""

    def __init__(self, hinted: Hinted, lanes: Sequence[Lane[Any]]) -> None:
        self._hinted, self._lanes = hinted, lanes
        self._touched: dict[bytes, None] = {}
        self._expected: dict[bytes, None] = {}
        self._batch: dict[bytes, None] = {}
        self._kind = KINDS[-1]
        self._unsent: list[Lane[Any]] = []
        self._demoting: list[Lane[Any]] = []
        self._moved = time.monotonic()

    def used(self, keys: Iterable[bytes]) -> None:
        """The store counts these by itself: they are not demoted for a session that has ended, and
        expected no more."""
        listed = [bytes(key) for key in keys]
        self._hinted.used(listed)
        for key in listed if self._expected else ():
            self._expected.pop(key, None)
        for key in listed if self._kind != "touch" and self._batch else ():
            self._batch.pop(key, None)

    def expect(self, keys: Iterable[bytes]) -> None:
        """These are loaded soon: the sidecar's memory tier is to have them then."""
        room = TOUCHED - len(self._expected)
        self._expected.update(dict.fromkeys(islice(map(bytes, keys), max(0, room))))

    def touch(self, keys: Iterable[bytes]) -> None:
        """What is hot in faster tiers must not age in the store."""
        listed = [bytes(key) for key in keys]
        self.used(listed)
        room = TOUCHED - len(self._touched)
        self._touched.update(dict.fromkeys(islice(listed, max(0, room))))

    def end(self, request: Any) -> None:
        """A request has ended."""
        ending = self._hinted.end(request)
        for key in ending:
            self._touched.pop(key, None)
        if ending:
            self._moved = time.monotonic()

    @property
    def pending(self) -> bool:
        """Whether an engine without requests is to go on, because demotions wait and are taken: for
        a sidecar that is gone or stopped none stays awake."""
        is_sending = self._kind == "demote" and bool(self._batch and self._unsent)
        if not (is_sending or self._demoting or self._hinted.waits):
            return False
        is_late = time.monotonic() - self._moved > AWAKE_S
        return not is_late and all(lane.works for lane in self._lanes)

    def send(self) -> None:
        """Sends what there is, without waiting."""
        # A lookup of many keys goes on when its queue is polled.
        self._demoting = [lane for lane in self._demoting if lane.looks]
        if not self._unsent or not self._batch:
            self._next()
        if keys := list(self._batch):
            left = [lane for lane in self._unsent if not self._sent(lane, keys)]
            taken = [lane for lane in self._unsent if lane not in left]
            if taken:
                self._moved = time.monotonic()
            if self._kind == "demote":
                self._demoting += taken
            self._unsent = left

    def _sent(self, lane: Lane[Any], keys: list[bytes]) -> bool:
        if self._kind == "fetch":
            return lane.fetch(keys)
        return lane.touch(keys, demote=self._kind == "demote")

    def _next(self) -> None:
        """The next kind that waits."""
        ending = dict.fromkeys(self._hinted.take(TOUCHED))
        waiting = {"fetch": self._expected, "demote": ending, "touch": self._touched}
        at = KINDS.index(self._kind) + 1
        kinds = (kind for kind in KINDS[at:] + KINDS[:at] if waiting[kind])
        self._kind = next(kinds, self._kind)
        self._batch = waiting[self._kind]
        if self._kind == "fetch":
            self._expected = {}
        elif self._kind == "demote":
            self._hinted.sent(ending)
        else:
            self._touched = {}
        self._unsent = list(self._lanes)
