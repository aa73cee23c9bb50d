"""Which key lies in which slot of a volume: the map that both adapters keep.

Slots have one size. A slot that is being written is nobody's until it is published, so a torn write
is a miss; the oldest slot that nobody reads makes room for a new one. The map is in memory: with
its process the cache is forgotten.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable


class Slots:
    """A map from keys to slots. Not for several threads."""

    def __init__(self, capacity: int, slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self._free = list(reversed(range(capacity // slot_bytes)))
        self._places: OrderedDict[Hashable, int] = OrderedDict()
        self._readers: Counter[int] = Counter()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._places

    def reserve(self) -> int | None:
        """A slot to write to, by its offset in the volume; none while all are in use."""
        if not self._free:
            unread = (key for key, slot in self._places.items() if not self._readers[slot])
            if (oldest := next(unread, None)) is None:
                return None
            self.forget([oldest])
        return self._free.pop() * self.slot_bytes

    def publish(self, key: Hashable, offset: int) -> None:
        """The slot is written: from now on it is found."""
        self.forget([key])
        self._places[key] = offset // self.slot_bytes

    def give_back(self, offset: int) -> None:
        """The slot could not be written."""
        self._free.append(offset // self.slot_bytes)

    def read(self, key: Hashable) -> int | None:
        """Where the key lies. The slot stays as it is until `done`."""
        slot = self._places.get(key)
        if slot is None:
            return None
        self._places.move_to_end(key)
        self._readers[slot] += 1
        return slot * self.slot_bytes

    def done(self, offset: int) -> None:
        """A reader is done with a slot."""
        slot = offset // self.slot_bytes
        self._readers[slot] -= 1
        if not self._readers[slot]:
            del self._readers[slot]
            if slot not in self._places.values():
                self._free.append(slot)

    def forget(self, keys: Iterable[Hashable]) -> None:
        """The keys are gone; a slot that is read is free when its readers are done."""
        for key in keys:
            slot = self._places.pop(key, None)
            if slot is not None and not self._readers[slot]:
                del self._readers[slot]
                self._free.append(slot)
