"""One arm in one process, which takes turns with others: see turns.py. Its arguments come from
run.py: options as JSON, and a pipe for answers. Phases, with prompts of some lengths:

ttft       computing, a hit in the GPU's cache, and hits after the caches of GPU and CPU are empty
stored     prompts of users, which are stored
again      these users come back, once each: after a restart the first requests of an engine
shared     prompts that the first arm computes, and another engine over the same store is asked for
interfere  a hit in the GPU's cache right behind a long prompt that is stored; seconds from token to
           token of others alone, while a prompt is loaded, and while one is stored
flip       bytes change on the drive: no token may change
kill       the sidecar dies with requests in flight, and comes back
lost       the sidecar dies while it loads one prompt, and comes back
returning  users whose prompts were stored come back, some at once; the caches of GPU and CPU have
           no room for all
mixed      requests of a trace at their times, until all are answered
"""

import contextlib
import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from arms import ALONE, ARMS, COMPUTES
from asked import Answer, prompt
from engines import engine_of
from mixed import lines
from processes import Used, drives_read, family, used_by_sidecar
from turns import take_part

TAIL, DECODE = 5, 24
"""Tokens of a prompt behind its last whole page, which are always computed, and those to make."""

STORED_AT_ONCE, TTFTS = 4, 4
"""Prompts of users that are computed without a pause, and the fewest times to a first token that
make a row."""

LOSSES = 2
"""Sidecars that die in a load of each length."""

UNSEEN = 2
"""Hits before those that count, where they come out of the sidecar's memory tier: it takes a block
at its second get."""

STREAMS, TOKENS, STREAM = 4, 150, 3000
"""Requests that decode beside others, the tokens that are looked at before and behind these, and
the most that each makes."""


