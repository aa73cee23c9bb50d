"""The memory of an engine: in files that the sidecar can map too, or in this process alone."""

import ctypes
import logging
import os
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import kvrail
from kvrail import _forks

log = logging.getLogger("kvrail")

_LINE = re.compile(r"(\w+)-(\w+) (\S+) (\w+) (\w+):(\w+) (\d+)\s*(.*)")


@dataclass(frozen=True)
class Mapping:
    """A mapping of this process, as /proc/self/maps has it."""

    first: int
    end: int
    shared: bool
    offset: int
    device: int
    inode: int
    path: str

    def open(self) -> int | None:
        """A descriptor of its file: by its name, or one that is open in this process."""
        for name in (self.path, *_own_descriptors()):
            try:
                fd = os.open(name, os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                continue
            about = os.fstat(fd)
            if (about.st_ino, about.st_dev) == (self.inode, self.device):
                return fd
            os.close(fd)
        return None


def _own_descriptors() -> list[str]:
    return [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]


def find(address: int) -> Mapping | None:
    """The mapping that an address of this process lies in."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            if (fields := _LINE.match(line)) is None:
                continue
            begin, end, offset, major, minor = (int(it, 16) for it in fields.group(1, 2, 4, 5, 6))
            if begin <= address < end:
                mode, inode, path = fields.group(3, 7, 8)
                device = os.makedev(major, minor)
                return Mapping(begin, end, mode[3] == "s", offset, device, int(inode), path)
    return None


class Memory:
    """The memory that an engine hands over, as arenas of one session where that is possible.

    Each mapping is looked up once. One that is no shared file, or that the sidecar refuses, is
    copied through an arena of the client; `why_copied` has the reason, which is logged once.
    """

    def __init__(self, client: kvrail.Client, alignment: int) -> None:
        self._client, self._alignment = client, alignment
        self._lock = _forks.lock()
        self._firsts: list[int] = []
        self._addresses: tuple[int, ...] = ()
        self._known: list[tuple[Mapping, kvrail.Arena | None]] = []
        self._arenas: dict[tuple[int, int], kvrail.Arena] = {}
        self.why_copied: str | None = None
        """Why blocks are copied; None if none is."""

    def buffers(self, addresses: Sequence[int], lengths: Sequence[int]) -> Any:
        """Memory of blocks as calls of a namespace take it."""
        arena, positions = self._place(addresses, lengths)
        if arena is not None:
            return (arena, positions, list(lengths))
        blocks = zip(addresses, lengths, strict=True)
        return [self._bytes(address, length) for address, length in blocks]

    def are_copied(self, buffers: Any, addresses: Sequence[int]) -> bool:
        """Whether drives get none of these buffers of blocks, which are at these addresses."""
        if isinstance(buffers, tuple):
            return False
        return all(self.arena_of(address) is None for address in addresses)

    @property
    def addresses(self) -> Sequence[int]:
        """An address in each mapping that was looked up. Waits for no lock: one may be held while
        the sidecar takes some GiB."""
        return self._addresses

    def bring(self, addresses: Sequence[int]) -> None:
        """Looks mappings up before their first block: drives' access to some GiB takes a sidecar
        longer than a request may wait."""
        for address in addresses:
            if find(address) is not None:
                self._look(address)

    def arena_of(self, address: int) -> kvrail.Arena | None:
        """The arena that an address lies in."""
        return self._look(address)[1]

    def _place(
        self, addresses: Sequence[int], lengths: Sequence[int]
    ) -> tuple[kvrail.Arena | None, list[int]]:
        """All blocks in one arena, or none of them."""
        mapping, arena = self._look(addresses[0])
        inside = mapping.first <= min(addresses) and all(
            address + length <= mapping.end and (address - mapping.first) % self._alignment == 0
            for address, length in zip(addresses, lengths, strict=True)
        )
        if arena is None or not inside:
            return None, []
        return arena, [address - mapping.first + mapping.offset for address in addresses]

    def _bytes(self, address: int, length: int) -> memoryview:
        """Memory of one block: where its arena is mapped for drives, if it lies in one."""
        arena, positions = self._place([address], [length])
        if arena is None:
            return memoryview((ctypes.c_ubyte * length).from_address(address)).cast("B")
        return memoryview(arena).cast("B")[positions[0] : positions[0] + length]

    def _look(self, address: int) -> tuple[Mapping, kvrail.Arena | None]:
        with self._lock:
            return self._found(address)

    def _found(self, address: int) -> tuple[Mapping, kvrail.Arena | None]:
        at = bisect_right(self._firsts, address) - 1
        if at >= 0 and address < self._known[at][0].end:
            return self._known[at]
        mapping = find(address)
        if mapping is None:
            raise kvrail.RequestError(f"no memory of this process is at {address:#x}")
        found = (mapping, self._bring(mapping))
        at = bisect_right(self._firsts, mapping.first)
        self._firsts.insert(at, mapping.first)
        self._known.insert(at, found)
        self._addresses = tuple(self._firsts)
        return found

    def _bring(self, mapping: Mapping) -> kvrail.Arena | None:
        if not mapping.shared or mapping.inode == 0:
            self._copied("the engine's memory is no shared file")
            return None
        file = (mapping.device, mapping.inode)
        if file in self._arenas:
            return self._arenas[file]
        if (fd := mapping.open()) is None:
            self._copied(f"the file {mapping.path or 'of its memory'} cannot be opened")
            return None
        try:
            return self._arenas.setdefault(file, self._import(fd))
        except (kvrail.KvrailError, OSError) as error:
            self._copied(str(error))
            return None
        finally:
            os.close(fd)

    def _import(self, fd: int) -> kvrail.Arena:
        """The whole file. Engines leave pages of it to their first use, and the sidecar takes none
        that a drive's transfer could fail for: they are reserved here, which changes no byte."""
        about = os.fstat(fd)
        if about.st_blocks * 512 < about.st_size:
            os.posix_fallocate(fd, 0, about.st_size)
        return self._client.import_arena(fd, about.st_size)

    def _copied(self, why: str) -> None:
        self.why_copied = why
        log.warning("kvrail copies each block once: %s", why)

