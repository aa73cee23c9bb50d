"""L1: kvrail beside LMCache's own back ends for disks, driven as `lmcache bench l2` drives them.

lmcache_l2.py [ROUNDS]: two tasks of 32 objects of 4 MiB are stored, then loaded, and every byte is
compared. Arms take turns on one disk, all with direct I/O. CPU is that of this process and of the
sidecar. `private` is memory of the process, which kvrail copies; `shared` is a file below /dev/shm,
as LMCache's L1 is with --shm-name. JSON goes to standard output, the thresholds to standard error.
"""

import argparse
import json
import mmap
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lmcache.cli.commands.bench.l2_adapter_bench import data
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
from measure import Clock, Verdicts, folder, median, sidecar, write

OBJECT, KEYS, TASKS = 4 << 20, 32, 2
ROUND = OBJECT * KEYS * TASKS
GIB = ROUND / (1 << 30)


@contextmanager
def memory(kind: str, nbytes: int) -> Iterator[torch.Tensor]:
    """Memory for objects."""
    if kind == "private":
        yield data.make_aligned_tensor(nbytes, 4096)
        return
    name = f"/dev/shm/kvrail-bench-{os.getpid()}"
    with open(name, "x+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, nbytes)
            yield torch.frombuffer(mmap.mmap(file.fileno(), nbytes), dtype=torch.uint8)
        finally:
            os.unlink(name)


def adapter_of(spec: dict[str, Any], buffer: torch.Tensor) -> Any:
    parsed = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[json.dumps(spec)]))
    about = data.create_l1_memory_desc(buffer, align_bytes=4096)
    return create_l2_adapter(parsed.adapters[0], l1_memory_desc=about)


def objects(buffer: torch.Tensor, first: int, fill: int) -> list[list[Any]]:
    """Objects of a round: their bytes tell which they are."""
    step = KEYS * OBJECT
    return [
        data.make_memory_objects(buffer, KEYS, OBJECT, first + at * step, fill + at * KEYS)
        for at in range(TASKS)
    ]


def store(adapter: Any, keys: list[Any], out: list[Any]) -> None:
    tasks = [adapter.submit_store_task(*it) for it in zip(keys, out, strict=True)]
    done: dict[int, Any] = {}
    while len(done) < len(tasks):
        if not data.wait_eventfd(adapter.get_store_event_fd()):
            sys.exit("a store got stuck")
        done |= adapter.pop_completed_store_tasks()
    if not all(it.is_successful() for it in done.values()):
        sys.exit(f"a store of {type(adapter).__name__} failed")


def load(adapter: Any, keys: list[Any], back: list[Any]) -> None:
    tasks = [adapter.submit_load_task(*it) for it in zip(keys, back, strict=True)]
    while tasks:
        if not data.wait_eventfd(adapter.get_load_event_fd()):
            sys.exit("a load got stuck")
        for task in list(tasks):
            if (came := adapter.query_load_result(task)) is not None:
                if came.popcount() != KEYS:
                    sys.exit(f"{type(adapter).__name__}: {came.popcount()} of {KEYS} came")
                tasks.remove(task)


def round_of(adapter: Any, pid: int | None, turn: int, buffer: torch.Tensor) -> dict[str, float]:
    first = turn * TASKS
    keys = [data.make_object_keys(KEYS, key_offset=(first + at) * KEYS) for at in range(TASKS)]
    out, back = objects(buffer, 0, turn), objects(buffer, ROUND, turn + 128)
    clock = Clock(pid).start()
    store(adapter, keys, out)
    stored = clock.stop()
    clock = Clock(pid).start()
    load(adapter, keys, back)
    loaded = clock.stop()
    for one, other in zip(out, back, strict=True):
        if not all(torch.equal(a.raw_data, b.raw_data) for a, b in zip(one, other, strict=True)):
            sys.exit(f"{type(adapter).__name__}: other bytes")
    names = ("store", "store_cpu", "load", "load_cpu")
    return dict(zip(names, (*stored, *loaded), strict=True))


def measure(kind: str, rounds: int, verdicts: Verdicts) -> dict[str, Any]:
    told: dict[str, list[dict[str, float]]] = defaultdict(list)
    with sidecar("2GiB") as served, folder() as place, memory(kind, 2 * ROUND) as buffer:
        image = Path(place) / "raw"
        with image.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 3 << 30)
        plugin = {"type": "plugin", "module_path": "kvrail.lmcache", "class_name": "L2Adapter"}
        raw = {"type": "raw_block", "device_path": str(image), "slot_bytes": OBJECT + 4096}
        arms = {
            "kvrail": plugin | {"adapter_params": {"socket": str(served.socket)}},
            "fs_native": {"type": "fs_native", "base_path": place, "use_odirect": True},
            "raw_block": raw | {"io_engine": "io_uring", "use_odirect": True},
        }
        adapters = {name: adapter_of(spec, buffer) for name, spec in arms.items()}
        for turn in range(rounds + 1):
            for name, adapter in list(adapters.items())[:: -1 if turn % 2 else 1]:
                pid = served.pid if name == "kvrail" else None
                came = round_of(adapter, pid, turn, buffer)
                if turn:  # the first one warms up
                    told[name].append(came)
        copied = adapters["kvrail"].report_status()["copied_bytes"]
        for adapter in adapters.values():
            adapter.close()
    judge(verdicts, kind, told)
    if kind == "shared":
        verdicts.add("L1", "shared: bytes that kvrail copied", copied, "<=", 0)
    return dict(told)


def judge(verdicts: Verdicts, kind: str, told: dict[str, list[dict[str, float]]]) -> None:
    middle = {
        arm: {key: median([it[key] for it in all_]) for key in all_[0]}
        for arm, all_ in told.items()
    }
    for arm, it in middle.items():
        words = ", ".join(
            f"{what} {GIB / it[what]:.2f} GiB/s, {it[f'{what}_cpu'] / GIB:.3f} CPU-s/GiB"
            for what in ("store", "load")
        )
        print(f"     {kind:8} {arm:10} {words}", file=sys.stderr)
    ours = middle["kvrail"]
    for arm in ("fs_native", "raw_block"):
        for what in ("store", "load"):
            theirs = middle[arm]
            speed, work = theirs[what] / ours[what], ours[f"{what}_cpu"] / theirs[f"{what}_cpu"]
            verdicts.add("L1", f"{kind}: {what}, GiB/s over {arm}", speed, ">=", 1.0)
            verdicts.add("L1", f"{kind}: {what}, CPU-s per GiB over {arm}", work, "<=", 0.5)


def main() -> int:
    torch.set_num_threads(1)  # comparing in many, they would spin on into the next arm's time
    rounds, verdicts = int((sys.argv + ["5"])[1]), Verdicts()
    told = {kind: measure(kind, rounds, verdicts) for kind in ("shared", "private")}
    return write({"rounds": rounds, "bytes_a_round": ROUND, "arms": told}, verdicts)


if __name__ == "__main__":
    sys.exit(main())
