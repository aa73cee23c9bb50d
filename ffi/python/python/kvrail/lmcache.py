"""kvrail as an L2 adapter of LMCache: LMCache 0.5.6 and later.

    lmcache server --l1-size-gb 64 --eviction-policy LRU \\
      --no-l1-use-lazy --shm-name kv --l1-align-bytes 4096 \\
      --l2-adapter '{"type": "plugin", "module_path": "kvrail.lmcache", "class_name": "L2Adapter",
        "adapter_params": {"socket": "/run/kvrail/kvrail.sock", "store": "kv"}}'

With `--no-l1-use-lazy` and `--shm-name` the L1 is a file below /dev/shm. The sidecar's drives read
and write its objects in place, if the sidecar has `memory.unsealed_imports = "accept"`; else each
object is copied once.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, count, islice
from types import MappingProxyType
from typing import Any

from kvrail.engines import require

require("lmcache")

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import (
    EncodedObjectKey,
    KeyEntry,
    KeyListPage,
    MemoryLayoutDesc,
    ObjectKey,
)
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface, L2TaskId
from lmcache.v1.memory_management import MemoryObj, MemoryObjMetadata

import kvrail
from kvrail import _forks, _identity
from kvrail._chains import LookedUp, Places
from kvrail._identity import OPAQUE, lmcache_form
from kvrail._lane import Blocks, Ended, Lane, Work
from kvrail._relay import Relay
from kvrail._tier import CHANGE_S, Link
from kvrail._types import ChainWord

PARAMETERS: dict[str, Any] = {
    "socket": "/run/kvrail/kvrail.sock",  # where the sidecar listens
    "store": "kv",  # the name of its store
    "namespace": None,  # servers with the same name share objects; by default all
    "identity": {},  # what makes bytes incompatible beyond LMCache's keys, as the model's revision
    "depth": 128,  # objects in flight, of stores and of loads
}
"""`adapter_params`, with their defaults."""

LOCK_S = 60.0
"""Time for which locked objects are not evicted, unless they are unlocked."""

NEWS, LISTINGS = 256, 8
"""Objects that are announced at once, and listings that go on at a time."""

METADATA_MAX = 1024
"""Bytes of metadata that a block may have: the name of an object, for listings."""

LEARN_S = 2.0
"""Longest wait of a delete for the listing that has the forms of its objects."""

log = logging.getLogger("kvrail")


@dataclass(frozen=True)
class _Task:
    """Requests of LMCache."""

    number: L2TaskId
    keys: Sequence[ObjectKey]


@dataclass(frozen=True)
class _Listed:
    """An object that a listing has found."""

    name: bytes
    entry: KeyEntry


class _Way:
    """Tasks of one kind, and the eventfd that LMCache waits on for them."""

    def __init__(self, lane: Lane[_Task]) -> None:
        self._lane, self._lock = lane, _forks.lock()
        self._ended: dict[L2TaskId, Ended[_Task]] = {}
        self.relay = Relay()

    def begin(self, work: Work, task: _Task, blocks: Blocks) -> None:
        with self._lock:
            self._lane.begin(work, task, blocks)
            self._take()

    def pop(self, number: L2TaskId) -> Ended[_Task] | None:
        with self._lock:
            self._take()
            return self._ended.pop(number, None)

    def pop_all(self) -> list[Ended[_Task]]:
        with self._lock:
            self._take()
            ended, self._ended = list(self._ended.values()), {}
            return ended

    def _take(self) -> None:
        """Fetches ended groups, and arms the eventfd for the next ones."""
        came = {end.tag.number: end for end in self._lane.poll()}
        self._ended.update(came)
        descriptor = self._lane.arm()
        if descriptor is not None:
            self.relay.watch(descriptor)
        if came or (descriptor is None and self._lane.flying):
            self.relay.ring()
        if (when := self._lane.wake_at()) is not None:
            self.relay.ring_at(when)


class L2Adapter(L2AdapterInterface):
    """LMCache's objects as blocks of a namespace."""

    def __init__(self, adapter_params: dict[str, Any], l1_memory_desc: object = None) -> None:
        """
        :param adapter_params: see `PARAMETERS`.
        :param l1_memory_desc: not needed: objects have their addresses.
        """
        super().__init__()
        if unknown := adapter_params.keys() - PARAMETERS.keys():
            text = f"adapter_params has {sorted(unknown)}; there are {', '.join(PARAMETERS)}"
            raise ValueError(text)
        known = PARAMETERS | adapter_params
        self._link = Link(
            "lmcache",
            socket=known["socket"],
            store=known["store"],
            namespace=known["namespace"],
            identity=_identity.lmcache(known["identity"]),
        )
        self._stores, self._loads = (_Way(Lane(self._link, known["depth"])) for _ in range(2))
        self._lookups, self._found = Relay(), dict[L2TaskId, Bitmap]()
        self._numbers, self._lock = count(), _forks.lock()
        self._locked = Counter[bytes]()
        self._asked = LookedUp[ObjectKey]()
        self._announced_long = False
        self._forms: dict[tuple[str, str], dict[str, None]] = {}
        self._listings: dict[str, Iterator[_Listed]] = {}
        self._recovered: Iterator[_Listed] | None = self._list()
        # During that listing: names that this server is storing, those of them that the listing has
        # passed over, and names that it has announced itself.
        self._storing, self._passed, self._own = (set[bytes]() for _ in range(3))

    def get_store_event_fd(self) -> int:
        return self._stores.relay.fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._lookups.fileno()

    def get_load_event_fd(self) -> int:
        return self._loads.relay.fileno()

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2TaskId:
        return self._begin(self._stores, "put", keys, objects)

    def pop_completed_store_tasks(self) -> dict[L2TaskId, L2StoreResult]:
        self._tell_news()
        return {end.tag.number: self._stored(end) for end in self._stores.pop_all()}

    def submit_lookup_and_lock_task(
        self, keys: list[ObjectKey], group_layout_descs: dict[int, MemoryLayoutDesc]
    ) -> L2TaskId:
        self._tell_news()
        layouts = group_layout_descs.items()
        forms = {group: [lmcache_form(it.shapes, it.dtypes), OPAQUE] for group, it in layouts}
        for model, group in {(key.model_name, key.object_group_id) for key in keys}:
            for form in forms.get(group, ()):
                self._learn((model, f"{group:x}"), form)
        for chain in _chains(keys):
            self._asked.note(chain)
        asked = [self._names(key, forms.get(key.object_group_id)) for key in keys]
        there = iter(self._link.lookup([name for each in asked for name in each], hold=LOCK_S))
        held = [[name for name in each if next(there)] for each in asked]
        found = _bitmap(held)
        with self._lock:
            self._locked.update(name for each in held for name in each)
            number = next(self._numbers)
            self._found[number] = found
        self._lookups.ring()
        return number

    def query_lookup_and_lock_result(self, task_id: L2TaskId) -> Bitmap | None:
        with self._lock:
            return self._found.pop(task_id, None)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        names = [name for key in keys for name in self._names(key)]
        with self._lock:
            held = [name for name in names if name in self._locked]
            self._locked.subtract(held)
            free = [name for name in dict.fromkeys(held) if self._locked[name] <= 0]
            for name in free:
                del self._locked[name]
        if free:
            # What cannot be released now ends by itself.
            self._link.call(lambda space: space.release(free, timeout=CHANGE_S), None)

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2TaskId:
        return self._begin(self._loads, "get", keys, objects)

    def query_load_result(self, task_id: L2TaskId) -> Bitmap | None:
        if (end := self._loads.pop(task_id)) is None:
            return None
        self._notify_keys_accessed(list(compress(end.tag.keys, end.ok)))
        return _bitmap(end.ok)

    def submit_touch(self, keys: list[ObjectKey]) -> None:
        """LMCache has used objects elsewhere (0.5.7): they are evicted later."""
        names = [name for key in keys for name in self._names(key)]
        self._link.touch(names)
        self._notify_keys_accessed(keys)

    def get_memory_tags(self) -> Any:
        """The kind of this memory (0.5.7)."""
        from lmcache.v1.distributed.api import MemoryResidency, MemorySegment, MemoryTags

        residency = MemoryResidency.REMOTE if self._shared else MemoryResidency.LOCAL
        return MemoryTags(MemorySegment.STORAGE, residency)

    def delete(self, keys: list[ObjectKey]) -> None:
        deadline = time.monotonic() + LEARN_S
        while any(_group_of(key) not in self._forms for key in keys):
            if not self._announce() or time.monotonic() > deadline:
                break
        names = {name: key for key in keys for name in self._names(key)}
        asked = list(names)
        dropped = self._link.call(lambda space: space.drop(asked, timeout=CHANGE_S), None)
        if dropped is None:
            return
        gone = list(compress(asked, dropped.ok))
        sizes = list(compress(dropped.lengths, dropped.ok))
        with self._lock:
            if self._recovered is not None:
                self._own.update(gone)
        self._notify_keys_deleted([names[name] for name in gone], sizes)

    def list_l2_keys(
        self, model_name: str | None = None, page_size: int = 500, cursor: str | None = None
    ) -> KeyListPage:
        if page_size <= 0 or (cursor is not None and cursor not in self._listings):
            raise ValueError(f"page_size {page_size}, cursor {cursor!r}: no listing is there")
        with self._lock:
            rest = self._list() if cursor is None else self._listings.pop(cursor)
            wanted = (found for found in rest if model_name in (None, found.entry.key.model_name))
            entries = tuple(found.entry for found in islice(wanted, page_size))
            if len(entries) < page_size:
                return KeyListPage(entries, None)
            token = str(next(self._numbers))
            self._listings = dict([*self._listings.items(), (token, wanted)][-LISTINGS:])
            return KeyListPage(entries, token)

    def get_usage(self) -> AdapterUsage:
        seen = super().get_usage().bytes_by_cache_salt
        used = self._link.call(lambda space: space.usage()["bytes"], 0)
        return AdapterUsage(used, 0, MappingProxyType(dict(seen)))

    def report_status(self) -> dict[str, Any]:
        return self._link.status() | {"type": "kvrail"}

    def close(self) -> None:
        self._link.close()
        for relay in (self._stores.relay, self._loads.relay, self._lookups):
            relay.close()

    def _begin(
        self, way: _Way, work: Work, keys: list[ObjectKey], objects: list[MemoryObj]
    ) -> L2TaskId:
        forms = [_form(it.meta) for it in objects]
        lengths = [it.get_size() for it in objects]
        names = [_name(key, form) for key, form in zip(keys, forms, strict=True)]
        for key, form in zip(keys, forms, strict=True):
            self._learn(_group_of(key), form)
        with self._lock:
            task = _Task(next(self._numbers), list(keys))
            if work == "put" and self._recovered is not None:
                self._storing.update(names)
        addresses = [it.data_ptr for it in objects]
        listed = [name if len(name) <= METADATA_MAX else b"" for name in names]
        if not all(listed) and not self._announced_long:
            self._announced_long = True
            text = "kvrail for lmcache: %s... is too long a name for listings: such objects are %s"
            log.warning(text, max(names, key=len)[:80], "stored and found, but not announced")
        places = self._places(keys, forms) if work == "put" else None
        way.begin(work, task, Blocks(names, addresses, lengths, listed, places))
        return task.number

    def _places(self, keys: list[ObjectKey], forms: list[str]) -> Places:
        """Places of stored objects in the chains that LMCache has looked up before."""
        form = dict(zip(map(_group_of, keys), forms, strict=True))

        def word(chain: Sequence[ObjectKey]) -> ChainWord:
            return self._link.chain([_name(key, form[_group_of(key)]) for key in chain])

        return self._asked.places(keys, word)

    def _stored(self, end: Ended[_Task]) -> L2StoreResult:
        if not end.words:
            with self._lock:
                self._storing.difference_update(end.blocks.keys)
            return L2StoreResult(False, 0)
        stored = zip(end.blocks.keys, end.words, end.blocks.lengths, strict=True)
        new = [length if self._is_new(name, word) else 0 for name, word, length in stored]
        others = [(key, was) for key, was in zip(end.tag.keys, end.replaced, strict=True) if was]
        if others:
            self._notify_keys_deleted([key for key, _ in others], [was for _, was in others])
        there, sizes = (list(compress(its, end.ok)) for its in (end.tag.keys, new))
        self._notify_keys_stored(there, sizes)
        moved = zip(end.words, end.blocks.lengths, strict=True)
        written = sum(length for word, length in moved if word == "OK")
        return L2StoreResult(end.was_settled, written)

    def _is_new(self, name: bytes, word: str) -> bool:
        """Whether the size of a stored object is still to be announced."""
        with self._lock:
            passed = name in self._passed
            self._storing.discard(name)
            self._passed.discard(name)
            if word == "OK" and self._recovered is not None:
                self._own.add(name)
        return word == "OK" or (word == "PRESENT" and passed)

    def _list(self) -> "Iterator[_Listed]":
        """Objects in the store, without waiting for those that move blocks."""
        nothing: Iterator[kvrail.Block] = iter(())
        for block in self._link.call(lambda space: iter(space.list()), nothing):
            if block.metadata:
                key, form = _parts(block.metadata)
                self._learn((key.model_name, f"{key.object_group_id:x}"), form)
                yield _Listed(block.metadata, KeyEntry(key, block.length))

    def _announce(self) -> bool:
        """Announces to LMCache some objects that were there before this server; whether there may
        be more. Objects that this server stores and deletes meanwhile are announced elsewhere."""
        with self._lock:
            if self._recovered is None:
                return False
            try:
                listed = list(islice(self._recovered, NEWS))
            except kvrail.KvrailError as error:
                log.warning("kvrail for lmcache: not all objects are announced: %s", error)
                listed = []
            self._passed.update(it.name for it in listed if it.name in self._storing)
            told = self._storing | self._own
            there = [found.entry for found in listed if found.name not in told]
            if not listed:
                self._recovered = None
                self._own.clear()
        if there:
            keys = [it.key.to_object_key() for it in there]
            self._notify_keys_stored(keys, [it.size_bytes for it in there])
        return bool(listed)

    def _tell_news(self) -> None:
        """Announces to LMCache objects from before this server, some at a time, and gone ones."""
        self._announce()
        if gone := self._link.gone():
            keys = [_parts(it.metadata)[0].to_object_key() for it in gone]
            self._notify_keys_deleted(keys, [it.length for it in gone])

    def _names(self, key: ObjectKey, forms: list[str] | None = None) -> list[bytes]:
        """Names of this object: by these forms, or by those that its group has had."""
        if forms is None:
            forms = [OPAQUE, *tuple(self._forms.get(_group_of(key), ()))]
        return [_name(key, form) for form in dict.fromkeys(forms)]

    def _learn(self, group: tuple[str, str], form: str) -> None:
        """Records a form of the group's objects: names carry forms, which LMCache's keys lack."""
        self._forms.setdefault(group, {})[form] = None


