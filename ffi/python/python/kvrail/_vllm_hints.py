"""What an orchestrator asks of the blocks of one of vLLM's requests: `ReqContext.kv_hints`.

vLLM passes actions on and defines none: who executes one checks its payload. A hint is never an
order, so an action that is malformed or unknown is counted, and the request goes on without it.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeGuard

from kvrail._chains import GROUP_BYTES, Prompt
from kvrail._types import Worth

ACTIONS, DIRECTIVES, PRIORITY_MAX = 64, 128, 100
"""Actions of a request, and ranges of an action, that are looked at; the highest priority."""

ENDING = 1 << 14
"""Chunks of ended requests that wait for their demotion; what is beyond ages as others."""

EXPECTS = frozenset({"kv.fetch", "kv.prefetch"})
"""Actions for which the blocks of their request come into the sidecar's memory tier, where there is
one and no CPU tier of vLLM's: that one loads them for the request in any case."""

ELSEWHERE = EXPECTS | {"kv.source_locations", "kv.demote"}
"""Actions that move blocks between other tiers. The store has what was handed down to it, and
loads it for the request that brings the action; a paused session's blocks stay where they are."""

Range = tuple[int, float]
"""Tokens of a prompt, from the first one to behind the last one."""


class MalformedError(ValueError):
    """The payload of an action is not what its type has."""


@dataclass
class Ranges:
    """Ranges of tokens that were joined where they meet, in order."""

    starts: list[int] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, ranges: Iterable[Range]) -> "Ranges":
        joined = cls()
        for start, end in sorted(ranges):
            if joined.ends and start <= joined.ends[-1]:
                joined.ends[-1] = max(joined.ends[-1], end)
            else:
                joined.starts.append(start)
                joined.ends.append(end)
        return joined

    def meet(self, start: int, end: int) -> bool:
        """Whether one of them has a token of this range."""
        at = bisect_right(self.ends, start)
        return at < len(self.starts) and self.starts[at] < end

    def cover(self, start: int, end: int) -> bool:
        """Whether one of them has all tokens of this range."""
        at = bisect_left(self.ends, end)
        return at < len(self.starts) and self.starts[at] <= start


@dataclass
class Hints:
    """The hints of one request."""

    retained: Ranges = field(default_factory=Ranges)
    released: Ranges = field(default_factory=Ranges)
    ends: bool = False
    """The session ends with this request."""
    expects: bool = False
    """Its blocks are to come closer while it waits."""
    counts: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, request: Any) -> "Hints":
        """Those of a request, which are read once. vLLM 0.30 does not pass them."""
        hints: Hints | None = request.get_state(cls)
        if hints is None:
            request.set_state(hints := cls.read(getattr(request, "kv_hints", None)))
        return hints

    @classmethod
    def read(cls, envelope: Any) -> "Hints":
        hints, kept, freed = cls(), list[Range](), list[Range]()
        actions = getattr(envelope, "actions", None)
        if not isinstance(actions, list | tuple | None):
            hints.counts["malformed"] += 1
            return hints
        for action in (actions or ())[:ACTIONS]:
            kind = getattr(action, "action_type", None)
            version = str(getattr(action, "action_version", None))
            if not isinstance(kind, str):
                hints.counts["malformed"] += 1
            elif kind in ELSEWHERE:
                hints.counts[f"elsewhere: {kind}"] += 1
                hints.expects |= kind in EXPECTS and version.partition(".")[0] == "1"
            elif kind not in {"kv.retain", "kv.deref"}:
                hints.counts["unknown"] += 1
            elif version.partition(".")[0] != "1":
                hints.counts["version"] += 1
            elif kind == "kv.deref":
                hints.ends = True
                hints.counts["ended"] += 1
            else:
                try:
                    more, less = _directives(action.payload)
                except MalformedError:
                    hints.counts["malformed"] += 1
                    continue
                kept += more
                freed += less
                hints.counts["retained"] += 1
        hints.retained, hints.released = Ranges.of(kept), Ranges.of(freed)
        return hints

    def worths(self, request: Any, keys: Sequence[bytes]) -> list[Worth] | None:
        """The worth of each of these chunks of the request; none where all are worth the same."""
        if not (self.retained.starts or self.released.starts or self.ends):
            return None
        tokens = _Tokens(request)
        return [self._worth(tokens.of(key)) for key in keys]

    def ending(self, request: Any) -> list[bytes]:
        """The request's chunks that go first from now on, because it has ended."""
        if not (self.released.starts or self.ends):
            return []
        tokens = _Tokens(request)
        if self.ends and not self.retained.starts:
            return [bytes(key) for key in tokens.ends]
        return [bytes(key) for key in tokens.ends if self._worth(tokens.of(key)) == "low"]

    def _worth(self, tokens: tuple[int, int] | None) -> Worth:
        # What is retained outlives the session.
        if tokens is not None and self.retained.meet(*tokens):
            return "high"
        is_released = tokens is not None and self.released.cover(*tokens)
        return "low" if self.ends or is_released else "normal"


