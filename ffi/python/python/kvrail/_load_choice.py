"""Whether an engine loads blocks of a prompt or computes them, whichever is sooner.

A :class:`Speed` is how fast the engine computes, by its own steps; a lookup gives the time of the
loads. Both are estimates: a :class:`LoadChoice` corrects the time of loads by those that ended, and
loads now and then what it would decline, so that a drive that has become faster is noticed.
"""

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

Prefer = Literal["latency", "throughput"]

FORGET = 0.98
"""Weight of earlier steps of an engine after each one: the last 50 count."""

STEP_TOKENS = 256
"""Tokens of the smallest step whose time counts: that of shorter ones is not for their tokens."""

NOTICED, NOTICED_FOR_S = 5, 60.0
"""Number of the last loads that correct their times, and for how long: the median counts, since a
load may end late because a sidecar was killed."""

CORRECTIONS = (0.5, 4.0)
"""Bounds of the correction: beyond them it is the expectation that is wrong, and will change."""

NOTICED_S = 0.002
"""Loads that should take less do not correct it: the engine looks for their end between steps."""

DECLINES, LOSS_MOST = 32, 4.0
"""Declines in a row after which blocks are loaded all the same, where that loses as much time as
computing takes. There are fewer where it loses less, and more, up to four times as many, where it
loses more: loads that only find out how fast drives are cost 1/32 of computing."""

PARTS = 16
"""Lengths of the front between nothing and all that are weighed."""

log = logging.getLogger("kvrail")


class Speed:
    """Time that an engine takes to compute tokens: one part for each of them, and one for each
    token before it."""

    def __init__(self) -> None:
        self._uu = self._uv = self._vv = self._ut = self._vt = 0.0
        self._each = self._before = 0.0
        self._given: float | None = None
        self.backlog: int = 0
        """Tokens of prompts that the engine has taken in and not computed."""
        self.waiting: set[str] = set()
        """Requests that the engine has not taken in."""

    def give(self, tokens_per_second: float | None) -> None:
        """What counts until steps were measured."""
        if tokens_per_second is not None and not tokens_per_second > 0:
            raise ValueError(
                f"prefill_tokens_per_second is {tokens_per_second!r}; it must be above 0"
            )
        self._given = tokens_per_second

    def measured(self, parts: Sequence[tuple[int, int]], seconds: float) -> None:
        """A step took this long.

        :param parts: for each of its prompts the first token that was computed, and the end.
        """
        tokens = sum(end - first for first, end in parts)
        if tokens < STEP_TOKENS or seconds <= 0:
            return
        u, v = float(tokens), sum(map(_before, parts))
        sums = (self._uu, self._uv, self._vv, self._ut, self._vt)
        new = (u * u, u * v, v * v, u * seconds, v * seconds)
        kept = (FORGET * old + it for old, it in zip(sums, new, strict=True))
        self._uu, self._uv, self._vv, self._ut, self._vt = kept
        self._fit()

    def seconds(self, first: int, end: int) -> float | None:
        """Seconds to compute these tokens of a prompt; None until a step was measured."""
        if self._uu:
            return self._each * (end - first) + self._before * _before((first, end))
        return None if self._given is None else (end - first) / self._given

    def _fit(self) -> None:
        """Least squares; steps that are all alike say nothing of what is before them."""
        spread = self._uu * self._vv - self._uv**2
        if spread > 1e-6 * self._uu * self._vv:
            each = (self._ut * self._vv - self._vt * self._uv) / spread
            before = (self._vt * self._uu - self._ut * self._uv) / spread
            if each > 0 and before >= 0:
                self._each, self._before = each, before
                return
        self._each, self._before = self._ut / self._uu, 0.0


def _before(part: tuple[int, int]) -> float:
    """Tokens that are before each of a part, added up."""
    first, end = part
    return (end * end - first * first) / 2


@dataclass
class Weighed:
    """What became of a prompt whose loads take longer than computing it. It counts once, however
    often it is asked for while it waits, and a try stays one."""

    tries: bool | None = None
    """Whether it is loaded all the same; none where no load was declined yet."""


@dataclass(frozen=True)
class Front:
    """Blocks of a prompt that are in the store, from the first on that the engine lacks."""

    first: int
    """The token at which they begin."""
    ends: Sequence[int]
    """The token at which each of them ends."""
    total: int
    """Tokens of the prompt."""
    load_seconds: Callable[[int], float | None]
    """Seconds in which the first of them are loaded, behind loads that are on their way."""
    spared_s: float = 0.0
    """Seconds in which the engine would compute what those loads bring."""
    waiting: int = 0
    """Requests that the engine has not taken in, besides those that wait for loads."""
    delays: Callable[[int], float] = lambda _: 0.0
    """Seconds by which other requests are later, all together, if the first of them are loaded and
    the others computed."""
    weighed: Weighed = field(default_factory=Weighed)
    """Of its prompt."""


