"""One arm in one process: arm.py ARM OUT.json [options]. Phases, of one engine's life:

ttft       computing, a hit in the GPU's cache, and hits after the caches of GPU and CPU are empty
again      the first requests of another engine process over the same store
interfere  small requests, and a hit in the GPU's cache, right behind a long prompt that is stored
flip       bytes change on the drive: no token may change
kill       the sidecar dies with requests in flight, and comes back
returning  users whose prompts were stored come back, some at once; the caches of GPU and CPU have
           no room for all
"""

import argparse
import json
import logging
import math
import os
import signal
import statistics
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import torch
from arms import ARMS
from engine import Answer, Engine, Model, Place, prompt
from processes import Used, family

TAIL = 5
"""Tokens of a prompt behind its last whole page, which are always computed."""

STORED_AT_ONCE, TTFTS = 4, 4
"""Prompts of users that are computed without a pause, and the fewest times to a first token that
make a row."""


class Arm:
    """The engine with a way to keep blocks, and what was seen."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self._began = options, time.monotonic()
        self.lengths = [int(word) for word in options.lengths.split(",")]
        place = Place(
            options.arm, options.socket, options.files, options.chunk_tokens, options.cpu_gib << 30
        )
        model = Model(
            options.shape,
            max(self.lengths),
            options.gpu_gib << 30,
            options.ranks,
            options.kv_cache_dtype,
            options.served,
        )
        self.engine = Engine(place, model)
        self.keeps = options.arm != "recompute"
        self.seen: dict[str, Any] = {
            "arm": options.arm,
            "shape": options.shape.name,
            "chunk_tokens": options.chunk_tokens,
            "gpu": torch.cuda.get_device_name(),
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

    def warm_up(self) -> None:
        """Kernels of all shapes, and one way through the store."""
        ids: list[int] = []
        for tokens in (600, max(self.lengths)):
            ids = prompt(7 * tokens + 1, tokens + TAIL)
            self.engine.answer(ids, 4), self.engine.answer(ids, 4)
        if self.keeps:
            self.engine.settle(5)
            self.engine.forget()
            self.engine.answer(ids, 4)
        self.engine.forget()

    def ttft(self) -> None:
        rows: dict[str, Any] = {}
        for length in self.lengths:
            ids, rest = prompt(length, length + TAIL), self.options.decode
            cold = self.engine.answer(ids, rest)
            in_gpu = self.engine.answer(ids, rest)
            row: dict[str, Any] = {"gpu": in_gpu.beside(cold), "hits": [], "cold_s": [cold.ttft_s]}
            rows[str(length)] = row | {"tokens": in_gpu.tokens, "logprobs": in_gpu.logprobs}
            for turn in range(self.options.turns):
                if self.keeps:
                    self.engine.settle()
                    self.engine.forget()
                    row["hits"].append(self.engine.answer(ids, rest).beside(in_gpu))
                self.engine.forget()
                cold = self.engine.answer(prompt(length * 1000 + turn, length + TAIL))
                row["cold_s"].append(cold.ttft_s)
            self.note("ttft", rows)

    def again(self) -> None:
        rows: dict[str, Any] = {}
        for length in self.lengths:
            ids = prompt(length, length + TAIL)
            hit = self.engine.answer(ids, self.options.decode)
            rows[str(length)] = self.engine.answer(ids, self.options.decode).beside(hit)
            rows[str(length)] |= {"cached_tokens": hit.cached_tokens, "ttft_s": hit.ttft_s}
        self.note("again", rows)

    def interfere(self) -> None:
        longest = max(self.lengths)
        before = [self._small_s(31_337 + number) for number in range(6)]
        turns = []
        for turn in range(2):
            self.engine.answer(prompt(777_000 + turn, longest + TAIL))
            behind = [self._small_s(41_337 + 10 * turn + number) for number in range(4)]
            self.engine.settle()
            ids = prompt(778_000 + turn, longest + TAIL)
            self.engine.answer(ids)
            at_once = self.engine.answer(ids)
            self.engine.settle()
            turns.append({"small_s": behind, "gpu_hit_s": at_once.ttft_s})
        self.note("interfere", {"small_before_s": statistics.median(before), "turns": turns})

    def _small_s(self, seed: int) -> float:
        return self.engine.answer(prompt(seed, 20), 24).wall_s

    def flip(self) -> None:
        ids = prompt(self.lengths[0], self.lengths[0] + TAIL)
        self.engine.forget()
        self.engine.answer(ids)
        in_gpu = self.engine.answer(ids, self.options.decode)
        self.engine.settle()
        flipped = flip_files(self.options.files) if self.options.arm == "fs" else sum(
            flip_member(Path(member)) for member in self.options.members.split(":")
        )
        self.engine.forget()
        damaged = self.engine.answer(ids, self.options.decode).beside(in_gpu)
        self.engine.settle()
        self.engine.forget()
        anew = self.engine.answer(ids, self.options.decode).beside(in_gpu)
        self.note("flip", {"flipped": flipped, "damaged": damaged, "anew": anew})

    def kill(self) -> None:
        length, rest = self.lengths[0], self.options.decode
        prompts = [prompt(555_000 + number, length + TAIL) for number in range(6)]
        self.engine.forget()
        cold = [self.engine.answer(ids, rest) for ids in prompts]
        in_gpu = [self.engine.answer(ids, rest) for ids in prompts]
        self.engine.settle(30)
        self.engine.forget()
        hits = self.engine.answers(prompts, rest)
        self.engine.forget()
        pid = int(Path(self.options.pid_file).read_text())
        timer = threading.Timer(hits[0].wall_s / 4, os.kill, (pid, signal.SIGKILL))
        timer.start()
        killed = self.engine.answers(prompts, rest)
        timer.join()
        self.engine.forget()
        down = self.engine.answer(prompts[0], rest)
        with subprocess.Popen(self.options.serve, shell=True, start_new_session=True):
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

    def returning(self) -> None:
        """Each user has a prompt of the longest length, and some tokens more each time."""
        counts = [int(word) for word in self.options.users.split(",")]
        prompts = [prompt(900_000 + user, max(self.lengths)) for user in range(max(counts))]
        before, began = self._used(), time.monotonic()
        # A store that has begun keeps its pages: groups leave it time.
        for first in range(0, len(prompts) if self.keeps else 0, STORED_AT_ONCE):
            self.engine.answers(prompts[first : first + STORED_AT_ONCE])
            self.engine.settle()
        stored = {"seconds": time.monotonic() - began, **self._since(before)}
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
            seen.append(row | {"tokens": len(row["ttft_s"]) * max(self.lengths)})
            self.note("returning", {"stored": stored, "seen": seen})

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
    parser.add_argument("--phases", default="ttft")
    parser.add_argument("--lengths", default="8192,16384,32768", help="tokens of prompts")
    parser.add_argument("--turns", type=int, default=3)
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
    parser.add_argument("--files", default="", help="folder of vLLM's own tier")
    parser.add_argument("--members", default="", help="the store's members, with colons between")
    parser.add_argument("--pid-file", default="", help="a file with the sidecar's process id")
    parser.add_argument("--serve", default="", help="a command that starts the sidecar again")
    return parser.parse_args()


def main() -> None:
    logging.basicConfig()
    logging.getLogger("kvrail").setLevel(logging.INFO)  # what is declined
    arm = Arm(options())
    arm.warm_up()
    phases = arm.options.phases.split(",")
    if not arm.keeps or arm.options.arm == "cpu":
        phases = [phase for phase in phases if phase != "flip"]
    if not arm.options.pid_file:
        phases = [phase for phase in phases if phase != "kill"]
    for phase in phases:
        getattr(arm, phase)()
    # The engine's threads and processes may outlive a sidecar that was killed.
    for pid in list(family(os.getpid()))[1:]:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()
