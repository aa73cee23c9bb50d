"""Whose chunks come into vLLM's primary tier, so that they do not push each other out of it."""

import time
from collections.abc import Collection
from dataclasses import dataclass


@dataclass
class _Turn:
    """Rows that chunks of a request have, or will have."""

    rows: int
    loads: int = 0
    """Those that are on their way."""
    begun: float = 0.0
    over: float | None = None
    """When another request may have the rows of one that has no pages of the GPU."""
    leaves: bool = False
    """Whether it needs no rows any more, once its loads have ended."""


class Turns:
    """Requests in their order, each with its chunks, as long as there are rows for them. vLLM has
    chunks of all waiting requests come in each step: those without room count as misses, and the
    others evict each other."""

    def __init__(self, rows: int) -> None:
        """
        :param rows: of the primary tier.
        """
        self._rows = rows
        self._turns: dict[str, _Turn] = {}
        self._is_full = False
        self._waited: set[str] = set()
        self._waits: set[str] = set()
        self._firsts: dict[tuple[str, bytes], bytes] = {}

    def has(self, request: str) -> bool:
        """Whether chunks of this request may come now."""
        return request in self._turns

    def waits(self, request: str) -> bool:
        """Whether a request that waited in the last step does so again, because one before it does:
        its chunks need not be looked up."""
        if self._is_full and request in self._waited and request not in self._turns:
            self._waits.add(request)
        return request in self._waits

    def is_first(self, request: str, group: bytes, key: bytes) -> bool:
        """Whether this is the first chunk of a group of layers that was looked up in this step."""
        return self._firsts.setdefault((request, group), key) == key

    def ask(self, request: str, rows: int) -> None:
        """Gives a request its turn, where this number of rows is left, or no other has one. Behind
        one that waits all others do."""
        if (turn := self._turns.get(request)) is not None:
            # It lacks chunks again: until they have come no other may push out those that have.
            turn.rows, turn.over = max(turn.rows, rows), None
            return
        now = time.monotonic()
        for name, turn in list(self._turns.items()):
            if turn.over is not None and turn.over <= now:
                del self._turns[name]
        if not rows:
            return
        taken = sum(turn.rows for turn in self._turns.values())
        self._is_full |= bool(taken) and taken + rows > self._rows
        if self._is_full:
            self._waits.add(request)
        else:
            self._turns[request] = _Turn(rows)

    def begin(self, request: str) -> None:
        """Some of its chunks are loaded."""
        if (turn := self._turns.get(request)) is not None:
            turn.begun = turn.begun if turn.loads else time.monotonic()
            turn.loads, turn.over = turn.loads + 1, None

    def end(self, request: str) -> None:
        """They were. The GPU takes them sooner than drives have brought them, if it has pages."""
        if (turn := self._turns.get(request)) is not None and turn.loads:
            turn.loads -= 1
            now = time.monotonic()
            turn.over = None if turn.loads else now + (now - turn.begun)
            self._end(request, turn)

    def leave(self, request: str) -> None:
        """The GPU has its chunks, or it has ended."""
        if (turn := self._turns.get(request)) is not None:
            turn.leaves = True
            self._end(request, turn)

    def give_up(self, request: str) -> None:
        """A drive does not answer: others do not wait for it."""
        self._turns.pop(request, None)

    def step(self, begun: Collection[str] = ()) -> None:
        """All have been asked for; a turn in which nothing was loaded is over.

        :param begun: requests that the GPU computes from now on.
        """
        self._is_full = False
        self._waited, self._waits = self._waits, set()
        self._firsts.clear()
        for request in begun:
            self.leave(request)
        for name, turn in list(self._turns.items()):
            if not turn.loads and turn.over is None:
                del self._turns[name]

    def _end(self, request: str, turn: _Turn) -> None:
        if turn.leaves and not turn.loads:
            del self._turns[request]
