"""A thread that goes on with what is in flight while an engine computes.

It sleeps in the kernel: what it waits for are descriptors, and times. It works in slices of much
less than a millisecond, and the engine's threads have the interpreter in between.
"""

import logging
import os
import select
import threading
from collections.abc import Callable

from kvrail.paged import Rest

CLOSE_S = 5.0
"""Longest wait for the thread's end: it may be in the middle of a slice."""

log = logging.getLogger("kvrail")


class Pump:
    """The thread. It is begun by the first `ring`, also that in a forked child."""

    def __init__(self, name: str, slice_of_work: Callable[[], Rest]) -> None:
        """
        :param slice_of_work: makes progress without waiting, and returns what ends the pause behind
            it. What it raises ends the thread, and is logged.
        """
        self._name, self._slice = name, slice_of_work
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None
        self._pid, self._closed, self._failed = os.getpid(), False, False

    def ring(self) -> None:
        """Ends a pause: it was for something else than there is now."""
        if self._closed or self._failed:
            return
        if self._thread is None or self._pid != os.getpid():
            self._begin()
        else:
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Ends the thread. Nobody may hold a lock that its slices take."""
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._bell, 1)
        if self._thread is not None and self._pid == os.getpid() and self._thread.is_alive():
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                return  # it waits on the bell
        os.close(self._bell)

    def _begin(self) -> None:
        if self._pid != os.getpid():
            # With one bell a parent and a child would each take what the other rang.
            os.close(self._bell)
            self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread, self._pid = threading.Thread(target=self._run, name=self._name), os.getpid()
        self._thread.daemon = True
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads
            self._failed = True
            log.warning("%s goes on only in the engine's steps: %s", self._name, error)

    def _run(self) -> None:
        try:
            while not self._closed:
                descriptors, seconds = self._slice()
                poll = select.poll()
                for fd in (self._bell, *descriptors):
                    poll.register(fd, select.POLLIN)
                rung = poll.poll(None if seconds is None else 1000 * seconds)
                if any(fd == self._bell for fd, _ in rung):
                    os.eventfd_read(self._bell)
        except Exception:
            self._failed = True
            log.exception("%s goes on only in the engine's steps", self._name)
