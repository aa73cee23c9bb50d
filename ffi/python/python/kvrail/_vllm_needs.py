"""How many rows of vLLM's primary tier a request needs for the chunks that it loads."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, takewhile
from typing import Any

from kvrail._chains import GROUP_BYTES, Prompt


@dataclass
class _Front:
    """The chunks of a request that have room, when all before the first are elsewhere: the GPU has
    them. vLLM does not pass how many those are."""

    first: int
    """Where the first that was ever asked for ends."""
    last: int | None = None
    """Where the last one ends; none where all have room."""


class Needs:
    """Rows for chunks that are there, from the first that is asked for on. Those before it are in
    the primary tier or in the GPU."""

    def __init__(self, rows: int, windows: Mapping[int, int | None]) -> None:
        """
        :param rows: of the primary tier.
        :param windows: chunks that are loaded of each group of layers at most; none without a
            window.
        """
        self._rows, self._windows = rows, windows

    def rows(self, request: Any, asked: Sequence[bytes], there: Sequence[bool]) -> int:
        """The number of rows, and what has room from now on.

        :param asked: the chunk that is asked for, and all others that are not known.
        """
        places: dict[bytes, int] = getattr(request, "_offload_key_positions", {})
        first = places.get(asked[0], 0)
        # Of a group with a window vLLM looks up the last chunk first.
        behind = [places.get(it, 0) >= first or self.has_window(it) for it in asked]
        found = [is_there and it for is_there, it in zip(there, behind, strict=True)]
        if len(Prompt.of(request).groups) > 1 or self.has_window(asked[0]):
            groups = Counter(_group(key) for key in compress(asked, found))
            return sum(
                count if (window := self._windows.get(group)) is None else min(count, window)
                for group, count in groups.items()
            )
        count = sum(takewhile(bool, found))
        front: _Front | None = request.get_state(_Front)
        if front is None or first < front.first:
            # Of a longer prompt the tail would push the front out.
            last = places.get(asked[self._rows - 1], 0) if count > self._rows else None
            request.set_state(_Front(first, last))
            return min(count, self._rows)
        last = front.last
        return sum(1 for key in asked[:count] if last is None or places.get(key, 0) <= last)

    def has_window(self, key: bytes) -> bool:
        """Whether a chunk is one of a group of layers with a window."""
        return self._windows.get(_group(key)) is not None

    def fits(self, request: Any, key: bytes) -> bool:
        """Whether there is a row for this chunk beside those before it."""
        front: _Front | None = request.get_state(_Front)
        places: dict[bytes, int] = getattr(request, "_offload_key_positions", {})
        return front is None or front.last is None or places.get(key, 0) <= front.last


def _group(key: bytes) -> int:
    return int.from_bytes(key[-GROUP_BYTES:], "big")