class Hinted:
    """Hints of the requests of one tier, and chunks that wait for their demotion."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._ending: dict[bytes, None] = {}

    def begin(self, request: Any) -> None:
        """A request is new."""
        self._counts += Hints.of(request).counts

    def end(self, request: Any) -> list[bytes]:
        """A request has ended; its chunks that are to go first, and need not be touched."""
        ending = Hints.of(request).ending(request)
        room = max(0, ENDING - len(self._ending))
        self._counts["unsent"] += len(ending[room:])
        self._ending |= dict.fromkeys(ending[:room])
        return ending

    def used(self, keys: Iterable[bytes]) -> None:
        """These were used since: a session that has ended is not their last."""
        if self._ending:
            self.sent(bytes(key) for key in keys)

    @property
    def waits(self) -> bool:
        """Whether chunks wait."""
        return bool(self._ending)

    def take(self, most: int) -> list[bytes]:
        """Some of the chunks that wait."""
        return list(islice(self._ending, most))

    def sent(self, keys: Iterable[bytes]) -> None:
        """These wait no more."""
        for key in keys:
            self._ending.pop(key, None)

    def status(self) -> dict[str, object]:
        """For the engine's reports: actions by what became of them, and demotions left out."""
        return {"hints": dict(+self._counts)}


class _Tokens:
    """The tokens of a request's chunks."""

    def __init__(self, request: Any) -> None:
        self.ends: dict[bytes, int] = getattr(request, "_offload_key_positions", {})
        self._groups = Prompt.of(request).groups

    def of(self, key: bytes) -> tuple[int, int] | None:
        """Those of a chunk; none where vLLM has not passed its place."""
        end = self.ends.get(key)
        if end is None:
            return None
        first, *_ = self._groups.get(key[-GROUP_BYTES:], [key])
        return end - self.ends.get(first, end), end


def _directives(payload: Any) -> tuple[list[Range], list[Range]]:
    """The ranges that are retained, and those that are released, as vLLM's proposal of
    `kv.retain` has them: priorities of 1 to 100, and 0."""
    directives = payload.get("directives") if isinstance(payload, dict) else None
    if not isinstance(directives, list) or len(directives) > DIRECTIVES:
        raise MalformedError("directives")
    kept, freed = list[Range](), list[Range]()
    for it in directives:
        if not isinstance(it, dict):
            raise MalformedError("directive")
        priority, start, end = it.get("priority"), it.get("start", 0), it.get("end")
        if not _is_whole(priority) or not 0 <= priority <= PRIORITY_MAX:
            raise MalformedError("priority")
        if not _is_whole(start) or start < 0:
            raise MalformedError("start")
        if end is not None and (not _is_whole(end) or end <= start):
            raise MalformedError("end")
        lasts = _lasts(it.get("duration"))
        if it.get("covers_output", False) is not False:
            continue  # the tier is not told where the prompt ends
        range_of_it = (start, math.inf if end is None else end)
        if priority == 0:
            freed.append(range_of_it)
        elif lasts:
            kept.append(range_of_it)
    return kept, freed


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _lasts(duration: Any) -> bool:
    """Whether a retention has a duration at all: none is without an end."""
    if duration is None:
        return True
    if isinstance(duration, bool) or not isinstance(duration, int | float) or not duration >= 0:
        raise MalformedError("duration")
    return duration > 0
