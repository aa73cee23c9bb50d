"""S2: kvrail beside SGLang's own back ends for disks, called as its cache controller calls them.

sglang_pages.py [ROUNDS]: 128 pages, as many as a call has, are stored from one half of a host pool
and loaded into the other, and every byte is compared. Arms take turns on one disk: `file` is
SGLang's HiCacheFile, whose pages are taken out of the page cache before each load, `nixl` its
HiCacheNixl with the plug-in POSIX and direct I/O, if NIXL is installed. CPU is that of this process
and of the sidecar. JSON goes to standard output, the thresholds to standard error.
"""

import importlib.util
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from kvrail import _sglang_hosts as hosts
from measure import Clock, Verdicts, folder, keep, median, p99, sidecar, write
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.hicache_storage import STORAGE_BATCH_SIZE as PAGES

SIZES = (256 << 10, 2 << 20)
TURNS = 4
STAND_STILL_S = 2.0
OPERATION = SimpleNamespace(request_id="bench", is_terminated=lambda: False)

Told = dict[str, dict[str, list[float]]]


class Arm:
    """A back end, and the functions of SGLang's controller that call it."""

    def __init__(self, name: str, storage: Any, pool: Any, place: str, pid: int | None) -> None:
        self.name, self.storage, self.pid, self._place = name, storage, pid, Path(place)
        controller = SimpleNamespace(
            storage_backend=storage, storage_host_pool=pool, page_size=pool.page_size
        )
        ways = ("_generic_page_set", "_generic_page_get")
        if name != "file":
            ways = ("_page_set_zero_copy", "_page_get_zero_copy")
        put, get = (getattr(HiCacheController, way) for way in ways)
        self.put: Callable[..., bool] = lambda *asked: put(controller, *asked)
        self.get: Callable[..., int] = lambda *asked: get(controller, OPERATION, *asked)

    def cold(self) -> None:
        """Nothing of it is in the page cache."""
        for path in self._place.rglob("*") if self.pid is None else ():
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def arms_of(pool: Any, place: str, served: Any, model: str) -> list[Arm]:
    ours = hosts.EXTRA | {"socket": str(served.socket)}
    made = [("kvrail", "dynamic", ours, served.pid), ("file", "file", {}, None)]
    if importlib.util.find_spec("nixl"):
        # Its cleaner deletes pages when the disk is 80 % full, whoever filled it.
        extra = {"plugin": {"posix": {"active": True}}, "l3_cleaner_enabled": False}
        made.append(("nixl", "nixl", extra, None))
    arms = []
    for name, kind, extra, pid in made:
        folder = Path(place) / name
        folder.mkdir(exist_ok=True)
        os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(folder)
        os.environ["SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR"] = str(folder)
        storage = hosts.backend(kind, extra, pool, model_name=model)
        arms.append(Arm(name, storage, pool, str(folder), pid))
    return arms


def measure(pool: Any, arms: list[Arm], rounds: int) -> Told:
    told: Told = defaultdict(lambda: defaultdict(list))
    out, back = hosts.places(0, PAGES), hosts.places(PAGES, PAGES)
    for turn in range(rounds):
        hosts.fill(pool, out, turn)
        wanted = hosts.content(pool, out)
        keys = hosts.keys_of(range(1000 * turn, 1000 * turn + PAGES))
        for arm in arms[:: -1 if turn % 2 else 1]:
            clock = Clock(arm.pid).start()
            stored = arm.put(keys, out)
            keep(told[arm.name], "store", clock)
            for _ in range(TURNS):
                hosts.fill(pool, back[:: PAGES // 8], None)
                arm.cold()
                clock = Clock(arm.pid).start()
                came = arm.get(keys, back)
                keep(told[arm.name], "load", clock)
                if not stored or came != PAGES:
                    sys.exit(f"{arm.name}: {came} of {PAGES} pages came")
            if not hosts.same(pool, back, wanted):
                sys.exit(f"{arm.name}: other bytes")
            begun = time.perf_counter()
            if arm.storage.batch_exists(keys) != PAGES:
                sys.exit(f"{arm.name}: pages are not found")
            told[arm.name]["exists"].append(time.perf_counter() - begun)
    return {name: dict(it) for name, it in told.items()}


def judge(verdicts: Verdicts, name: str, told: Told, nbytes: int) -> None:
    gib, ours = nbytes / (1 << 30), told["kvrail"]
    for arm, it in told.items():
        words = ", ".join(
            f"{what} {gib / median(it[what]):.2f} GiB/s, {median(it[f'{what}_cpu']) / gib:.3f} "
            "CPU-s/GiB"
            for what in ("store", "load")
        )
        late = f"load p50 {1e3 * median(it['load']):.0f} ms, p99 {1e3 * p99(it['load']):.0f} ms"
        looked = f"{1e6 * median(it['exists']):.0f} us to find them"
        print(f"     {name:14} {arm:7} {words}; {late}; {looked}", file=sys.stderr)
    for arm, limit in (("file", 0.5), ("nixl", 0.8)):
        if arm in told:
            ratio = median(ours["load"]) / median(told[arm]["load"])
            verdicts.add("S2", f"{name}: load p50 over {arm}", ratio, "<=", limit)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def waiting(served: Any) -> float:
    """Share of a core that a load takes while its drive stands still."""
    pool = hosts.mha(2 * PAGES, SIZES[0])
    extra = hosts.EXTRA | {"socket": str(served.socket), "timeout": STAND_STILL_S}
    storage = hosts.backend("dynamic", extra, pool, model_name="waiting")
    keys, out = hosts.keys_of(range(PAGES)), hosts.places(0, PAGES)
    if not all(storage.batch_set_v1(keys, out)) or not all(storage.batch_get_v1(keys, out)):
        sys.exit("kvrail: pages did not come")
    with stopped(served.pid):
        seconds, cpu = time.perf_counter(), time.process_time()
        storage.batch_get_v1(keys, hosts.places(PAGES, PAGES))
        share = (time.process_time() - cpu) / (time.perf_counter() - seconds)
    storage.close()
    return share


def main() -> int:
    rounds, verdicts, told = int((sys.argv + ["5"])[1]), Verdicts(), {}
    torch.set_num_threads(1)
    with sidecar("2GiB") as served, folder() as place:
        for size in SIZES:
            pool, name = hosts.mha(2 * PAGES, size), f"{PAGES} x {size >> 10} KiB"
            # HiCacheFile does not tell sizes of pages apart: another model does.
            arms = arms_of(pool, place, served, f"model-{size}")
            told[name] = measure(pool, arms, rounds)
            judge(verdicts, name, told[name], PAGES * size)
            copied = arms[0].storage.status()["copied_bytes"]
            verdicts.add("S2", f"{name}: bytes that kvrail copied", copied, "<=", 0)
            for arm in arms:
                getattr(arm.storage, "close", lambda: None)()
        share = waiting(served)
        verdicts.add("S2", "share of a core while a drive stands still", share, "<=", 0.05)
    return write({"rounds": rounds, "loads_a_round": TURNS, "arms": told}, verdicts)


if __name__ == "__main__":
    sys.exit(main())
