"""Chains of the blocks that an engine stores: the depth of each block, and the part of its chain
that the store has."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar

from kvrail import _forks
from kvrail._types import ChainWord

ASKED = 1 << 16
"""Number of looked-up blocks that are remembered."""

GROUP_BYTES = 4
"""Bytes of the number of a group at the end of vLLM's keys."""

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Places:
    """The places of blocks in their chains."""

    chains: Sequence[ChainWord]
    """The part of each block's chain that the store has."""
    depths: Sequence[int]
    """The depth of each block in its chain."""

    def some(self, places: Iterable[int]) -> "Places":
        """The places of some of the blocks."""
        which = list(places)
        return Places([self.chains[at] for at in which], [self.depths[at] for at in which])


class LookedUp(Generic[K]):
    """Chains that an engine has looked up lately, by their blocks. For any thread."""

    def __init__(self) -> None:
        self._lock = _forks.lock()
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
        """The places of blocks that are put. A block that was not looked up extends an unknown
        chain."""
        with self._lock:
            found = [self._places.get(key, ((), 0)) for key in keys]
        chains = {id(chain): chain for chain, _ in found}
        words = {name: word(chain) for name, chain in chains.items()}
        return Places([words[id(chain)] for chain, _ in found], [depth for _, depth in found])


@dataclass
class Prompt:
    """The chunks of one of vLLM's requests. vLLM 0.30 does not pass them."""

    groups: dict[bytes, list[bytes]] = field(default_factory=dict)
    """A chain for each group of layers."""
    depths: dict[bytes, int] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Any) -> "Prompt":
        """The prompt of a request, with the chunks that are known by now."""
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
        """The places of some of its chunks. Of groups with a window only the last chunks are
        stored: the group with the most chunks there decides for all."""
        depths = [self.depths.get(key, 0) for key in keys]
        extends = not self.groups or any(
            word(chain) == "extends" for chain in self.groups.values()
        )
        return Places(["extends" if extends else "begins"] * len(depths), depths)