class Arm:
    """The engine with a way to keep blocks, and what was seen."""

    def __init__(self, options: SimpleNamespace) -> None:
        self.options, self._began = options, time.monotonic()
        self.engine = engine_of(options)
        self.keeps = options.arm not in COMPUTES
        # Prompts that no other arm over the same store has put.
        self.own = 1_000_000 * (1 + list(ARMS).index(options.arm))
        self._out = Path(options.out)
        before = json.loads(self._out.read_text()) if self._out.exists() else {}
        self.seen: dict[str, Any] = before | {
            "arm": options.arm,
            "shape": Path(options.shape).name,
            "chunk_tokens": options.chunk_tokens,
            "gpu": self.engine.gpu(),
            "ranks": options.ranks,
            "kv_cache_dtype": options.kv_cache_dtype,
            "served": options.served,
            "batch_invariant": os.environ.get("VLLM_BATCH_INVARIANT", "0"),
        }

    def note(self, phase: str, row: Any) -> None:
        """Keeps what a phase saw, at once: a run may be cut short."""
        self.seen[phase] = row
        part = self._out.with_suffix(".part")
        part.write_text(json.dumps(self.seen, indent=1))
        part.replace(self._out)
        print(f"[{self.options.arm} {time.monotonic() - self._began:6.1f} s] {phase}", flush=True)

    def settle(self, seconds: float = 20.0) -> None:
        """Until nothing more is stored, or these seconds are over, which is noted."""
        if not self.engine.settle(seconds):
            print(f"not settled after {seconds:.0f} s", flush=True)
            self.seen["unsettled"] = self.seen.get("unsettled", 0) + 1

    def begin(self, phase: str, lengths: list[int]) -> Iterator[None]:
        """The turns of a phase; none of one that this arm does not have."""
        if phase == "flip" and not (self.options.members or self.options.arm == "fs"):
            return iter(())
        if phase in ("kill", "lost") and not self.options.pid_file:
            return iter(())
        turns: Iterator[None] = getattr(self, phase)(lengths)
        return turns

    def warm_up(self, lengths: list[int]) -> Iterator[None]:
        """Kernels of all shapes, and one way through the store. Computed anew at each start; an arm
        that chooses learns here how fast it computes."""
        ids: list[int] = []
        for tokens in lengths:
            seed = 7 * tokens + self.options.start + self.own * (self.options.arm in ALONE)
            ids = prompt(seed, tokens + TAIL)
            self.engine.answer(ids, 4), self.engine.answer(ids, 4)
        if self.keeps:
            self.engine.settle(5)
            self.engine.forget()
            self.engine.answer(ids, 4)
        self.engine.forget()
        yield

    def ttft(self, lengths: list[int]) -> Iterator[None]:
        rows: dict[str, Any] = {}
        for length in lengths:
            ids = prompt(length, length + TAIL)
            cold = self.engine.answer(ids, DECODE)
            in_gpu = self.engine.answer(ids, DECODE)
            row: dict[str, Any] = {"gpu": in_gpu.beside(cold), "hits": [], "cold_s": []}
            row["first_cached_tokens"] = cold.cached_tokens  # another arm over the store was first
            rows[str(length)] = row | {"tokens": in_gpu.tokens, "logprobs": in_gpu.logprobs}
            if self.keeps:
                self.settle()
            for _ in range(UNSEEN * (self.options.tier_gib > 0)):
                self.engine.forget()
                self.engine.answer(ids)
                self.settle()
            yield
            for turn in range(self.options.turns):
                self.engine.forget()
                if self.keeps:
                    row["hits"].append(self._hit(ids, in_gpu))
                else:
                    other = prompt(length * 1000 + turn, length + TAIL)
                    row["cold_s"].append(self.engine.answer(other, DECODE).ttft_s)
                self.note("ttft", rows)
                yield

    def _hit(self, ids: list[int], other: Answer) -> dict[str, Any]:
        """A request, beside the answer that it should have, and what drives read for it."""
        answer, read = self._reading(ids)
        return answer.beside(other) | {"drive_bytes": read}

    def _reading(self, ids: list[int]) -> tuple[Answer, int | None]:
        drives = [Path(folder) for folder in self.options.drives]
        before = drives_read(drives)
        answer = self.engine.answer(ids, DECODE)
        now = drives_read(drives)
        return answer, None if before is None or now is None else now - before

    def _first(self, ids: list[int]) -> dict[str, Any]:
        """A first request for a prompt, with all that is compared between arms."""
        before = self._used()
        answer, read = self._reading(ids)
        return {
            "tokens": answer.tokens,
            "logprobs": answer.logprobs,
            "cached_tokens": answer.cached_tokens,
            "ttft_s": answer.ttft_s,
            "drive_bytes": read,
            "read_bytes": self._since(before)["read_bytes"],
        }

    def stored(self, lengths: list[int]) -> Iterator[None]:
        self.engine.place.clear()
        for length in lengths:
            for user in range(self.options.turns):
                self.engine.answer(of_user(600_000, length, user))
                self.settle()
                yield

    def again(self, lengths: list[int]) -> Iterator[None]:
        rows: dict[str, Any] = {}
        for length in lengths:
            row = rows.setdefault(str(length), [])
            for user in range(self.options.turns):
                self.engine.forget()
                row.append(self._first(of_user(600_000, length, user)))
                self.note("again", rows)
                self.settle()  # one that was not found is stored before the next arm's turn
                yield

    def shared(self, lengths: list[int]) -> Iterator[None]:
        rows: dict[str, Any] = {}
        for length in lengths:
            row = rows.setdefault(str(length), [])
            for turn in range(self.options.turns):
                row.append(self._first(of_user(650_000, length, turn)))
                self.note("shared", rows)
                self.settle()
                yield

    def interfere(self, lengths: list[int]) -> Iterator[None]:
        """The longest alone."""
        length, rows = max(lengths), []
        for turn in range(self.options.turns):
            self.engine.place.clear()
            ids = prompt(self.own + 777_000 + turn, length + TAIL)
            stored = self.engine.answer(ids)
            at_once = self.engine.answer(ids)
            self.settle()
            self.engine.forget()
            streams = [prompt(self.own + 31_000 + number, 500) for number in range(STREAMS)]
            decoding = self.engine.decoding(streams, STREAM)
            row: dict[str, Any] = {"stored_s": stored.ttft_s, "gpu_hit_s": at_once.ttft_s}
            row["alone_s"] = decoding.between_s(TOKENS)
            row["loading_s"] = decoding.between_s(beside=ids)
            decoding.between_s(TOKENS // 3)
            other = prompt(self.own + 778_000 + turn, length + TAIL)
            row["computing_s"] = decoding.between_s(beside=other)
            row["storing_s"] = decoding.between_s(TOKENS)
            decoding.end()
            self.settle()
            rows.append(row)
            self.note("interfere", rows)
            yield

    def flip(self, lengths: list[int]) -> Iterator[None]:
        """The first length alone."""
        ids = prompt(lengths[0], lengths[0] + TAIL)
        self.engine.forget()
        self.engine.answer(ids)
        in_gpu = self.engine.answer(ids, DECODE)
        self.settle()
        flipped = flip_files(self.options.files) if self.options.arm == "fs" else sum(
            flip_member(Path(member)) for member in self.options.members
        )
        self.engine.forget()
        damaged = self._hit(ids, in_gpu)
        self.settle()
        self.engine.forget()
        anew = self._hit(ids, in_gpu)
        self.note("flip", {"flipped": flipped, "damaged": damaged, "anew": anew})
        yield

    def kill(self, lengths: list[int]) -> Iterator[None]:
        """The first length alone."""
        seeds = range(self.own + 555_000, self.own + 555_006)
        prompts = [prompt(seed, lengths[0] + TAIL) for seed in seeds]
        self.engine.forget()
        cold = [self.engine.answer(ids, DECODE) for ids in prompts]
        in_gpu = [self.engine.answer(ids, DECODE) for ids in prompts]
        self.settle(30)
        self.engine.forget()
        hits = self.engine.answers(prompts, DECODE)
        self.engine.forget()
        timer = self._kill_in(hits[0].wall_s / 4)
        killed = self.engine.answers(prompts, DECODE)
        timer.join()
        self.engine.forget()
        down = self.engine.answer(prompts[0], DECODE)
        back_s = self._hits_again_s(prompts[1])
        self.engine.forget()
        after = [self.engine.answer(ids, DECODE) for ids in prompts]
        self.note("kill", {
            "wall_s": {"hits": hits[0].wall_s, "killed": killed[0].wall_s},
            "killed": besides(killed, in_gpu),
            "down": down.beside(cold[0]),
            "back_s": back_s,
            "after": besides(after, in_gpu),
        })  # fmt: skip
        yield

    def lost(self, lengths: list[int]) -> Iterator[None]:
        rows: dict[str, Any] = {}
        for length in lengths:
            ids = prompt(self.own + 660_000 + length, length + TAIL)
            cold = self.engine.answer(ids, DECODE)
            in_gpu = self.engine.answer(ids, DECODE)
            self.settle()
            self.engine.forget()
            hit = self.engine.answer(ids, DECODE)
            row = {"cold_s": cold.ttft_s, "hit": hit.beside(in_gpu), "losses": list[Any]()}
            rows[str(length)] = row
            for _ in range(LOSSES):
                self.engine.forget()
                timer = self._kill_in(hit.ttft_s / 3)
                killed = self.engine.answer(ids, DECODE)
                timer.join()
                self.engine.forget()
                down = self.engine.answer(ids, DECODE)
                back_s = self._hits_again_s(ids)
                self.settle()
                self.engine.forget()
                after = self.engine.answer(ids, DECODE)
                named = {"killed": killed, "down": down, "after": after}
                loss = {name: answer.beside(in_gpu) for name, answer in named.items()}
                row["losses"].append(loss | {"back_s": back_s})
                self.note("lost", rows)
                yield

    def _kill_in(self, seconds: float) -> threading.Timer:
        pid = int(Path(self.options.pid_file).read_text())
        timer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
        timer.start()
        return timer

    def returning(self, lengths: list[int]) -> Iterator[None]:
        """Each user has a prompt of the longest length, and some tokens more each time."""
        length = max(lengths)
        counts = [int(word) for word in self.options.users.split(",")]
        prompts = [prompt(900_000 + user, length) for user in range(max(counts))]
        before, began = self._used(), time.monotonic()
        # A store that has begun keeps its pages: groups leave it time.
        for first in range(0, len(prompts) if self.keeps else 0, STORED_AT_ONCE):
            self.engine.answers(prompts[first : first + STORED_AT_ONCE])
            self.settle()
        stored = {"seconds": time.monotonic() - began, **self._since(before)}
        yield
        seen: list[dict[str, Any]] = []
        for count in counts:
            turns = max(1, math.ceil(TTFTS / count))
            row = {"users": count, "ttft_s": [], "cached_tokens": 0, "wall_s": 0.0}
            for turn in range(turns):
                self.engine.forget()
                some = [prompts[(turn * count + at) % len(prompts)] for at in range(count)]
                asked = [ids + prompt(turn * 100 + at, TAIL) for at, ids in enumerate(some)]
                before = self._used()
                answers = self.engine.answers(asked, DECODE)
                used = self._since(before)
                row["ttft_s"] += [answer.ttft_s for answer in answers]
                row["cached_tokens"] += sum(answer.cached_tokens for answer in answers)
                row["wall_s"] += answers[0].wall_s
                row |= {name: row.get(name, 0) + it for name, it in used.items()}
                if turn + 1 < turns:
                    yield
            seen.append(row | {"tokens": len(row["ttft_s"]) * length})
            self.note("returning", {"stored": stored, "seen": seen})
            yield

    def mixed(self, lengths: list[int]) -> Iterator[None]:
        """Prompts of at most the longest length."""
        self.engine.place.clear()
        self.engine.forget()
        requests, length, block = [], max(lengths), self.options.block_tokens
        for number, line in enumerate(lines(self.options, length)):
            ids = [token for it in line.blocks for token in prompt(5_000_000 + it, block)]
            requests.append((line.at_s, ids + prompt(number, TAIL), line.makes))
        before, playing = self._used(), self.engine.playing()
        wall_s = playing.play(requests)
        self.note("mixed", self._since(before) | {
            "wall_s": wall_s,
            "last_s": requests[-1][0],
            "tokens": sum(len(ids) for _, ids, _ in requests),
            "ttft_s": list(playing.ttft_s.values()),
            "cached_tokens": playing.cached_tokens,
            "made_tokens": playing.made_tokens,
        })  # fmt: skip
        self.settle()
        yield

    def _used(self) -> tuple[Used, Used]:
        """What the engine and the sidecar have used."""
        pid_file = self.options.pid_file
        side = used_by_sidecar(Path(pid_file)) if pid_file else Used()
        return Used.by(os.getpid()), side

    def _since(self, before: tuple[Used, Used]) -> dict[str, float]:
        engine, side = (now.since(then) for now, then in zip(self._used(), before, strict=True))
        return {
            "engine_cpu_s": engine.cpu_s,
            "sidecar_cpu_s": side.cpu_s,
            "read_bytes": engine.read_bytes + side.read_bytes,
            "written_bytes": engine.written_bytes + side.written_bytes,
        }

    def _hits_again_s(self, ids: list[int]) -> float | None:
        """Starts the sidecar again."""
        subprocess.run(self.options.serve, shell=True, start_new_session=True, check=True)
        began = time.monotonic()
        while time.monotonic() - began < 30:
            self.engine.turn(0.2)
            self.engine.forget()
            if self.engine.answer(ids).cached_tokens:
                return time.monotonic() - began
        return None


def of_user(base: int, length: int, number: int) -> list[int]:
    """A prompt that does not begin with one of another length."""
    return prompt(base + 100 * length + number, length + TAIL)


def besides(answers: list[Answer], others: list[Answer]) -> list[dict[str, Any]]:
    return [answer.beside(other) for answer, other in zip(answers, others, strict=True)]


def flip_files(folder: str) -> int:
    """Changes 64 bytes in the middle of each file."""
    paths = [Path(at) / name for at, _, names in os.walk(folder) for name in names]
    for path in paths:
        with open(path, "r+b") as file:
            middle = path.stat().st_size // 2
            file.seek(middle)
            was = file.read(64)
            file.seek(middle)
            file.write(bytes(byte ^ 0x55 for byte in was))
    os.sync()
    return len(paths)


def flip_member(member: Path) -> int:
    """Changes a byte of each MiB that is not zero there, behind the store's head."""
    fd, flipped = os.open(member, os.O_RDWR), 0
    for at in range((64 << 20) + 12_345, os.lseek(fd, 0, os.SEEK_END), 1 << 20):
        was = os.pread(fd, 1, at)
        if was != b"\0":
            flipped += os.pwrite(fd, bytes([was[0] ^ 0x55]), at)
    os.fsync(fd)
    os.close(fd)
    return flipped


def main() -> None:
    logging.basicConfig()
    logging.getLogger("kvrail").setLevel(logging.INFO)  # what is declined
    options = SimpleNamespace(**json.loads(sys.argv[1]))
    arm = Arm(options)
    if options.arm not in ALONE:
        for _ in arm.warm_up(options.warms_up):
            pass
    # A run.py that was killed in this arm's turn reads no answer any more.
    with contextlib.suppress(BrokenPipeError), os.fdopen(int(sys.argv[2]), "w") as replies:
        take_part(arm.begin, replies)
    # The engine's threads and processes may outlive a sidecar that was killed.
    for pid in list(family(os.getpid()))[1:]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()
