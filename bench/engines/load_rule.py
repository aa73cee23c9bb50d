"""Time to the first token where some prompts are loaded and some computed: the rule of kvrail's
adapter of vLLM, its own code, with a simulated engine and drive in made-up time.

    python bench/engines/load_rule.py [--requests 256]

A point is how long loads of a prompt take, for computing it, and a number of users. Each user's
prompt is known to the store but for its end. They come at once, round by round, or each for itself
at 0.7 of what the engine computes. Three arms, on the same arrivals: nothing is loaded, all is
loaded, and `prefer="latency"`. The figure is its mean time to the first token, for the smaller one
of the two others.
"""

import argparse
import itertools
import random
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

from kvrail import _load_choice, _vllm_loads
from kvrail._load_choice import LoadChoice, Speed
from kvrail._vllm_loads import Loads, Steps

CHUNK, NEW_TOKENS, BUDGET = 256, 512, 8192
"""Tokens of a block; tokens of a prompt that no store has; tokens of a step at most."""
EACH_S, BEFORE_S, STEP_S, IDLE_S = 2.5e-5, 8e-10, 0.004, 0.001
"""What an engine takes for a token, for each token before it, for a step, and for an empty step: a
model of 8B on an H100."""
WINDOW = 16
"""Blocks of its engine that a drive has at once: the rest waits in the worker."""

RATIOS = (0.3, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0)
USERS = (1, 2, 4, 8, 16, 32)
ARMS = ("computed", "loaded", "latency")


def compute_s(first: int, end: int) -> float:
    return EACH_S * (end - first) + BEFORE_S * (end**2 - first**2) / 2


@dataclass
class Clock:
    now: float = 100.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class Drive:
    """Reads one block after the other. Lookups take each for `error` times as long as it takes."""

    clock: Clock
    each_s: float
    error: float
    free_at: float = 0.0

    def load(self, blocks: int) -> float:
        """When these are loaded that are asked for now."""
        self.free_at = max(self.free_at, self.clock.now) + blocks * self.each_s
        return self.free_at

    def seconds(self, blocks: int) -> float:
        """What a lookup returns for gets that begin now."""
        queue_s = min(max(0.0, self.free_at - self.clock.now), WINDOW * self.each_s)
        return self.error * (queue_s + blocks * self.each_s)


