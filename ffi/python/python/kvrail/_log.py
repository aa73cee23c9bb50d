"""Warnings of adapters: an engine asks for a block thousands of times a second."""

import logging
import time

from kvrail import _forks

EACH_S = 10.0
"""Time between two warnings of a kind; those in between are counted."""

_log = logging.getLogger("kvrail")


class Warnings:
    """The first of each kind, and then one in some seconds. For any thread."""

    def __init__(self) -> None:
        self._lock = _forks.lock()
        self._kinds: dict[str, tuple[float, int]] = {}

    def warn(self, kind: str, text: str, *arguments: object) -> None:
        now = time.monotonic()
        with self._lock:
            at, left_out = self._kinds.get(kind, (now - EACH_S, 0))
            is_due = now - at >= EACH_S
            self._kinds[kind] = (now, 0) if is_due else (at, left_out + 1)
        if is_due and left_out:
            text += " (%d more since the last such line)"
            arguments = (*arguments, left_out)
        if is_due:
            _log.warning(text, *arguments)
