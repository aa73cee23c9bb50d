"""Pages of one of SGLang's host pools: names and bytes of their blocks, and pages that must
not be used again yet."""

from collections.abc import Sequence
from typing import Any

import torch

from kvrail import _forks, _identity
from kvrail._lane import Blocks

class Pages:
    """A host pool's pages. For any thread."""

    def __init__(self, name: str, pool: Any, rank: str, knows_floats: bool) -> None:
        """
        :param name: the pool's.
        :param rank: whose pages these are, where ranks have pages of their own.
        :param knows_floats: whether the namespace names the kind of 8-bit floats.
        """
        self.pool, self.lengths = pool, _lengths(name, pool)
        self.moves = getattr(pool, "shared_allocation_domain", None) is not None
        """Whether the pool moves its pages about when no call is in flight: then a call lasts until
        drives have released them."""
        form = _identity.sglang_pool(name, pool, rank, self.lengths, knows_floats)
        self._suffixes = [f".{name}.{form}.{number}" for number in range(len(self.lengths))]
        self._lock, self._late = _forks.lock(), list[Any]()
        self._waiting: list[Any] = []
        self._free, self._clear = pool.free, pool.clear

    def names(self, keys: Sequence[str]) -> list[bytes]:
        """Names of the blocks of pages with these hashes."""
        return [(key + suffix).encode() for key in keys for suffix in self._suffixes]

    def runs(self, keys: Sequence[str], indices: Any) -> Blocks:
        """The blocks of pages."""
        if not self.lengths:
            return Blocks([], [], [])
        wanted, there = len(keys) * self.pool.page_size, 0 if indices is None else len(indices)
        if wanted != there:
            text = f"{len(keys)} pages of {self.pool.page_size} tokens with {there} indices"
            raise ValueError(text)
        addresses, lengths = self.pool.get_page_buffer_meta(indices) if keys else ([], [])
        return Blocks(self.names(keys), addresses, lengths)

    def whole(self, good: Sequence[bool], count: int) -> list[bool]:
        """Which of the pages have all of their blocks; those without bytes have."""
        step = len(self.lengths)
        return [all(good[at * step : at * step + step]) for at in range(count)]

    def withhold(self, indices: Any) -> None:
        """Keeps these pages from being used again, although SGLang frees them: a drive may still
        write there, or read."""
        if not self.lengths:
            return
        with self._lock:
            self._late.append(indices.cpu())
            # An instance's own: the pool's class stays as it is.
            self.pool.free, self.pool.clear = self._free_later, self._clear_later

    def give_back(self, indices: Any) -> None:
        """The drive has released them."""
        if not self.lengths:
            return
        with self._lock:
            self._late = [it for it in self._late if it is not indices and not it.equal(indices)]
            if self._late:
                return
            del self.pool.free, self.pool.clear
            waiting, self._waiting = self._waiting, []
        for it in waiting:
            self._free(it)

    def _free_later(self, indices: Any) -> int:
        with self._lock:
            late = self._is_late(indices)
            self._waiting.append(indices[late])
        self._free(indices[~late])
        return len(indices)

    def _clear_later(self) -> None:
        """Everything is free, but for late pages: those stay allocated."""
        self._clear()
        everything = self.pool.alloc(self.pool.available_size())
        with self._lock:
            late = self._is_late(everything)
            self._waiting = [everything[late]]
        self._free(everything[~late])

    def _is_late(self, indices: Any) -> Any:
        return torch.isin(indices.cpu(), torch.cat(self._late))


def _lengths(name: str, pool: Any) -> list[int]:
    """Bytes of the runs that a page has; none if the pool only counts tokens."""
    try:
        one = pool.get_page_buffer_meta(torch.arange(pool.page_size))
    except (ValueError, NotImplementedError) as error:
        layout = getattr(pool, "layout", "unknown")
        text = f"SGLang's pool {name} hides its pages' places in the layout {layout} ({error})"
        raise ValueError(f"{text}; use --hicache-mem-layout page_first") from error
    return list(one[1]) if one else []