class LoadChoice:
    """How many blocks of a front are loaded."""

    def __init__(
        self,
        speed: Speed,
        prefer: Prefer = "latency",
        prefill_tokens_per_second: float | None = None,
    ) -> None:
        """
        :param prefer: "latency" declines loads that take longer than computing, "throughput" loads
            all, because it saves time of the GPU.
        :param prefill_tokens_per_second: the engine's speed until it is measured.
        """
        if prefer not in get_args(Prefer):
            known = ", ".join(map(repr, get_args(Prefer)))
            raise ValueError(f"prefer is {prefer!r}; it must be one of {known}")
        self._speed, self._prefer = speed, prefer
        speed.give(prefill_tokens_per_second)
        self._noticed: deque[tuple[float, float]] = deque(maxlen=NOTICED)
        self._in_a_row = self._left = 0
        self.declined_prompts = self.declined_blocks = 0

    def step(self) -> None:
        """The engine has scheduled what was chosen: it is the engine's backlog from now on."""
        self._left = 0

    def blocks(self, front: Front) -> int:
        """The number of blocks, from the first on, with which the prompt is done soonest. What it
        leaves to compute is ahead of prompts that are chosen later in the same step."""
        some = self._best(front)
        self._left += max(0, front.total - (front.ends[some - 1] if some else front.first))
        return some

    def _best(self, front: Front) -> int:
        count = len(front.ends)
        if self._prefer == "throughput" or count == 0:
            return count
        times: dict[int, float] = {}
        for some in _lengths(count):
            if (seconds := self._seconds(front, some)) is None:
                return count
            times[some] = seconds + front.delays(some)
        best = min(times, key=lambda some: (times[some], -some))
        if best == count:
            self._in_a_row = 0
            return count
        if front.weighed.tries is None:
            front.weighed.tries = self._tries(front, best, times[count] - times[best])
        return count if front.weighed.tries else best

    def spared_seconds(self, front: Front, count: int) -> float:
        """Seconds in which the engine would compute this number of the blocks."""
        end = front.ends[count - 1] if count else front.first
        return self._speed.seconds(front.first, end) or 0.0

    def waiting(self, known: set[str]) -> int:
        """Requests that the engine has not taken in, besides these."""
        return len(self._speed.waiting - known)

    def delays(
        self, front: Front, loads_s: Callable[[int], float], computed: float
    ) -> Callable[[int], float]:
        """By how much requests that wait are later, for `Front.delays`.

        :param loads_s: the time of loads of a number of blocks, without what is ahead of them.
        :param computed: the part of prompts that was computed lately.
        """
        whole = self.spared_seconds(front, len(front.ends))

        def delays(count: int) -> float:
            # vLLM looks nothing up while a step has no room: computing delays all that wait, loads
            # those that are loaded behind them.
            computes_s = whole - self.spared_seconds(front, count)
            load_s = (1 - computed) * loads_s(count) * self._correction
            return front.waiting * (computes_s + load_s)

        return delays

    def loaded(self, expected: float | None, seconds: float) -> None:
        """A load for which this time was expected took that long."""
        if expected is None or expected < NOTICED_S:
            return
        least, most = CORRECTIONS
        ratio = min(max(seconds / expected, least), most)
        self._noticed.append((time.monotonic(), ratio))

    def status(self) -> dict[str, object]:
        """For the engine's reports."""
        return {
            "prefer": self._prefer,
            "declined_prompts": self.declined_prompts,
            "declined_blocks": self.declined_blocks,
            "load_correction": round(self._correction, 3),
        }

    @property
    def _correction(self) -> float:
        """How much longer loads take than expected."""
        since = time.monotonic() - NOTICED_FOR_S
        seen = [ratio for at, ratio in self._noticed if at > since]
        return statistics.median(seen) if seen else 1.0

    def _seconds(self, front: Front, count: int) -> float | None:
        """Seconds to the prompt's last token with this number of blocks loaded: loads go on
        beside the prompts that the engine computes first. What it computes instead counts as in
        an engine that loads nothing: there it is behind the prompts that are loaded now."""
        begun = front.ends[count - 1] if count else front.first
        rest = self._speed.seconds(begun, max(front.total, begun))
        ahead = self._speed.seconds(0, self._speed.backlog + self._left)
        load = front.load_seconds(count) if count else 0.0
        if rest is None or ahead is None or load is None:
            return None
        behind = front.spared_s * (1 - count / len(front.ends))
        return max(load * self._correction, ahead) + rest + behind

    def _tries(self, front: Front, best: int, loss: float) -> bool:
        """Whether all is loaded although it takes longer: of one prompt in many. Counts the others.

        :param loss: seconds that loading all takes longer than the best.
        """
        # Of this prompt alone: a try costs no part of the time of those that are ahead.
        count, computed = len(front.ends), self._speed.seconds(front.first, front.total) or 0.0
        self._in_a_row += 1
        if self._in_a_row * computed > DECLINES * min(loss, LOSS_MOST * computed):
            self._in_a_row = 0
            return True
        self.declined_prompts += 1
        self.declined_blocks += count - best
        # At 1, 2, 4, 8...: a line for each prompt would be as many lines as requests.
        if self.declined_prompts.bit_count() == 1:
            log.info(
                "kvrail: %d of %d blocks are computed, in %.0f ms, because loading all takes "
                "%.0f ms (%d such prompts); prefer=throughput loads them all the same",
                count - best,
                count,
                1000 * computed,
                1000 * (self._seconds(front, count) or 0.0),
                self.declined_prompts,
            )
        return False


def _lengths(count: int) -> list[int]:
    """Lengths of a front of this number of blocks that are weighed."""
    return sorted({count * part // PARTS for part in range(PARTS + 1)})
