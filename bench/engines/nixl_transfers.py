"""N2: one script of NIXL's agent over POSIX and over kvrail, with the back end's name exchanged.

nixl_transfers.py PLUGINS [ROUNDS]: descriptors are written from one half of a shared mapping and
read into the other, and every byte is compared. Arms take turns on one disk: `uring` and `aio` are
NIXL's plug-in POSIX on a file with direct I/O, `kvrail` is a range of a raw volume (BLK), `kvrail
keyed` are objects (OBJ). PLUGINS has libplugin_KVRAIL.so, which is copied beside NIXL's own. CPU is
that of this process and of the sidecar. JSON goes to standard output, the thresholds to standard
error.
"""

import importlib.util
import mmap
import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from measure import DISK, Clock, Verdicts, folder, median, write

import kvrail

WHEEL = "nixl_cu13" if importlib.util.find_spec("nixl_cu13") else "nixl_cu12"
nixl = importlib.import_module(f"{WHEEL}._api")
bindings = importlib.import_module(f"{WHEEL}._bindings")

# Bytes of a descriptor, and how many one request has.
SHAPES = ((4 << 10, 2048), (64 << 10, 512), (1 << 20, 64), (4 << 20, 16))
HALF = 64 << 20
TURNS = 4
# As SGLang waits for NIXL.
PAUSE_S = 1e-4
NUMBERS = count(1)

Told = dict[str, dict[str, list[float]]]
Places = Callable[[int, int, int], list[tuple[Any, ...]]]


@dataclass
class Arm:
    """An agent with one back end, and where its descriptors are."""

    name: str
    agent: Any
    kind: str
    places: Places
    base: int
    pid: int | None
    segment: str = "DRAM"

    def descriptors(self, base: int, size: int, many: int) -> Any:
        local = np.array([(base + i * size, size, 0) for i in range(many)], np.uint64)
        return self.agent.get_xfer_descs(local, self.segment)

    def move(self, work: str, here: Any, there: Any) -> None:
        handle = self.agent.initialize_xfer(work, here, there, self.name)
        state = self.agent.transfer(handle)
        while state == "PROC":
            time.sleep(PAUSE_S)
            state = self.agent.check_xfer_state(handle)
        if state != "DONE":
            sys.exit(f"{self.name}: {work} ended as {state}")
        self.agent.release_xfer_handle(handle)


def agent_of(
    name: str, backend: str, parameters: dict[str, str], base: int, segment: str = "DRAM"
) -> Any:
    agent = nixl.nixl_agent(name, nixl.nixl_agent_config(backends=[]))
    agent.create_backend(backend, parameters)
    agent.nixl_mems["BLK"] = bindings.BLK_SEG
    agent.register_memory([(base, 2 * HALF, 0, "")], segment)
    return agent


def in_file(path: str) -> Places:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    os.posix_fallocate(file, 0, HALF)
    return lambda _, size, many: [(i * size, size, file, "") for i in range(many)]


def in_volume(_: int, size: int, many: int) -> list[tuple[Any, ...]]:
    return [(i * size, size, 0, "") for i in range(many)]


def in_store(turn: int, size: int, many: int) -> list[tuple[Any, ...]]:
    return [(0, size, next(NUMBERS), f"{size}/{turn}/{i}") for i in range(many)]


def arms_of(base: int, place: str, raw: Any, keyed: Any) -> list[Arm]:
    made = []
    for name, parameter in (("uring", "use_uring"), ("aio", "use_aio")):
        agent = agent_of(name, "POSIX", {parameter: "true"}, base)
        made.append(Arm(name, agent, "FILE", in_file(f"{place}/{name}"), base, None))
    volume = agent_of("kvrail", "KVRAIL", {"socket": str(raw.socket), "volume": "kv"}, base)
    store = agent_of("kvrail keyed", "KVRAIL", {"socket": str(keyed.socket)}, base)
    made.append(Arm("kvrail", volume, "BLK", in_volume, base, raw.pid))
    made.append(Arm("kvrail keyed", store, "OBJ", in_store, base, keyed.pid))
    return made