def _form(meta: MemoryObjMetadata) -> str:
    return lmcache_form(meta.shapes or [meta.shape], meta.dtypes or [meta.dtype])


def _name(key: ObjectKey, form: str) -> bytes:
    parts = (key.model_name, f"{key.kv_rank:08x}", f"{key.object_group_id:x}")
    return "@".join((*parts, key.chunk_hash.hex(), key.cache_salt, form)).encode()


def _parts(name: bytes) -> tuple[EncodedObjectKey, str]:
    """LMCache's key of an object of this name, and its form."""
    model, rank, group, digest, salt, form = name.decode().split("@")
    return EncodedObjectKey(digest, model, int(rank, 16), int(group, 16), salt), form


def _group_of(key: ObjectKey) -> tuple[str, str]:
    """Objects that have the same forms, as a rule."""
    return key.model_name, f"{key.object_group_id:x}"


def _chains(keys: Sequence[ObjectKey]) -> Iterable[list[ObjectKey]]:
    """The chains among the objects of one request: each worker and group of layers has one."""
    chains: dict[tuple[str, int, int, str], list[ObjectKey]] = {}
    for key in keys:
        whose = (key.model_name, key.kv_rank, key.object_group_id, key.cache_salt)
        chains.setdefault(whose, []).append(key)
    return chains.values()


def _bitmap(found: Sequence[object]) -> Bitmap:
    bitmap = Bitmap(len(found))
    for at in compress(count(), found):
        bitmap.set(at)
    return bitmap
