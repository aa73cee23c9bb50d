"""How fast vLLM computes, by the steps of its scheduler, and what it loads of a request."""

import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import kvrail
from kvrail._chains import Prompt
from kvrail._load_choice import Front, LoadChoice, Speed, Weighed

STEPS = 64
"""Steps that may be under way at once; vLLM has two."""

UNSEEN = 3
"""Steps back from a load's end to the last look that did not find it, at most: two are under way,
and the end is reported behind one."""

LATELY = 16
"""Requests of which the part that is computed counts."""


class Steps:
    """vLLM's steps: one begins when it is scheduled, or when the one before has ended, and ends
    when its output comes. With asynchronous scheduling the next one is scheduled before that."""

    def __init__(self, speed: Speed) -> None:
        self._speed = speed
        self._begun: deque[tuple[float, list[tuple[int, int]]]] = deque(maxlen=STEPS)
        self._ended = 0.0
        self._totals: dict[str, int] = {}
        self._left: dict[str, int] = {}

    def add(self, request: str) -> None:
        """A request is new, and waits until it is scheduled or has ended."""
        self._speed.waiting.add(request)

    def begin(self, output: Any) -> None:
        """This is scheduled (`SchedulerOutput`)."""
        for request in output.finished_req_ids:
            self._totals.pop(request, None)
            self._left.pop(request, None)
        done = {}
        for new in output.scheduled_new_reqs:
            tokens = getattr(new, "prefill_token_ids", None) or new.prompt_token_ids or ()
            self._totals[new.req_id] = len(tokens)
            done[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        done.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        parts = []
        for request, first in done.items():
            total = self._totals.get(request, 0)
            end = min(first + output.num_scheduled_tokens.get(request, 0), total)
            if end > first:
                parts.append((first, end))
            self._left[request] = max(0, total - max(first, end))
        self._speed.waiting.difference_update(done, output.finished_req_ids)
        self._speed.backlog = sum(self._left.values())
        self._begun.append((time.monotonic(), parts))

    def end(self) -> None:
        """The output of the oldest step has come."""
        if not self._begun:
            return
        scheduled, parts = self._begun.popleft()
        now = time.monotonic()
        self._speed.measured(parts, now - max(scheduled, self._ended))
        self._ended = now


@dataclass
class _Chosen:
    """The blocks of a request that were found, and are loaded."""

    front: Front
    ahead_s: float
    """Seconds of loads for other requests."""
    step: int
    """The step in which this was so: later other loads are ahead, and other blocks are there."""
    each_s: float | None
    """Seconds of one block, where they are known."""

    def seconds(self, count: int) -> float | None:
        load_s = self.front.load_seconds(count)
        if load_s is None:
            return None
        # A drive's queue has a window of the loads for other requests at most, which count once.
        own_s = _own_seconds(self.front, count, self.each_s) or 0.0
        return max(self.ahead_s, load_s - own_s) + own_s

    def own_s(self, count: int) -> float:
        """Without what is ahead."""
        own_s = _own_seconds(self.front, count, self.each_s)
        return own_s if own_s is not None else self.front.load_seconds(count) or 0.0


class _Counted:
    """State of a request whose computed part has been counted."""


@dataclass(frozen=True)
class _Load:
    """Loads of a request that are chosen, or on their way."""

    request: str
    front: Front | None
    """Blocks that the request has in the store; none where its loads were not weighed."""
    count: int = 0
    own_s: float = 0.0
    """Their time without what is ahead of them."""
    begun: float = 0.0
    expected: float | None = None


@dataclass
class Failed:
    """Keys of a request that could not be loaded, although they were there: it computes them."""

    keys: set[bytes] = field(default_factory=set)

    @classmethod
    def of(cls, request: Any) -> "Failed":
        state: Failed | None = request.get_state(cls)
        if state is None:
            request.set_state(state := cls())
        return state


class Loads:
    """What a tier or spec answers to lookups: blocks whose load would take longer than computing
    them are not there."""

    def __init__(self, choice: LoadChoice) -> None:
        self._choice = choice
        self._begun: dict[str | int, _Load] = {}
        self._chosen: dict[str, _Load] = {}
        self._before: dict[str, _Load] = {}
        self._ended = 0.0
        self._steps: deque[float] = deque(maxlen=UNSEEN)
        self._step = 0
        self._each_s: float | None = None
        self._computes = 1.0
        """The part of the last requests that was computed."""

    def asked(self, key: bytes, request: Any, known: Collection[bytes]) -> list[bytes]:
        """A key and all others of its request that are not known, in their order from this one on:
        vLLM looks up one after the other. Its 0.30 does not pass the others."""
        whole = list(getattr(request, "_offload_key_positions", {}))
        at = whole.index(key) if key in whole else 0
        others = (other for other in whole[at:] + whole[:at] if other not in known)
        return [key, *(other for other in others if other != key)]

    def answers(
        self, request: Any, asked: Sequence[bytes], found: Sequence[Sequence[bool]]
    ) -> list[bool]:
        """Which of these keys are there for the request.

        :param found: for each store, all of which must have a key, what its lookup returned.
        """
        there = [all(its) for its in zip(*found, strict=True)]
        front = self._front(request, asked, there, found)
        if front is None:
            self._computed(request, 1.0)
            return there
        ahead_s, spared_s = self._ahead(request.req_id)
        self._each_s = _each_seconds(front, alone=ahead_s == 0.0) or self._each_s
        state = _Chosen(front, ahead_s, self._step, self._each_s)
        front = replace(front, waiting=self._choice.waiting(self._known(request.req_id)))
        delays = self._choice.delays(front, state.own_s, self._computes)
        weighed: Weighed = request.get_state(Weighed) or Weighed()
        request.set_state(weighed)
        more: dict[str, Any] = {"spared_s": spared_s, "delays": delays, "weighed": weighed}
        behind = replace(front, load_seconds=state.seconds, **more)
        count, chosen = len(front.ends), self._choice.blocks(behind)
        left = front.total - (front.ends[chosen - 1] if chosen else front.first)
        self._computed(request, left / (front.total - front.first))
        request.set_state(state)
        self._chosen[request.req_id] = self._load(request.req_id, front, chosen)
        return there[:chosen] + [False] * (count - chosen) + there[count:]

    def expected(self, request: Any, count: int) -> float | None:
        """Seconds that loads of this number of the request's blocks should take."""
        chosen = self._of_this_step(request)
        return None if chosen is None else chosen.seconds(count)

    def waits(self, request: Any) -> None:
        """What was chosen for a request in the last step is still ahead of others."""
        if (load := self._before.pop(request.req_id, None)) is not None:
            self._chosen[request.req_id] = load

    def step(self) -> None:
        """The engine has scheduled a step, and begun what was chosen."""
        self._before, self._chosen = self._chosen, {}
        self._step += 1
        self._choice.step()
        self._steps.append(time.monotonic())

    def begin(self, request: Any, count: int, job: int | None = None) -> None:
        """Loads of this number of a request's blocks begin.

        :param job: its number where a request may have several; else it is named by its request.
        """
        self._chosen.pop(request.req_id, None)
        chosen = self._of_this_step(request)
        load = self._load(request.req_id, None if chosen is None else chosen.front, count)
        expected = self.expected(request, count)
        name = request.req_id if job is None else job
        self._begun[name] = replace(load, begun=time.monotonic(), expected=expected)

    def end(self, name: str | int, *, whole: bool, seconds: float | None = None) -> None:
        """Loads of this request or job have ended. The time of those that failed is not a drive's.

        :param seconds: what they took; by default it is what the engine's steps allow.
        """
        self._ended = time.monotonic()
        load = self._begun.pop(name, None)
        if load is not None and load.expected is not None and whole:
            # Between the last look and now: the engine looks for ends once a step, and what is
            # possible is no error of the expected time.
            least, most = (self._steps or [0.0])[0] - load.begun, self._ended - load.begun
            possible = min(max(load.expected, least), most)
            self._choice.loaded(load.expected, possible if seconds is None else seconds)

    def expects(self, name: str | int) -> float | None:
        """Seconds that loads of this request or job should take, which have begun."""
        load = self._begun.get(name)
        return None if load is None else load.expected

    def forget(self) -> None:
        """The engine passes no end of what is on its way."""
        self._begun.clear()
        self._chosen.clear()
        self._before.clear()

    @property
    def declined(self) -> dict[str, int]:
        """Prompts, and blocks of them, that are computed although they are there."""
        choice = self._choice
        return {
            "declined_prompts": choice.declined_prompts,
            "declined_blocks": choice.declined_blocks,
        }

    def status(self) -> dict[str, object]:
        """For the engine's reports."""
        return self._choice.status()

    def _of_this_step(self, request: Any) -> _Chosen | None:
        """None also where all blocks of a request were answered for another one of the step."""
        chosen: _Chosen | None = request.get_state(_Chosen)
        return chosen if chosen is not None and chosen.step == self._step else None

    def _ahead(self, request: str) -> tuple[float, float]:
        """Seconds of loads for other requests, and of computing the same at today's speed, which
        may not have been known when they began. They come one after the other, so some of the
        oldest one is over."""
        listed = (*self._begun.values(), *self._chosen.values())
        others = [it for it in listed if it.request != request]
        load_s, spared_s = sum(it.own_s for it in others), sum(map(self._spared_s, others))
        if others and (oldest := others[0]).begun:
            over_s = time.monotonic() - max(oldest.begun, self._ended)
            over = min(over_s / oldest.own_s, 1.0) if oldest.own_s else 1.0
            load_s -= over * oldest.own_s
            spared_s -= over * self._spared_s(oldest)
        return load_s, spared_s

    def _known(self, request: str) -> set[str]:
        """Requests that wait for loads, and this one."""
        loading = (*self._begun.values(), *self._chosen.values())
        return {request, *(it.request for it in loading)}

    def _computed(self, request: Any, part: float) -> None:
        """This part of what a request has to have is computed. One that waits for pages of the GPU
        is asked for again."""
        if request.get_state(_Counted) is None:
            request.set_state(_Counted())
            self._computes += (part - self._computes) / LATELY

    def _load(self, request: str, front: Front | None, count: int) -> _Load:
        if front is None:
            return _Load(request, None)
        # Of more blocks than these another request of the step was asked for, and has counted them.
        count = min(count, len(front.ends))
        own_s = _Chosen(front, 0.0, self._step, self._each_s).own_s(count)
        return _Load(request, front, count, own_s)

    def _spared_s(self, load: _Load) -> float:
        front = load.front
        return 0.0 if front is None else self._choice.spared_seconds(front, load.count)

    def _front(
        self,
        request: Any,
        asked: Sequence[bytes],
        there: Sequence[bool],
        found: Sequence[Sequence[bool]],
    ) -> Front | None:
        """The blocks that are there from the first key on. None where groups of layers have blocks
        of their own: what one loads is of no use without the others."""
        positions = getattr(request, "_offload_key_positions", {})
        if not positions or not there or not there[0] or len(Prompt.of(request).groups) != 1:
            return None
        ends: list[int] = []
        chunk = next(iter(positions.values()))
        for key, is_there in zip(asked, there, strict=True):
            end = positions.get(key, 0)
            if not is_there or (ends and end <= ends[-1]):
                break
            ends.append(end)

        def load_seconds(count: int) -> float | None:
            # Stores of several ranks share their drives.
            times = [_seconds(its, count) for its in found]
            return None if None in times else sum(filter(None, times))

        return Front(ends[0] - chunk, ends, max(positions.values()), load_seconds)


def _own_seconds(front: Front, count: int, each_s: float | None) -> float | None:
    """Seconds of loads of this number of blocks, without what is ahead of the first, where they are
    known."""
    first, all_of_them = front.load_seconds(1), front.load_seconds(count)
    if not count or first is None or all_of_them is None:
        return 0.0
    if count == 1:
        return None if each_s is None else min(first, each_s)
    return min((all_of_them - first) * count / (count - 1), all_of_them)


def _each_seconds(front: Front, *, alone: bool) -> float | None:
    """Seconds of each block of a front: those of one block alone have what is ahead of it."""
    count = len(front.ends)
    first, all_of_them = front.load_seconds(1), front.load_seconds(count)
    if first is None or all_of_them is None:
        return None
    if count > 1:
        return (all_of_them - first) / (count - 1)
    return first if alone else None


def _seconds(found: Sequence[bool], count: int) -> float | None:
    return found.load_seconds_of(count) if isinstance(found, kvrail.Found) else None
