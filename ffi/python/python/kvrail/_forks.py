"""Locks of adapters over a fork: the thread that holds one is not in the child, where nothing would
release the lock."""

import os
import threading
from weakref import WeakSet

_locks: WeakSet[threading.Lock] = WeakSet()


def lock() -> threading.Lock:
    """A lock that is free in a forked child, as those of Python's own `logging` are."""
    made = threading.Lock()
    _locks.add(made)
    return made


def _free() -> None:
    for it in list(_locks):
        it._at_fork_reinit()  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_free)
