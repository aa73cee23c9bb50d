"""An arm of `bench/model` whose engine only remembers prompts: model_arm.py OPTIONS PIPE.

Engines over one store find each other's prompts while its sidecar runs. `asked` beside the results
has a line for each prompt: the arm, the start, its tokens, and how many were found; `children` has
the processes that arms have started. MODEL_ARM_FAILS is `ARM:PHASE`, which raises; hits of
MODEL_ARM_WRONG have another last bit.
"""

import itertools
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Container, Iterator
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "model"))

import arm
from asked import Answer
from processes import is_sidecar

os.sync = lambda: None
COMPUTED_S, FOUND_S, CHUNK = 0.02, 0.01, 64


def keys(ids: list[int]) -> list[str]:
    """Of each whole chunk, with all that is before it."""
    key, made = 0, []
    for at in range(CHUNK, len(ids) + 1, CHUNK):
        key = zlib.crc32(repr(ids[at - CHUNK : at]).encode(), key)
        made.append(str(key))
    return made


def leading(wanted: list[str], kept: Container[str]) -> int:
    return len(list(itertools.takewhile(kept.__contains__, wanted)))


class Decoding:
    def between_s(self, tokens: int = 0, beside: list[int] | None = None) -> list[float]:
        return [0.005] * (tokens or 20)

    def end(self) -> None:
        pass


class Playing:
    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self.ttft_s: dict[str, float] = {}
        self.cached_tokens = self.made_tokens = 0

    def play(self, requests: list[tuple[float, list[int], int]]) -> float:
        for number, (_, ids, makes) in enumerate(requests):
            answer = self._engine.answer(ids, makes)
            self.ttft_s[str(number)] = answer.ttft_s
            self.cached_tokens += answer.cached_tokens
            self.made_tokens += len(answer.tokens)
        return sum(self.ttft_s.values())


class Engine:
    """It is its own place, too."""

    def __init__(self, options: SimpleNamespace) -> None:
        self.place, self._options = self, options
        self._results = Path(options.out).parent
        self._pid_file = Path(options.pid_file) if options.pid_file else None
        store = self._pid_file.parent.name if self._pid_file else options.arm
        self._below = self._results / f"{store}.below"
        self._cache: set[str] = set()
        # As the process that a served engine has.
        child = subprocess.Popen(["sleep", "300"])
        with (self._results / "children").open("a") as lines:
            lines.write(f"{child.pid}\n")

    def _kept(self) -> set[str]:
        """What is below the cache."""
        if self._pid_file:
            pid = int(self._pid_file.read_text())
            if not is_sidecar(pid, self._pid_file.parent):
                return set()
        return set(self._below.read_text().split()) if self._below.exists() else set()

    def answer(self, ids: list[int], tokens: int = 1) -> Answer:
        options, wanted = self._options, keys(ids)
        in_cache, below = leading(wanted, self._cache), leading(wanted, self._kept())
        self._cache.update(wanted)
        if options.arm != "recompute":
            with self._below.open("a") as kept:
                kept.writelines(f"{key}\n" for key in wanted[max(in_cache, below) :])
        found = "-" if not (in_cache or below) else "cache" if in_cache >= below else "below"
        with (self._results / "asked").open("a") as lines:
            lines.write(f"{options.arm} {options.start} {len(ids)} {found}\n")
        draw = random.Random(zlib.crc32(repr(ids).encode()))
        made, bits = zip(*((draw.randrange(9), draw.random()) for _ in range(tokens)), strict=True)
        if found == "below" and os.environ.get("MODEL_ARM_WRONG") == options.arm:
            bits = tuple(bit + 2**-40 for bit in bits)
        cached = max(in_cache, below)
        ttft_s = FOUND_S if cached == len(wanted) else COMPUTED_S
        return Answer(list(made), list(bits), cached * CHUNK, ttft_s, ttft_s)

    def answers(self, prompts: list[list[int]], tokens: int = 1) -> list[Answer]:
        return [self.answer(ids, tokens) for ids in prompts]

    def settle(self, seconds: float) -> bool:
        return True

    def turn(self, seconds: float) -> None:
        pass

    def forget(self) -> None:
        self._cache.clear()

    def clear(self) -> None:
        if self._options.arm == "fs":
            self._below.unlink(missing_ok=True)

    def gpu(self) -> str:
        return "no GPU"

    def playing(self) -> Playing:
        return Playing(self)

    def decoding(self, prompts: list[list[int]], tokens: int) -> Decoding:
        return Decoding()


class Arm(arm.Arm):
    def begin(self, phase: str, lengths: list[int]) -> Iterator[None]:
        if os.environ.get("MODEL_ARM_FAILS") == f"{self.options.arm}:{phase}":
            raise ValueError("as it should")
        return super().begin(phase, lengths)


if __name__ == "__main__":
    arm.engine_of, arm.Arm = Engine, Arm
    arm.main()
