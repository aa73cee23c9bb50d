"""Whose chunks come into vLLM's primary tier, so that they do not push each other out of it."""

import time
from dataclasses import dataclass


@dataclass
class _Turn:
    """Rows that chunks of a request have, or will have."""

    rows: int
    loads: int = 0
    """Those that are on their way."""
    begun: float = 0.0
    over: float | None = None
    """When the GPU has the chunks, if it has pages for them: it takes them sooner than drives have
    brought them."""


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

    def has(self, request: str) -> bool:
        """Whether chunks of this request may come now."""
        return request in self._turns

    def ask(self, request: str, rows: int) -> None:
        """Gives a request its turn, where this number of rows is left, or no other has one. Behind
        one that waits all others do."""
        if (turn := self._turns.get(request)) is not None:
            turn.rows = max(turn.rows, rows)
            return
        now = time.monotonic()
        for name, turn in list(self._turns.items()):
            if turn.over is not None and turn.over <= now:
                del self._turns[name]
        taken = sum(turn.rows for turn in self._turns.values())
        self._is_full |= bool(taken) and taken + rows > self._rows
        if rows and not self._is_full:
            self._turns[request] = _Turn(rows)

    def begin(self, request: str) -> None:
        """Some of its chunks are loaded."""
        if (turn := self._turns.get(request)) is not None:
            turn.begun = turn.begun if turn.loads else time.monotonic()
            turn.loads, turn.over = turn.loads + 1, None

    def end(self, request: str) -> None:
        """They were."""
        if (turn := self._turns.get(request)) is not None and turn.loads:
            turn.loads -= 1
            if not turn.loads:
                now = time.monotonic()
                turn.over = now + (now - turn.begun)

    def give_up(self, request: str) -> None:
        """A drive does not answer: others do not wait for it."""
        self._turns.pop(request, None)

    def step(self) -> None:
        """All have been asked for; a turn in which nothing was loaded is over."""
        self._is_full = False
        for name, turn in list(self._turns.items()):
            if not turn.loads and turn.over is None:
                del self._turns[name]
