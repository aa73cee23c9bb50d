"""An arm of `bench/model` whose engine only remembers prompts: model_arm.py OPTIONS PIPE.

Engines over one store find each other's prompts while its sidecar runs. `asked` beside the results
has a line for each prompt: the arm, the start, its tokens, and how many were found. MODEL_ARM_FAILS
is `ARM:PHASE`, which raises; hits of MODEL_ARM_WRONG have another last bit.
"""

import os
import random
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "model"))

import arm
from asked import Answer
from processes import is_sidecar

os.sync = lambda: None
COMPUTED_S, FOUND_S, CHUNK = 0.02, 0.01, 64


def prompt_key(ids: list[int]) -> int:
    return zlib.crc32(repr(ids).encode())


class Decoding:
    def between_s(self, tokens: int = 0, beside: list[int] | None = None) -> list[float]:
        return [0.005] * (tokens or 20)

    def end(self) -> None:
        pass


class Engine:
    """It is its own place, too."""

    def __init__(self, options: SimpleNamespace) -> None:
        self.place, self._options = self, options
        self._results = Path(options.out).parent
        self._pid_file = Path(options.pid_file) if options.pid_file else None
        store = self._pid_file.parent.name if self._pid_file else options.arm
        self._below = self._results / f"{store}.below"
        self._cache: set[str] = set()

    def _found(self, key: str) -> str:
        if key in self._cache:
            return "cache"
        if self._pid_file:
            pid = int(self._pid_file.read_text())
            if not is_sidecar(pid, self._pid_file.parent):
                return ""
        kept = self._below.read_text().splitlines() if self._below.exists() else []
        return "below" if key in kept else ""

    def answer(self, ids: list[int], tokens: int = 1) -> Answer:
        key, options = str(prompt_key(ids[: len(ids) // CHUNK * CHUNK])), self._options
        found = self._found(key)
        self._cache.add(key)
        if not found and options.arm != "recompute":
            with self._below.open("a") as kept:
                kept.write(f"{key}\n")
        with (self._results / "asked").open("a") as lines:
            lines.write(f"{options.arm} {options.start} {len(ids)} {found or '-'}\n")
        draw = random.Random(prompt_key(ids))
        made, bits = zip(*((draw.randrange(9), draw.random()) for _ in range(tokens)), strict=True)
        if found == "below" and os.environ.get("MODEL_ARM_WRONG") == options.arm:
            bits = tuple(bit + 2**-40 for bit in bits)
        cached = len(ids) - arm.TAIL if found else 0
        ttft_s = FOUND_S if found else COMPUTED_S
        return Answer(list(made), list(bits), cached, ttft_s, ttft_s)

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
