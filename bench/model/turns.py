"""Arms that take turns: each is a process that goes on when it is asked to.

An arm gets a line for each request, `begin PHASE LENGTHS` or `go on`, and answers `turn` where the
others may go on, `done`, or `failed`. So no two arms work at a time, and a median over turns is of
all arms in the same minutes.
"""

import os
import select
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from processes import end_all

TURN_S = 200.0
"""The longest that an arm may take for a turn, in seconds."""

LOOK_S = 0.5
"""An arm that waits is looked at this often: whether it still runs, in seconds."""

Begin = Callable[[str, list[int]], Iterator[None]]
"""Begins a phase with prompts of these lengths; what it returns ends a turn at each step."""


def take_part(begin: Begin, replies: IO[str], requests: Iterable[str] = sys.stdin) -> None:
    """An arm's side, until there are no more requests. A phase that fails is over, the arm is
    not."""
    phase: Iterator[None] = iter(())
    print("turn", file=replies, flush=True)
    for request in requests:
        word, *rest = request.split()
        try:
            if word == "begin":
                phase = begin(rest[0], [int(length) for length in rest[1].split(",")])
            reply = "turn" if next(phase, "over") is None else "done"
        except Exception:
            traceback.print_exc()
            reply = "failed"
        print(reply, file=replies, flush=True)


class Arm:
    """An arm, seen by those that ask it. It has a number of a pipe for its answers as its last
    argument."""

    def __init__(self, name: str, words: list[str], log: Path) -> None:
        self.name, self.alive = name, True
        ours, theirs = os.pipe()
        with open(log, "ab") as lines:
            self._process = subprocess.Popen(
                [*words, str(theirs)],
                stdin=subprocess.PIPE,
                stdout=lines,
                stderr=lines,
                text=True,
                pass_fds=(theirs,),
                start_new_session=True,
            )
        os.close(theirs)
        self._replies = os.fdopen(ours)

    def is_ready(self, until: float) -> bool:
        """Whether the arm has started; `until` in seconds of the monotonic clock."""
        return self._hears(until) == "turn"

    def goes_on(self, request: str, until: float) -> str:
        """Its answer to this request: `turn`, `done`, or `failed`, as of an arm that dies or is
        late; `over` where it cannot begin, or the whole time ends."""
        if not self.alive or time.monotonic() >= until:
            return "over"
        try:
            print(request, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            pass
        reply = self._hears(min(until, time.monotonic() + TURN_S))
        if reply == "failed":
            print(f"{self.name}: failed; its log has the reason", flush=True)
        if reply:
            return reply
        return "failed" if time.monotonic() < until else "over"

    def end(self) -> None:
        """With all processes that it has started."""
        self.alive = False
        end_all(self._process)

    def _hears(self, until: float) -> str:
        """Its next answer; an arm that has none is ended."""
        ready, ended, left_s = False, False, LOOK_S
        while not ready and not ended and left_s > 0:
            # Its engine's process may outlive it and keep the pipe open.
            ended = self._process.poll() is not None
            left_s = 0.0 if ended else max(until - time.monotonic(), 0.0)
            ready = bool(select.select([self._replies], [], [], min(left_s, LOOK_S))[0])
        line = self._replies.readline() if ready else ""
        if not line:
            print(f"{self.name}: ended, or late; its log has the reason", flush=True)
            self.end()
        return line.strip()


def take_turns(
    arms: list[Arm], request: str, until: float, between: Callable[[], None] = lambda: None
) -> list[str]:
    """All arms begin, and then go on one after the other until none has more to do. The names of
    those that fail."""
    running, failed = [(arm, request) for arm in arms], list[str]()
    while running:
        between()
        replies = [(arm, arm.goes_on(word, until)) for arm, word in running]
        failed += [arm.name for arm, reply in replies if reply == "failed"]
        running = [(arm, "go on") for arm, reply in replies if reply == "turn"]
    return failed
