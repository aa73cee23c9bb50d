"""One arm in one process, which takes turns with others: see turns.py. Phases, with prompts of some
lengths:

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
"""

import argparse
import json
import logging
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arms import ARMS, COMPUTES
from asked import Answer, prompt
from engines import engine_of
from processes import Used, drives_read, family
from turns import take_part

TAIL = 5
"""Tokens of a prompt behind its last whole page, which are always computed."""

STORED_AT_ONCE, TTFTS = 4, 4
"""Prompts of users that are computed without a pause, and the fewest times to a first token that
make a row."""

LOSSES = 2
"""Sidecars that die in a load of each length."""

WARMS_UP, UNSEEN = 16_384, 2
"""Tokens of the longest prompt before the first phase; hits before those that count, where they
come out of the sidecar's memory tier: it takes a block at its second get."""

STREAMS, TOKENS, STREAM = 4, 150, 3000
"""Requests that decode beside others, the tokens that are looked at before and behind these, and
the most that each makes."""


class Arm:
    """The engine with a way to keep blocks, and what was seen."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self._began = options, time.monotonic()
        self.engine = engine_of(options)
        self.keeps = options.arm not in COMPUTES
        before = json.loads(options.out.read_text()) if options.out.exists() else {}
        self.seen: dict[str, Any] = before | {
            "arm": options.arm,
            "shape": options.shape.name,
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
        self.options.out.write_text(json.dumps(self.seen, indent=1))
        print(f"[{self.options.arm} {time.monotonic() - self._began:6.1f} s] {phase}", flush=True)

    def begin(self, phase: str, lengths: list[int]) -> Iterator[None]:
        """The turns of a phase; none of one that this arm does not have."""
        if phase == "flip" and not (self.options.members or self.options.arm == "fs"):
            return iter(())
        if phase in ("kill", "lost") and not self.options.pid_file:
            return iter(())
        turns: Iterator[None] = getattr(self, phase)(lengths)
        return turns

    def warm_up(self) -> None:
        """Kernels of all shapes, and one way through the store."""
        ids: list[int] = []
        for tokens in (600, min(self.options.longest, WARMS_UP)):
            ids = prompt(7 * tokens + 1, tokens + TAIL)
            self.engine.answer(ids, 4), self.engine.answer(ids, 4)
        if self.keeps:
            self.engine.settle(5)
            self.engine.forget()
            self.engine.answer(ids, 4)
        self.engine.forget()

    def ttft(self, lengths: list[int]) -> Iterator[None]:
        rows: dict[str, Any] = {}
        for length in lengths:
            ids, rest = prompt(length, length + TAIL), self.options.decode
            cold = self.engine.answer(ids, rest)
            in_gpu = self.engine.answer(ids, rest)
            row: dict[str, Any] = {"gpu": in_gpu.beside(cold), "hits": [], "cold_s": []}
            rows[str(length)] = row | {"tokens": in_gpu.tokens, "logprobs": in_gpu.logprobs}
            if self.keeps:
                self.engine.settle()
            for _ in range(UNSEEN * (self.options.tier_gib > 0)):
                self.engine.forget()
                self.engine.answer(ids)
                self.engine.settle()
            yield
            for turn in range(self.options.turns):
                self.engine.forget()
                if self.keeps:
                    row["hits"].append(self._hit(ids, in_gpu))
                else:
                    other = prompt(length * 1000 + turn, length + TAIL)
                    row["cold_s"].append(self.engine.answer(other, rest).ttft_s)
                self.note("ttft", rows)
                yield

    def _hit(self, ids: list[int], other: Answer) -> dict[str, Any]:
        """A request, beside the answer that it should have, and what drives read for it."""
        answer, read = self._reading(ids)
        return answer.beside(other) | {"drive_bytes": read}

    def _reading(self, ids: list[int]) -> tuple[Answer, int | None]:
        drives = [Path(word) for word in self.options.drives.split(":")]
        before = drives_read(drives)
        answer = self.engine.answer(ids, self.options.decode)
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
                self.engine.answer(prompt(600_000 + user, length + TAIL))
                self.engine.settle()
                yield

    def again(self, lengths: list[int]) -> Iterator[None]:
        rows: dict[str, Any] = {}
        for length in lengths:
            row = rows.setdefault(str(length), [])
            for user in range(self.options.turns):
                self.engine.forget()
                row.append(self._first(prompt(600_000 + user, length + TAIL)))
                self.note("again", rows)
                yield

    def shared(self, lengths: list[int]) -> Iterator[None]:
        rows: dict[str, Any] = {}
        for length in lengths:
            row = rows.setdefault(str(length), [])
            for turn in range(self.options.turns):
                row.append(self._first(prompt(650_000 + turn, length + TAIL)))
                self.note("shared", rows)
                self.engine.settle()
                yield

    def interfere(self, lengths: list[int]) -> Iterator[None]:
        """The longest alone."""
        length, rows = max(lengths), []
        for turn in range(self.options.turns):
            self.engine.place.clear()
            ids = prompt(777_000 + turn, length + TAIL)
            stored = self.engine.answer(ids)
            at_once = self.engine.answer(ids)
            self.engine.settle()
            self.engine.forget()
            streams = [prompt(31_000 + number, 500) for number in range(STREAMS)]
            decoding = self.engine.decoding(streams, STREAM)
            row: dict[str, Any] = {"stored_s": stored.ttft_s, "gpu_hit_s": at_once.ttft_s}
            row["alone_s"] = decoding.between_s(TOKENS)
            row["loading_s"] = decoding.between_s(beside=ids)
            decoding.between_s(TOKENS // 3)
            row["computing_s"] = decoding.between_s(beside=prompt(778_000 + turn, length + TAIL))
            row["storing_s"] = decoding.between_s(TOKENS)
            decoding.end()
            self.engine.settle()
            rows.append(row)
            self.note("interfere", rows)
            yield

    def flip(self, lengths: list[int]) -> Iterator[None]:
        """The first length alone."""
        ids = prompt(lengths[0], lengths[0] + TAIL)
        self.engine.forget()
        self.engine.answer(ids)
        in_gpu = self.engine.answer(ids, self.options.decode)
        self.engine.settle()
        flipped = flip_files(self.options.files) if self.options.arm == "fs" else sum(
            flip_member(Path(member)) for member in self.options.members.split(":")
        )
        self.engine.forget()
        damaged = self._hit(ids, in_gpu)
        self.engine.settle()
        self.engine.forget()
        anew = self._hit(ids, in_gpu)
        self.note("flip", {"flipped": flipped, "damaged": damaged, "anew": anew})
        yield

    def kill(self, lengths: list[int]) -> Iterator[None]:
        """The first length alone."""
        length, rest = lengths[0], self.options.decode
        prompts = [prompt(555_000 + number, length + TAIL) for number in range(6)]
        self.engine.forget()
        cold = [self.engine.answer(ids, rest) for ids in prompts]
        in_gpu = [self.engine.answer(ids, rest) for ids in prompts]
        self.engine.settle(30)
        self.engine.forget()
        hits = self.engine.answers(prompts, rest)
        self.engine.forget()
        timer = self._kill_in(hits[0].wall_s / 4)
        killed = self.engine.answers(prompts, rest)
        timer.join()
        self.engine.forget()
        down = self.engine.answer(prompts[0], rest)
        back_s = self._hits_again_s(prompts[1])
        self.engine.forget()
        after = [self.engine.answer(ids, rest) for ids in prompts]
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
            ids, rest = prompt(660_000 + length, length + TAIL), self.options.decode
            cold = self.engine.answer(ids, rest)
            in_gpu = self.engine.answer(ids, rest)
            self.engine.settle()
            self.engine.forget()
            hit = self.engine.answer(ids, rest)
            row = {"cold_s": cold.ttft_s, "hit": hit.beside(in_gpu), "losses": list[Any]()}
            rows[str(length)] = row
            for _ in range(LOSSES):
                self.engine.forget()
                timer = self._kill_in(hit.ttft_s / 3)
                killed = self.engine.answer(ids, rest)
                timer.join()
                self.engine.forget()
                down = self.engine.answer(ids, rest)
                back_s = self._hits_again_s(ids)
                self.engine.settle()
                self.engine.forget()
                after = self.engine.answer(ids, rest)
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
            self.engine.settle()
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
                answers = self.engine.answers(asked, self.options.decode)
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

    def _used(self) -> tuple[Used, Used]:
        """What the engine and the sidecar have used."""
        pid_file = self.options.pid_file
        side = Used.by(int(Path(pid_file).read_text())) if pid_file else Used()
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


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arm", choices=ARMS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", type=Path, required=True, help="folder with a config.json")
    parser.add_argument("--longest", type=int, default=32_768, help="tokens of a prompt")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--decode", type=int, default=24, help="tokens to make for each prompt")
    parser.add_argument("--chunk-tokens", type=int, default=256)
    parser.add_argument("--cpu-gib", type=int, default=8)
    parser.add_argument("--gpu-gib", type=int, default=12)
    parser.add_argument("--ranks", type=int, default=1, help="GPUs that share the model")
    parser.add_argument("--kv-cache-dtype", default="auto", help="fp8: 8 bits a number")
    parser.add_argument(
        "--served", action="store_true", help="the engine's own process, and CUDA graphs"
    )
    parser.add_argument("--users", default="1,4,16,32", help="of the phase returning, at once")
    parser.add_argument("--socket", default="")
    parser.add_argument("--tier-gib", type=int, default=0, help="of the sidecar's memory")
    parser.add_argument("--files", default="", help="folder of vLLM's own tiers")
    parser.add_argument("--disk-gib", type=int, default=20, help="of SimpleCPUOffload's disk")
    parser.add_argument("--drives", required=True, help="folders, with colons between")
    parser.add_argument("--weights", default="", help="a folder by which engines share them")
    parser.add_argument("--members", default="", help="the store's members, with colons between")
    parser.add_argument("--pid-file", default="", help="a file with the sidecar's process id")
    parser.add_argument("--serve", default="", help="a command that starts the sidecar again")
    parser.add_argument("replies", type=int, help="a pipe for the answers of turns.py")
    return parser.parse_args()


def main() -> None:
    logging.basicConfig()
    logging.getLogger("kvrail").setLevel(logging.INFO)  # what is declined
    arm = Arm(options())
    arm.warm_up()
    with os.fdopen(arm.options.replies, "w") as replies:
        take_part(arm.begin, replies)
    # The engine's threads and processes may outlive a sidecar that was killed.
    for pid in list(family(os.getpid()))[1:]:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()
