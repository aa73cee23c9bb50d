"""kvrail as a storage back end of SGLang's HiCache: SGLang 0.5.23 and later.

    --enable-hierarchical-cache --hicache-mem-layout page_first --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "kvrail",
      "module_path": "kvrail.sglang", "class_name": "Storage", "interface_v1": 1,
      "allocator": "shm", "hicache_storage_pass_prefix_keys": true,
      "socket": "/run/kvrail/kvrail.sock", "store": "kv"}'

With `"allocator": "shm"` SGLang's host pools are memory files. The sidecar's drives read and write
their pages in place, if the sidecar has `memory.unsealed_imports = "accept"`; else each page is
copied once.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from math import inf
from typing import Any, NoReturn

from kvrail.engines import require

require("sglang")

from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)

import kvrail
from kvrail import _forks, _identity
from kvrail._chains import Places
from kvrail._lane import STORED, Blocks, Ended, Lane, Work
from kvrail._sglang_pages import Pages
from kvrail._tier import Link

PARAMETERS: dict[str, Any] = {
    "socket": "/run/kvrail/kvrail.sock",  # where the sidecar listens
    "store": "kv",  # the name of its store
    "namespace": None,  # engines with the same name share pages; by default all
    "identity": {},  # what makes bytes incompatible beyond SGLang's own settings
    "depth": 128,  # blocks in flight, of stores and of loads
    "timeout": 10.0,  # seconds that a call of SGLang waits for its pages at most
}
"""Keys of the extra configuration, with their defaults."""

OF_SGLANG = frozenset({"backend_name", "module_path", "class_name", "interface_v1", "allocator"})
"""Keys that SGLang itself reads there."""

HOLD_S = 30.0
"""Time for which found pages are not evicted: until SGLang has loaded them."""

LOOK_S = 0.02
"""Longest wait until it is looked whether there still is a sidecar that answers."""

log = logging.getLogger("kvrail")

Part = tuple[Pages, Sequence[str], Any]
"""Pages of one pool: their hashes, and their tokens' places in the pool."""


