"""Arms in turns on one machine with a GPU: run.py RESULTS PLACE [options].

PLACE is `disk` (a folder of this machine) or `memory` (four file systems on loop devices in memory,
the place of four fast drives). Each arm is an engine process of its own, with a fresh store or
folder. All arms live at a time, on one GPU with one copy of the weights, and take turns: see
turns.py. RESULTS gets one JSON for each arm, which report.py makes into tables.

A phase of `--phases` is `NAME`, `NAME@LENGTH+LENGTH`, or with `:ARM+ARM` behind it, for some arms
alone. Between phases `restart` ends all engines and sidecars, and starts them again.

Ends with 1 where an arm failed, or bits of a batch-invariant run are not equal.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import report
from arms import ALONE, KVRAIL, SHARED_MEMORY, store_of
from places import Rate, Side, drives_in_memory, make_room, unmount_drives
from plan import Phase, arguments, machine_file
from processes import drop_caches, end_sidecar
from room import SHAPES, longest, store_bytes, tier_gib, warms_up
from turns import Arm, take_turns

ARM = Path(__file__).with_name("arm.py")
HOME = Path("/tmp/kvrail-model")
STARTS_S = 180.0
"""The longest that engines may take to start, in seconds."""


class Run:
    """The arms of a place, and what they share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folders: list[Path] = []
        self.sides: dict[str, Side] = {}
        self.arms: list[Arm] = []
        self.starts = 0
        self.failed: list[str] = []
        words = ["kvrail", "--version"]
        version = subprocess.run(words, capture_output=True, text=True, check=True)
        self.machine: dict[str, Any] = {
            "kernel": platform.release(),
            "cores": os.cpu_count(),
            "place": options.place,
            "command": " ".join(["run.py", *sys.argv[1:]]),
            "kvrail": version.stdout.strip(),
            "drives_read": {},
        }

    def keep(self) -> None:
        """What is known of the machine so far: a run may be cut short."""
        machine_file(self.options).write_text(json.dumps(self.machine, indent=1))

    def prepare(self) -> None:
        """Drives, and stores or folders that are empty; nothing is left of a run before."""
        options = self.options
        for pid_file in HOME.glob("*/pid"):
            end_sidecar(pid_file)
        if options.place == "memory":
            self.folders = drives_in_memory(options.drive_gib << 30)
        else:
            self.folders = [options.dir / "kvrail-model-disk"]
            shutil.rmtree(self.folders[0], ignore_errors=True)
            self.folders[0].mkdir()
        for arm in options.arms:
            self.out(arm).unlink(missing_ok=True)
            owner = store_of(arm, options.share)
            if arm in KVRAIL and owner not in self.sides:
                self.sides[owner] = self._side(owner)
                self.sides[owner].start()
            if arm not in KVRAIL:
                self.files(arm).mkdir()

    def out(self, arm: str, suffix: str = ".json") -> Path:
        return self.options.results / f"{self.options.place}-{self.options.tag}{arm}{suffix}"

    def files(self, arm: str) -> Path:
        return self.folders[0] / f"files-{arm}"

    def _side(self, owner: str) -> Side:
        tier = tier_gib(owner, self.options)
        settings = {"memory_tier.bytes": f'"{tier}GiB"'}
        if self.options.late and tier:
            settings["memory_tier.write_late"] = '["*"]'
        return Side(HOME / owner, self.folders, store_bytes(owner, self.options), settings)

    def start(self) -> None:
        """All engines at once; their first prompts are over behind this."""
        shutil.rmtree(HOME / "weights", ignore_errors=True)
        self.starts += 1
        tiers = sum(arm in SHARED_MEMORY for arm in self.options.arms)
        make_room(tiers * (self.options.cpu_gib << 30))
        for name in self.options.arms:
            words = [sys.executable, str(ARM), json.dumps(self.asked(name))]
            self.arms.append(Arm(name, words, self.out(name, ".log")))
        until = min(self.options.until, time.monotonic() + STARTS_S)
        ready = [arm for arm in self.arms if arm.is_ready(until)]
        self.failed += [f"start of {arm.name}" for arm in self.arms if arm not in ready]
        self.say(f"ready: {', '.join(arm.name for arm in ready)}")
        alone = [arm for arm in ready if arm.name in ALONE]
        self._take("warm_up", warms_up(self.options), alone)

    def asked(self, name: str) -> dict[str, Any]:
        """What arm.py gets."""
        options, owner = self.options, store_of(name, self.options.share)
        same = ("turns", "users", "chunk_tokens", "gpu_gib", "cpu_gib", "disk_gib", "ranks")
        same += ("kv_cache_dtype", "served", "trace", "trace_from", "requests", "block_tokens")
        same += ("pace",)
        shared = len(options.arms) > 1 and options.ranks == 1 and not options.own_weights
        side = self.sides.get(owner)
        return {word: getattr(options, word) for word in same} | {
            "arm": name,
            "out": str(self.out(name)),
            "shape": str(SHAPES / options.shape),
            "longest": longest(options),
            "warms_up": warms_up(options),
            "start": self.starts,
            "drives": [str(folder) for folder in self.folders],
            "files": str(self.files(name)),
            "weights": str(HOME / "weights") if shared else "",
            "tier_gib": tier_gib(owner, options),
            "socket": str(side.socket) if side else "",
            "pid_file": str(side.pid_file) if side else "",
            "serve": side.serve if side else "",
            "members": [str(member) for member in side.members] if side else [],
        }

    def restart(self) -> None:
        """Engines and sidecars; nothing of files stays in the kernel's memory."""
        self.end()
        for side in self.sides.values():
            side.stop()
        drop_caches()
        for side in self.sides.values():
            side.start()
        self.start()

    def measure(self) -> None:
        """All phases, and what the drives read by themselves in each, in bytes a second."""
        rate = Rate(self.folders)
        self.start()
        for phase in self.options.phases:
            if time.monotonic() >= self.options.until:
                self.say(f"{phase.name}: the time is over")
            elif phase.name == "restart":
                self.restart()
            else:
                self._measure(phase, rate)
                self.keep()

    def _measure(self, phase: Phase, rate: Rate) -> None:
        rate.seen = self.machine["drives_read"].setdefault(phase.name, [])
        arms = [arm for arm in self.arms if arm.name in phase.arms]
        if phase.name == "flip":  # a second one over a store would flip the same bits back
            first = {store_of(arm.name, self.options.share): arm for arm in reversed(arms)}
            arms = [arm for arm in arms if arm in first.values()]
        reads = phase.name in ("ttft", "again")
        self._take(phase.name, phase.lengths, arms, rate.measure if reads else lambda: None)
        self.say(f"{phase.name}: {', '.join(arm.name for arm in arms if arm.alive)}")
        if time.monotonic() >= self.options.until:
            self.say(f"{phase.name}: the time is over; it may lack turns")

    def _take(
        self, phase: str, lengths: list[int], arms: list[Arm], *between: Callable[[], None]
    ) -> None:
        request = f"begin {phase} {','.join(map(str, lengths))}"
        failed = take_turns(arms, request, self.options.until, *between)
        self.failed += [f"{phase} of {name}" for name in failed]

    def end(self) -> None:
        for arm in self.arms:
            arm.end()
        self.arms = []

    def remove(self) -> None:
        """All but the results; also behind a sidecar that cannot be removed."""
        self.end()
        for owner, side in self.sides.items():
            try:
                side.remove(self.out(owner, ".sidecar.log"))
            except Exception:
                traceback.print_exc()
        make_room(0)
        if self.options.place == "memory":
            unmount_drives()
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)

    def whole(self) -> int:
        """From empty drives to results, with nothing else left; its exit code."""
        options = self.options
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        options.results.mkdir(parents=True, exist_ok=True)
        self.keep()
        try:
            self.prepare()
            self.measure()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self.remove()
        seen = report.load(options.results, options.place, options.tag)
        wrong = self.failed + report.unequal(seen)
        for text in wrong:
            self.say(f"wrong: {text}")
        return 1 if wrong else 0

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.options.began:5.0f} s] {text}", flush=True)


def main(words: list[str] | None = None) -> int:
    return Run(arguments(str(__doc__), words)).whole()


if __name__ == "__main__":
    sys.exit(main())
