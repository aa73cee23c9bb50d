"""Arms in turns on one machine with a GPU: run.py RESULTS PLACE [options].

PLACE is `disk` (a folder of this machine) or `memory` (four file systems on loop devices in memory,
the place of four fast drives). Each arm is an engine process of its own, with a fresh store or
folder. All arms live at a time, on one GPU with one copy of the weights, and take turns: see
turns.py. RESULTS gets one JSON for each arm, which report.py makes into tables.

A phase of `--phases` is `NAME`, `NAME@LENGTH+LENGTH`, or with `:ARM+ARM` behind it, for some arms
alone. Between phases `restart` ends all engines and sidecars, and starts them again.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from arms import ARMS, KVRAIL, SHARED_MEMORY
from places import Rate, Side, drives_in_memory, make_room
from turns import Arm, take_turns

HERE = Path(__file__).parent
HOME = Path("/tmp/kvrail-model")
STARTS_S = 180.0
"""The longest that engines may take to start, in seconds."""


@dataclass(frozen=True)
class Phase:
    name: str
    lengths: list[int]
    arms: list[str]

    @classmethod
    def of(cls, word: str, options: argparse.Namespace) -> "Phase":
        rest, _, arms = word.partition(":")
        name, _, lengths = rest.partition("@")
        numbers = [int(at) for at in lengths.split("+")] if lengths else options.lengths
        return cls(name, numbers, arms.split("+") if arms else options.arms)


class Run:
    """The arms of a place, and what they share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.phases = [Phase.of(word, options) for word in options.phases.split(",")]
        if options.place == "memory":
            self.folders = drives_in_memory(options.drive_gib << 30)
        else:
            self.folders = [options.dir / "kvrail-model-disk"]
            self.folders[0].mkdir(exist_ok=True)
        self.sides: dict[str, Side] = {}
        self.arms: list[Arm] = []
        self.owners = {"second": "hot"}
        if options.share:
            self.owners |= dict.fromkeys(("narrow", "fine", "latency"), "direct")
        for arm in options.arms:
            self.out(arm).unlink(missing_ok=True)
            owner = self.owners.get(arm, arm)
            if arm in KVRAIL and owner not in self.sides:
                self.sides[owner] = self._side(owner)
            if arm not in KVRAIL:
                shutil.rmtree(self._files(arm), ignore_errors=True)
                self._files(arm).mkdir()

    def out(self, arm: str, suffix: str = ".json") -> Path:
        return self.options.results / f"{self.options.place}-{self.options.tag}{arm}{suffix}"

    def _files(self, arm: str) -> Path:
        return self.folders[0] / f"files-{arm}"

    def _tier_gib(self, owner: str) -> int:
        return int(self.options.tier_gib) if owner == "hot" else 0

    def _side(self, owner: str) -> Side:
        tier = self._tier_gib(owner)
        settings = {"memory_tier.bytes": f'"{tier}GiB"'}
        if self.options.late and tier:
            settings["memory_tier.write_late"] = '["*"]'
        # What is hot is to lie in memory: its store needs no more than that.
        return Side(HOME / owner, self.folders, (tier or self.options.store_gib) << 30, settings)

    def start(self) -> None:
        """All engines at once; their first prompts are over behind this."""
        shutil.rmtree(HOME / "weights", ignore_errors=True)
        tiers = sum(arm in SHARED_MEMORY for arm in self.options.arms)
        make_room(tiers * (self.options.cpu_gib << 30))
        for name in self.options.arms:
            self.arms.append(Arm(name, self._words(name), self.out(name, ".log")))
        until = min(self.options.until, time.monotonic() + STARTS_S)
        ready = [arm.name for arm in self.arms if arm.is_ready(until)]
        self.say(f"ready: {', '.join(ready)}")

    def _words(self, name: str) -> list[str]:
        options, owner = self.options, self.owners.get(name, name)
        longest = max(length for phase in self.phases for length in phase.lengths)
        words: list[str | Path] = [sys.executable, HERE / "arm.py", name, self.out(name)]
        words += ["--shape", HERE / "shapes" / options.shape, "--longest", str(longest)]
        words += ["--kv-cache-dtype", options.kv_cache_dtype, *["--served"] * options.served]
        words += ["--drives", ":".join(map(str, self.folders)), "--users", options.users]
        words += ["--tier-gib", str(self._tier_gib(owner)), "--files", self._files(name)]
        for number in ("turns", "chunk_tokens", "gpu_gib", "cpu_gib", "disk_gib", "ranks"):
            words += [f"--{number.replace('_', '-')}", str(getattr(options, number))]
        if len(options.arms) > 1 and options.ranks == 1 and not options.own_weights:
            words += ["--weights", HOME / "weights"]
        if side := self.sides.get(owner):
            words += ["--socket", side.socket, "--pid-file", side.pid_file, "--serve", side.serve]
            words += ["--members", ":".join(str(member) for member in side.members)]
        return [str(word) for word in words]

    def restart(self) -> None:
        """Engines and sidecars; nothing of files stays in the kernel's memory."""
        self.end()
        for side in self.sides.values():
            side.stop()
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        for side in self.sides.values():
            side.start()
        self.start()

    def measure(self) -> dict[str, list[float]]:
        """All phases; what the drives read by themselves in each, in bytes a second."""
        rate, rates = Rate(self.folders), {}
        self.start()
        for phase in self.phases:
            if phase.name == "restart":
                self.restart()
                continue
            rate.seen, reads = rates.setdefault(phase.name, []), phase.name in ("ttft", "again")
            arms = [arm for arm in self.arms if arm.name in phase.arms]
            request = f"begin {phase.name} {','.join(map(str, phase.lengths))}"
            between = rate.measure if reads else lambda: None
            take_turns(arms, request, self.options.until, between)
            self.say(f"{phase.name}: {', '.join(arm.name for arm in arms if arm.alive)}")
        rate.remove()
        return rates

    def end(self) -> None:
        for arm in self.arms:
            arm.end()
        self.arms = []

    def remove(self) -> None:
        self.end()
        for owner, side in self.sides.items():
            side.remove(self.out(owner, ".sidecar.log"))
        for arm in self.options.arms:
            shutil.rmtree(self._files(arm), ignore_errors=True)

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.options.began:5.0f} s] {text}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("place", choices=("disk", "memory"))
    parser.add_argument("--dir", type=Path, default=Path("/tmp"), help="the folder of `disk`")
    parser.add_argument("--arms", default="recompute,direct,latency,fs,cpu")
    parser.add_argument("--shape", default="llama8b")
    parser.add_argument("--phases", default="ttft")
    parser.add_argument("--lengths", default="8192,16384,32768")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--chunk-tokens", type=int, default=256)
    parser.add_argument("--gpu-gib", type=int, default=9, help="each engine's cache")
    parser.add_argument("--cpu-gib", type=int, default=9, help="each CPU tier of vLLM")
    parser.add_argument("--disk-gib", type=int, default=20, help="of SimpleCPUOffload's disk")
    parser.add_argument("--ranks", type=int, default=1, help="GPUs that share the model")
    parser.add_argument("--kv-cache-dtype", default="auto", help="fp8: 8 bits a number")
    parser.add_argument(
        "--served", action="store_true", help="the engine's own process, and CUDA graphs"
    )
    parser.add_argument("--users", default="1,4,16,32", help="of the phase returning, at once")
    parser.add_argument(
        "--store-gib", type=int, default=20, help="a store keeps a sixth of it free for new blocks"
    )
    parser.add_argument("--drive-gib", type=int, default=32, help="of each drive in memory")
    parser.add_argument("--tier-gib", type=int, default=12, help="memory tier of the arm `hot`")
    parser.add_argument("--late", action="store_true", help="`hot` writes late")
    parser.add_argument("--share", action="store_true", help="arms like `direct` have one store")
    parser.add_argument("--own-weights", action="store_true", help="one copy for each engine")
    parser.add_argument("--seconds", type=float, default=540, help="after which no arm goes on")
    parser.add_argument("--tag", default="", help="a word in the names of the files")
    options = parser.parse_args()
    options.began = time.monotonic()
    options.until = options.began + options.seconds
    options.arms = options.arms.split(",")
    options.lengths = [int(word) for word in options.lengths.split(",")]
    if unknown := set(options.arms) - set(ARMS):
        parser.error(f"there is no arm {', '.join(unknown)}")
    return options


def main() -> None:
    options = arguments()
    options.results.mkdir(parents=True, exist_ok=True)
    version = subprocess.run(["kvrail", "--version"], capture_output=True, text=True, check=True)
    machine = {
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "place": options.place,
        "command": " ".join(["run.py", *sys.argv[1:]]),
        "kvrail": version.stdout.strip(),
    }
    seen_on = options.results / f"{options.place}-{options.tag}machine.json"
    arms = Run(options)
    try:
        machine["drives_read"] = arms.measure()
    finally:
        seen_on.write_text(json.dumps(machine, indent=1))
        arms.remove()


if __name__ == "__main__":
    main()
