"""Which chain the blocks that an engine stores belong to, how deep in it each of them is, and what
the store has of it."""

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar

from kvrail._types import ChainWord

ASKED = 1 << 16
"""Blocks of lookups that are remembered."""

GROUP_BYTES = 4
"""Bytes of the number of a group at the end of vLLM's keys."""

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Places:
    """The places of blocks in their chains."""

    chains: Sequence[ChainWord]
    """What the store has of the chain of each."""
    depths: Sequence[int]
    """How deep in it each is."""

    def some(self, places: Iterable[int]) -> "Places":
        """Those of some of the blocks."""
        which = list(places)
        return Places([self.chains[at] for at in which], [self.depths[at] for at in which])


class Asked(Generic[K]):
    """Chains that an engine has looked up lately, by their blocks. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[K, tuple[Sequence[K], int]] = {}

    def note(self, chain: Sequence[K]) -> None:
        """The blocks of one request's prompt, from its head on, were looked up."""
        with self._lock:
            for depth, key in enumerate(chain):
                self._places.pop(key, None)
                self._places[key] = (chain, depth)
            for key in list(islice(self._places, max(0, len(self._places) - ASKED))):
                del self._places[key]

    def places(
        self, keys: Sequence[K], word: Callable[[Sequence[K]], ChainWord]
    ) -> Places:
        """Those of blocks that are put. A block that was not looked up extends a chain of which
        nothing is known."""
        with self._lock:
            found = [self._places.get(key, ((), 0)) for key in keys]
        chains = {id(chain): chain for chain, _ in found}
        words = {name: word(chain) for name, chain in chains.items()}
        return Places([words[id(chain)] for chain, _ in found], [depth for _, depth in found])


@dataclass
class Prompt:
    """The chunks of one of vLLM's requests. Its 0.30 says nothing of them."""

    groups: dict[bytes, list[bytes]] = field(default_factory=dict)
    """A chain for each group of layers."""
    depths: dict[bytes, int] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Any) -> "Prompt":
        """That of a request, with the chunks that are known by now."""
        prompt: Prompt | None = request.get_state(cls)
        if prompt is None:
            request.set_state(prompt := cls())
        positions = getattr(request, "_offload_key_positions", {})
        for key in list(positions)[len(prompt.depths) :]:
            group = prompt.groups.setdefault(key[-GROUP_BYTES:], [])
            prompt.depths[key] = len(group)
            group.append(bytes(key))
        return prompt

    def places(
        self, keys: Iterable[bytes], word: Callable[[Sequence[bytes]], ChainWord]
    ) -> Places:
        """Those of some of its chunks. Of groups with a window only the last chunks are stored: the
        one of which most is there speaks for all."""
        depths = [self.depths.get(key, 0) for key in keys]
        extends = not self.groups or any(
            word(chain) == "extends" for chain in self.groups.values()
        )
        return Places(["extends" if extends else "begins"] * len(depths), depths)
