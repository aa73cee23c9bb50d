"""Rings an eventfd when another descriptor becomes readable, without a thread.

Some engines read the descriptors that they wait on, which only an eventfd bears; what a queue is
waited on with is an epoll set. The kernel's asynchronous I/O watches the one and rings the other.
"""

import ctypes
import errno
import os
import select
import time

_SETUP, _DESTROY, _GETEVENTS, _SUBMIT = 206, 207, 208, 209
"""Numbers of the system calls on x86-64."""

_POLL, _RESFD = 5, 1
_SLOTS = 64
_CLOCK_MONOTONIC = 1


class _Iocb(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_uint32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("events", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("resfd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("data", "iocb", "result", "more"))


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    done = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if done < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return done


class Relay:
    """An eventfd, and the descriptors and times that ring it."""

    def __init__(self) -> None:
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._timer = int(_libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
        self._context = ctypes.c_ulong(0)
        _call(_SETUP, ctypes.c_uint(_SLOTS), ctypes.byref(self._context))
        self._watched: set[int] = set()

    def fileno(self) -> int:
        """The eventfd: to be waited on, and to be read."""
        return self._bell

    def ring(self) -> None:
        """Makes it readable."""
        os.eventfd_write(self._bell, 1)

    def watch(self, fd: int) -> None:
        """Rings once, when this descriptor is or becomes readable."""
        self._reap()
        if fd in self._watched:
            return
        iocb = _Iocb(data=fd, opcode=_POLL, fd=fd, events=select.POLLIN)
        iocb.flags, iocb.resfd = _RESFD, self._bell
        pointer = ctypes.pointer(iocb)
        _call(_SUBMIT, self._context, ctypes.c_long(1), ctypes.byref(pointer))
        self._watched.add(fd)

    def ring_at(self, when: float) -> None:
        """Rings at this time of `time.monotonic`."""
        left = max(when - time.monotonic(), 1e-6)
        times = (_Timespec * 2)()
        times[1] = _Timespec(int(left), int(left % 1 * 1e9))
        _libc.timerfd_settime(self._timer, 0, ctypes.byref(times), None)
        self.watch(self._timer)

    def close(self) -> None:
        """Ends it; nothing rings any more."""
        if self._bell >= 0:
            _call(_DESTROY, self._context)
            os.close(self._timer)
            os.close(self._bell)
            self._bell = -1

    def _reap(self) -> None:
        """Removes the descriptors that have rung."""
        events = (_Event * _SLOTS)()
        at_once = _Timespec(0, 0)
        try:
            count = _call(
                _GETEVENTS,
                self._context,
                ctypes.c_long(0),
                ctypes.c_long(_SLOTS),
                events,
                ctypes.byref(at_once),
            )
        except OSError as error:
            if error.errno != errno.EINTR:
                raise
            return
        self._watched.difference_update(event.data for event in events[:count])
