"""Chunks that count as used from now on, or go first, on their way to each rank's store."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from kvrail._lane import Lane
from kvrail._vllm_hints import Hinted

TOUCHED = 1024
"""Chunks that are touched or demoted at once; of touches beyond that, none is kept waiting."""


class Marks:
    """Touches and demotions. What one lane was sent, all are sent before anything else: a lane
    whose last lookup is in flight takes none."""

    def __init__(self, hinted: Hinted, lanes: Sequence[Lane[Any]]) -> None:
        self._hinted, self._lanes = hinted, lanes
        self._touched: dict[bytes, None] = {}
        self._batch: dict[bytes, None] = {}
        self._demotes = False
        self._unsent: list[Lane[Any]] = []

    def used(self, keys: Iterable[bytes]) -> None:
        """The store counts these by itself: they are not demoted for a session that has ended."""
        listed = [bytes(key) for key in keys]
        self._hinted.used(listed)
        for key in listed if self._demotes and self._batch else ():
            self._batch.pop(key, None)

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
            lanes, demotes = self._unsent, self._demotes
            self._unsent = [it for it in lanes if not it.touch(keys, demote=demotes)]

    def _next(self) -> None:
        """Demotions and touches take turns: an engine at work touches chunks in each step."""
        ending = self._hinted.take(TOUCHED)
        self._demotes = bool(ending) and not (self._demotes and self._touched)
        if self._demotes:
            self._batch = dict.fromkeys(ending)
            self._hinted.sent(ending)
        else:
            self._batch, self._touched = self._touched, {}
        self._unsent = list(self._lanes)