@dataclass(eq=False)
class Request:
    """A prompt, as vLLM's scheduler has it, and the state that it keeps for tiers."""

    req_id: str
    arrives: float
    tokens: int
    known: int
    """Those of them that the store has."""
    done: int = 0
    loaded_at: float | None = None
    looked: bool = False
    ended: float = 0.0
    states: dict[type, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ends = range(CHUNK, self.tokens + 1, CHUNK)
        self._offload_key_positions = {
            b"%s %d group" % (self.req_id.encode(), it): it for it in ends
        }

    def get_state(self, kind: type) -> Any:
        return self.states.get(kind)

    def set_state(self, state: Any) -> None:
        self.states[type(state)] = state


class Engine:
    """vLLM's scheduler as far as prompts go: running ones first, loads beside them, and new ones
    as long as a step has room."""

    def __init__(self, clock: Clock, drive: Drive, arm: str) -> None:
        self._clock, self._drive, self._arm = clock, drive, arm
        speed = Speed()
        prefer: Any = "throughput" if arm == "loaded" else "latency"
        self._loads, self._steps = Loads(LoadChoice(speed, prefer)), Steps(speed)
        self._coming: deque[Request] = deque()
        self._waiting: deque[Request] = deque()
        self._loading: list[Request] = []
        self._running: list[Request] = []
        self._over: set[str] = set()

    def run(self, requests: Sequence[Request], *, warms: bool = False) -> list[float]:
        """The time to the first token of each.

        :param warms: nothing is in the store yet.
        """
        self._coming = deque(sorted(requests, key=lambda request: request.arrives))
        while self._coming or self._waiting or self._loading or self._running:
            while self._coming and self._coming[0].arrives <= self._clock.now:
                self._waiting.append(request := self._coming.popleft())
                self._steps.add(request.req_id)
            self._step(warms)
        return [it.ended - it.arrives for it in requests]

    def status(self) -> dict[str, object]:
        return self._loads.status()

    def _step(self, warms: bool) -> None:
        new, parts, left = list[Request](), dict[Request, tuple[int, int]](), BUDGET
        for request in self._running:
            left -= self._part(request, left, parts)
        for request in list(self._loading):
            if left > 0 and request.loaded_at is not None and request.loaded_at <= self._clock.now:
                self._loading.remove(request)
                request.loaded_at = None
                new.append(request)
                left -= self._part(request, left, parts)
        while self._waiting and left > 0:
            request = self._waiting.popleft()
            blocks = 0 if warms or self._arm == "computed" else self._found(request)
            if blocks:
                self._loads.begin(request, blocks)
                request.done = blocks * CHUNK
                request.loaded_at = self._drive.load(blocks)
                self._loading.append(request)
                continue
            new.append(request)
            left -= self._part(request, left, parts)
        self._end(new, parts)

    def _part(self, request: Request, left: int, parts: dict[Request, tuple[int, int]]) -> int:
        tokens = min(request.tokens - request.done, left)
        if tokens > 0:
            parts[request] = (request.done, request.done + tokens)
        return tokens

    def _found(self, request: Request) -> int:
        keys = list(request._offload_key_positions)
        there = [it <= request.known for it in request._offload_key_positions.values()]
        asked = self._loads.asked(keys[0], request, ())
        assert asked == keys
        answers = self._loads.answers(request, asked, [there])
        return answers.index(False)

    def _end(self, new: list[Request], parts: dict[Request, tuple[int, int]]) -> None:
        going_on = [it for it in self._running if it in parts]
        self._steps.begin(
            SimpleNamespace(
                finished_req_ids=self._over,
                scheduled_new_reqs=[
                    SimpleNamespace(
                        req_id=it.req_id,
                        prompt_token_ids=range(it.tokens),
                        num_computed_tokens=it.done,
                    )
                    for it in new
                ],
                scheduled_cached_reqs=SimpleNamespace(
                    req_ids=[it.req_id for it in going_on],
                    num_computed_tokens=[it.done for it in going_on],
                ),
                num_scheduled_tokens={it.req_id: end - at for it, (at, end) in parts.items()},
            )
        )
        self._loads.step()
        self._running += new
        took_s = sum(compute_s(*part) for part in parts.values())
        before, self._over = self._clock.now, set()
        self._clock.now += STEP_S + took_s if parts else self._idle_s()
        self._steps.end()
        for request, (_, end) in parts.items():
            request.done = end
            if end == request.tokens:
                request.ended = self._clock.now
                self._running.remove(request)
                self._over.add(request.req_id)
        for request in self._loading:
            if request.loaded_at is not None and before < request.loaded_at <= self._clock.now:
                self._loads.end(request.req_id, whole=True)

    def _idle_s(self) -> float:
        """An empty step, or all of them until shortly before something comes."""
        comes = [it.loaded_at for it in self._loading if it.loaded_at is not None]
        comes += [it.arrives for it in list(self._coming)[:1]]
        return max(IDLE_S, min(comes) - self._clock.now - 4 * IDLE_S)


@contextmanager
def made_up(clock: Clock, drive: Drive) -> Iterator[None]:
    """kvrail's code takes the time and the drive's answers from here."""
    time = SimpleNamespace(monotonic=clock.monotonic)
    with (
        mock.patch.object(_vllm_loads, "time", time),
        mock.patch.object(_load_choice, "time", time),
        mock.patch.object(_vllm_loads, "_seconds", lambda found, count: drive.seconds(count)),
    ):
        yield


@dataclass(frozen=True)
class Point:
    ratio: float
    users: int
    pattern: str = "at once"
    context: int = 16_384
    error: float = 1.0
    new: float = 0.0
    """Share of prompts that the store does not know."""
    requests: int = 128
    seed: int = 1

    def times(self) -> dict[str, list[float]]:
        """Times to the first token, by arm."""
        return {arm: self._arm(arm) for arm in ARMS}

    def _arm(self, arm: str) -> list[float]:
        clock, blocks = Clock(), self.context // CHUNK
        each_s = self.ratio * compute_s(0, self.context) / blocks
        drive = Drive(clock, each_s, self.error)
        engine, names = Engine(clock, drive, arm), itertools.count()
        dice = random.Random(self.seed)

        def requests(gaps_s: Sequence[float]) -> list[Request]:
            comes = itertools.accumulate(gaps_s, initial=clock.now + 1.0)
            tokens = self.context + NEW_TOKENS
            return [
                Request(f"{next(names)}", at, tokens, self.context * (dice.random() >= self.new))
                for at, _ in zip(comes, gaps_s)
            ]

        with made_up(clock, drive):
            # Prompts of the first visit are computed.
            engine.run(requests([0.0] * 4), warms=True)
            if self.pattern == "at once":
                rounds = max(2, self.requests // self.users)
                each = (requests([0.0] * self.users) for _ in range(rounds))
                return [it for some in each for it in engine.run(some)]
            mean_s = compute_s(0, self.context + NEW_TOKENS) / 0.7
            return engine.run(
                requests([dice.expovariate(1 / mean_s) for _ in range(self.requests)])
            )


def figures(times: dict[str, list[float]]) -> tuple[float, float]:
    """Mean and 99th percentile of `prefer="latency"`, for the better one of the two others."""

    def of(what: Callable[[list[float]], float]) -> float:
        return what(times["latency"]) / min(what(times["computed"]), what(times["loaded"]))

    def late(all_of_them: list[float]) -> float:
        return sorted(all_of_them)[99 * len(all_of_them) // 100]

    return of(statistics.mean), of(late)


def rows(points: Callable[[float, int], Point], users: Sequence[int]) -> Iterator[list[str]]:
    for count in users:
        both = [figures(points(ratio, count).times()) for ratio in RATIOS]
        yield [str(count), *(f"{mean:.2f}; {late:.2f}" for mean, late in both)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=256)
    its = parser.parse_args()
    tables: list[tuple[str, dict[str, Any], Sequence[int]]] = [
        (f"{context:,} tokens, at once{words}", {"context": context} | more, USERS)
        for context in (2_048, 16_384, 65_536)
        for words, more in (
            ("", {}),
            (", half of the prompts are new", {"new": 0.5}),
            (", lookups return 0.75 of the time", {"error": 0.75}),
            (", lookups return 1.3 times the time", {"error": 1.3}),
        )
    ]
    tables += [
        (f"{context:,} tokens, each for itself", {"context": context, "pattern": "alone"}, (1,))
        for context in (2_048, 16_384, 65_536)
    ]
    for title, more, users in tables:
        print(f"\n{title}\n\n| users | " + " | ".join(f"{it:g}" for it in RATIOS) + " |")
        print("| --- " * (len(RATIOS) + 1) + "|")
        make = lambda ratio, count: Point(ratio, count, requests=its.requests, **more)  # noqa: E731
        for row in rows(make, users):
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
