"""Chunks that count as used from now on, go first, or are loaded soon, on their way to each rank's
store."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Literal

from kvrail._lane import Lane
from kvrail._vllm_hints import Hinted

TOUCHED = 1024
"""Chunks of one kind that are sent at once; of those beyond that, demotions alone are kept
waiting."""

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
        for key in self._hinted.end(request):
            self._touched.pop(key, None)

    def send(self) -> None:
        """Sends what there is, without waiting."""
        if not self._unsent or not self._batch:
            self._next()
        if keys := list(self._batch):
            self._unsent = [lane for lane in self._unsent if not self._sent(lane, keys)]

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