def measure(memory: Any, arms: list[Arm], size: int, many: int, rounds: int) -> Told:
    told: Told = defaultdict(lambda: defaultdict(list))
    total = size * many
    for turn in range(rounds):
        memory[:total] = np.random.default_rng(turn).integers(0, 256, total, np.uint8)
        for arm in arms[:: -1 if turn % 2 else 1]:
            registered = arm.agent.register_memory(arm.places(turn, size, many), arm.kind)
            out, back = (arm.descriptors(arm.base + at, size, many) for at in (0, HALF))
            there = registered.trim()
            timed(told[arm.name], "WRITE", arm, out, there)
            for _ in range(TURNS):
                memory[HALF : HALF + total] = 0
                timed(told[arm.name], "READ", arm, back, there)
                if not (memory[HALF : HALF + total] == memory[:total]).all():
                    sys.exit(f"{arm.name}: other bytes")
            arm.agent.deregister_memory(registered)
    return {name: dict(it) for name, it in told.items()}


def timed(told: dict[str, list[float]], work: str, arm: Arm, here: Any, there: Any) -> None:
    clock = Clock(arm.pid).start()
    arm.move(work, here, there)
    seconds, cpu = clock.stop()
    told[work].append(seconds)
    told[f"{work}_cpu"].append(cpu)


def show(name: str, told: Told, size: int, many: int) -> None:
    gib = size * many / (1 << 30)
    for arm, it in told.items():
        words = ", ".join(
            f"{what} {gib / median(it[what]):5.2f} GiB/s {median(it[f'{what}_cpu']) / gib:6.3f} "
            f"CPU-s/GiB {many / median(it[f'{what}_cpu']) / 1e3:7.1f} k/core-s"
            for what in ("WRITE", "READ")
        )
        print(f"     {name:10} {arm:12} {words}", file=sys.stderr)


def judge(verdicts: Verdicts, name: str, told: Told, size: int) -> None:
    peers = [told["uring"], told["aio"]]
    for what in ("WRITE", "READ"):
        seconds, cpu = (min(median(it[key]) for it in peers) for key in (what, f"{what}_cpu"))
        for arm in ("kvrail", "kvrail keyed"):
            ours = told[arm]
            if size == 4 << 10:
                ratio = cpu / median(ours[f"{what}_cpu"])
                verdicts.add("N2", f"{name} {what}: IOPS per core, {arm}", ratio, ">=", 1.3)
            if size == 1 << 20:
                ratio = seconds / median(ours[what])
                verdicts.add("N2", f"{name} {what}: GiB/s, {arm}", ratio, ">=", 0.98)
                ratio = median(ours[f"{what}_cpu"]) / cpu
                verdicts.add("N2", f"{name} {what}: CPU, {arm}", ratio, "<=", 0.7)


def install(plugins: Path) -> None:
    theirs = next(Path(bindings.__file__).parents[1].glob(f".{WHEEL}*/plugins"))
    shutil.copy(plugins / "libplugin_KVRAIL.so", theirs)


def main() -> int:
    plugins, rounds = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    install(plugins)
    file = os.memfd_create("engine")
    os.posix_fallocate(file, 0, 2 * HALF)
    memory = np.frombuffer(mmap.mmap(file, 2 * HALF), np.uint8)
    memory[:] = 1
    settings = {"memory.unsealed_imports": "accept", "device.direct": "required"}
    verdicts, sizes = Verdicts(), {}
    with (
        folder() as place,
        kvrail.serve("128MiB", directory=DISK, settings=settings) as raw,
        kvrail.serve(
            store="4GiB", directory=DISK, settings=settings, block_mean="16KiB", segment="64MiB"
        ) as keyed,
    ):
        arms = arms_of(memory.ctypes.data, place, raw, keyed)
        for size, many in SHAPES:
            name = f"{many} x {size >> 10} KiB"
            sizes[name] = measure(memory, arms, size, many, rounds)
            show(name, sizes[name], size, many)
            judge(verdicts, name, sizes[name], size)
        for arm in arms:
            del arm.agent
    return write({"rounds": rounds, "sizes": sizes}, verdicts)


if __name__ == "__main__":
    sys.exit(main())