class Storage(HiCacheStorage):
    """Pages of SGLang's host pools as blocks of a namespace: one block for each run of bytes that
    a page has, which are K and V of all layers in a pool that is laid out page by page."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: object = None) -> None:
        """
        :param storage_config: its extra configuration has `PARAMETERS`.
        :param kwargs: not needed.
        """
        extra = storage_config.extra_config or {}
        given = {key: value for key, value in extra.items() if key not in OF_SGLANG}
        if unknown := given.keys() - PARAMETERS.keys():
            text = f"extra config has {sorted(unknown)}; there are {', '.join(PARAMETERS)}"
            raise ValueError(text)
        if not extra.get("interface_v1"):
            raise ValueError('set "interface_v1": 1 in the extra config: kvrail has no older one')
        known = PARAMETERS | given
        identity = _identity.sglang(storage_config, known["identity"])
        self._link = Link(
            "sglang",
            socket=known["socket"],
            store=known["store"],
            namespace=known["namespace"],
            identity=identity,
        )
        self._knows_floats = _identity.sglang_knows_floats(identity)
        self._rank = f"{storage_config.tp_rank} of {storage_config.tp_size}"
        self._pools: dict[str, Pages] = {}
        self._ways: dict[Work, _Way] = {
            work: _Way(Lane(self._link, known["depth"]), known["timeout"])
            for work in ("get", "put")
        }

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._register(PoolName.KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: str) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._register(host_pool_name, host_pool)

    def batch_exists(
        self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> int:
        # A pool without bytes of its own is there as far as the others are: no lookup.
        kv = self._pools[PoolName.KV]
        return _run(self._there(kv, keys)) if kv.lengths else 0

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        kv, others = self._pools[PoolName.KV], pool_transfers or []
        count = _run(self._there(kv, keys)) if kv.lengths else len(keys)
        if not kv.lengths and all(it.hit_policy != PoolHitPolicy.ALL_PAGES for it in others):
            count = 0
        hits: dict[str, int] = {PoolName.KV: count}
        legal = frozenset(range(1, count + 1))
        for it in others:
            hits[it.name], lengths = self._legal(it, keys[:count])
            legal &= legal if lengths is None else lengths
        told = {name: pages for name, pages in hits.items() if pages}
        return PoolTransferResult(max(legal, default=0), told, sorted(legal))

    def batch_get_v1(
        self, keys: list[str], host_indices: Any, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        return self._move("get", [(self._pools[PoolName.KV], keys, host_indices)])[0]

    def batch_set_v1(
        self, keys: list[str], host_indices: Any, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        parts: list[Part] = [(self._pools[PoolName.KV], keys, host_indices)]
        return self._move("put", parts, _before(extra_info))[0]

    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        return self._transfer("get", transfers)

    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        return self._transfer("put", transfers, _before(extra_info))

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> NoReturn:
        raise NotImplementedError("kvrail needs SGLang's interface_v1")

    batch_get = set = batch_set = get

    def clear(self) -> bool:
        """Makes all pages unreachable, for every engine of this identity."""

        def cleared(space: kvrail.Namespace) -> bool:
            space.clear()
            return True

        return self._link.call(cleared, False)

    def status(self) -> dict[str, Any]:
        """Whether it is attached, and whether pages are copied."""
        return self._link.status()

    def close(self) -> None:
        """Ends the session; waits some seconds for requests in flight."""
        self._link.close()
        for way in self._ways.values():
            way.settle()

    def _register(self, name: str, pool: Any) -> None:
        if name not in self._pools or self._pools[name].pool is not pool:
            # State of Mamba layers is sharded, also where K and V are on each rank.
            sharded = self._rank if name == PoolName.MAMBA else ""
            self._pools[name] = Pages(str(name), pool, sharded, self._knows_floats)

    def _legal(
        self, it: PoolTransfer, keys: list[str]
    ) -> tuple[int, frozenset[int] | None]:
        """Pages of this pool that are there, and the lengths of prefixes that it allows; None where
        it sets no limit."""
        pages, count = self._pools[it.name], len(keys)
        if it.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
            groups = _run(self._there(pages, it.keys or [])) // max(it.group_pages, 1)
            return groups * it.block_pages, None
        there = self._there(pages, keys)
        if it.hit_policy == PoolHitPolicy.ALL_PAGES:
            return _run(there), frozenset(range(1, _run(there) + 1))
        last = max(1, len(it.keys or ()))
        ends = range(1, count + 1)
        lengths = frozenset(end for end in ends if all(there[max(0, end - last) : end]))
        return max(lengths, default=0), lengths

    def _settle(self) -> None:
        for way in self._ways.values():
            way.settle()

    def _there(self, pages: Pages, keys: Sequence[str]) -> list[bool]:
        self._settle()
        found = self._link.lookup(pages.names(keys), hold=HOLD_S)
        return pages.whole(list(found), len(keys))

    def _transfer(
        self, work: Work, transfers: list[PoolTransfer], before: list[str] | None = None
    ) -> dict[str, list[bool]]:
        parts = [(self._pools[it.name], it.keys or [], it.host_indices) for it in transfers]
        names = [it.name for it in transfers]
        return dict(zip(names, self._move(work, parts, before), strict=True))

    def _move(
        self, work: Work, parts: list[Part], before: list[str] | None = None
    ) -> list[list[bool]]:
        """Moves pages, all pools' at once, and returns which are whole in the store or in memory.

        :param before: hashes of the pages before them in their prompt, where SGLang passes them.
        """
        # A load that was given up stops all of the link, and SGLang may only store for a while.
        self._settle()
        runs = [pages.runs(keys, indices) for pages, keys, indices in parts]
        blocks = Blocks(
            [it for run in runs for it in run.keys],
            [it for run in runs for it in run.addresses],
            [it for run in runs for it in run.lengths],
            places=None if before is None else self._places(parts, before),
        )
        ok: Iterator[bool] = iter(())
        end = self._ways[work].run(work, blocks, parts)
        if end is not None and end.words:
            # Of what is declined as a new chain there is nothing to be done.
            stored = STORED | {"DECLINED"} if end.was_settled else STORED
            ok = iter([it in stored for it in end.words] if work == "put" else end.ok)
        return [
            pages.whole([next(ok, False) for _ in run.keys], len(keys))
            for (pages, keys, _), run in zip(parts, runs, strict=True)
        ]

    def _places(self, parts: list[Part], before: list[str]) -> Places:
        """Places of all blocks of stored pages, behind these pages. The pages of K and V
        are the chain: of other pools only the last ones are stored."""
        longest = max((keys for _, keys, _ in parts), key=len, default=[])
        chain = self._link.chain(self._pools[PoolName.KV].names([*before, *longest]))
        depths = [
            len(before) + at
            for pages, keys, _ in parts
            for at in range(len(keys))
            for _ in pages.lengths
        ]
        return Places([chain] * len(depths), depths)


class _Way:
    """One direction, in which SGLang waits for one group after the other."""

    def __init__(self, lane: Lane[list[Part]], timeout: float) -> None:
        self._lane, self._timeout, self._lock = lane, timeout, _forks.lock()
        self._late: list[list[Part]] = []

    def run(self, work: Work, blocks: Blocks, parts: list[Part]) -> Ended[list[Part]] | None:
        """The end of this group. None: it has not come in time, or the sidecar is gone or stopped;
        then its pages are withheld from their pools until no drive writes there. Or a drive has not
        ended an earlier one."""
        with self._lock:
            self._poll()
            if self._lane.flying:
                return None
            self._lane.begin(work, parts, blocks)
            moving = any(pages.moves for pages, *_ in parts)
            deadline = inf if moving else time.monotonic() + self._timeout
            while (ended := self._poll(parts)) is None:
                left = deadline - time.monotonic()
                if left <= 0 or (not moving and any(it is parts for it in self._lane.late())):
                    break
                self._lane.wait(min(LOOK_S, left))
            if ended is None:
                log.warning("kvrail for sglang: a %s has not ended, and is given up", work)
                self._late.append(parts)
                for pages, _, indices in parts:
                    pages.withhold(indices)
            return ended

    def settle(self) -> None:
        """Gives pages back that a drive has released, without waiting."""
        if self._late and self._lock.acquire(blocking=False):
            try:
                self._poll()
            finally:
                self._lock.release()

    def _poll(self, parts: list[Part] | None = None) -> Ended[list[Part]] | None:
        """The end of these pages' group, where it has come. Pages of late ones are given back."""
        found = None
        for ended in self._lane.poll():
            if ended.tag is parts:
                found = ended
                continue
            for pages, _, indices in ended.tag:
                pages.give_back(indices)
            self._late = [it for it in self._late if it is not ended.tag]
        return found


def _before(extra_info: HiCacheStorageExtraInfo | None) -> list[str] | None:
    return None if extra_info is None else extra_info.prefix_keys


def _run(there: Iterable[bool]) -> int:
    """How many are there before the first that is not."""
    return sum(1 for _ in takewhile(bool, there))
