"""The KV-cache benchmark of MLPerf Storage over kvrail, beside its own files on the same disk.

mlperf_kv.py CHECKOUT [OPTIONS] [-- OPTIONS OF THE BENCHMARK]: CHECKOUT is one of mlcommons/storage.
Each turn is a process of its own, which runs the benchmark's own program with its workload, files
and kvrail in turns. `files` is the benchmark's back end as it is: numpy files, an fsync behind each
write, and a read drops the file's page cache first. `kvrail` has the same four methods over a store
in a file on that disk, with direct I/O, and puts that are durable when they end. `kvrail-100ms` has
puts that are durable within 0.1 s. CPU is that of the benchmark's process and of the sidecar while
the workload runs. A turn in which a read or write failed has no figures: the benchmark counts the
bytes of failed reads. The table goes to standard error, JSON to standard output where asked for.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kvrail
from measure import Clock, folder, machine, median, sidecar
from mlperf_objects import Objects

GIB = 1 << 30
ARMS = ("files", "kvrail", "kvrail-100ms")
# What the benchmark's wrapper passes for the three options of release 3.0.
OPTIONS = {
    1: ("llama3.1-8b", 200, 300, 0, 16),
    2: ("llama3.1-8b", 100, 300, 4, 16),
    3: ("llama3.1-70b-instruct", 70, 300, 0, 4),
}
SMALL = ("tiny-1b", 8, 45, 0, 4)
# Ours, and where the benchmark's result has it. Its "gbps" are GiB/s.
FIGURES = {
    "read_gib_s": ("cache_stats", "tier_storage_read_bandwidth_gbps"),
    "write_gib_s": ("cache_stats", "tier_storage_write_bandwidth_gbps"),
    "read_device_p95_ms": ("cache_stats", "storage_read_device_p95_ms"),
    "read_p95_ms": ("cache_stats", "storage_read_p95_ms"),
    "write_device_p95_ms": ("cache_stats", "storage_write_device_p95_ms"),
    "write_p95_ms": ("cache_stats", "storage_write_p95_ms"),
    "tokens_s": ("avg_throughput_tokens_per_sec",),
    "requests": ("total_requests",),
}


class Tally:
    """What a back end really moved, and what it failed at, until the workload has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = False
        self.bytes: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()

    def moved(self, what: str, nbytes: int) -> None:
        with self._lock:
            if not self._ended:
                self.bytes[what] += nbytes

    def lost(self, what: str, error: BaseException) -> None:
        with self._lock:
            if not self._ended:
                self.failed[f"{what}: {type(error).__name__}: {error}"] += 1

    def end(self) -> None:
        """Users that are still busy find their files removed and their session closed."""
        with self._lock:
            self._ended = True


def counted(back_end: type, tally: Tally) -> type:
    """The same back end, whose ends are counted: the benchmark swallows what a back end raises."""

    class Counted(back_end):  # type: ignore[misc]
        def write(self, key: str, data: Any) -> Any:
            try:
                timing = super().write(key, data)
            except Exception as error:
                tally.lost("write", error)
                raise
            tally.moved("write", data.nbytes)
            return timing

        def read(self, key: str) -> Any:
            try:
                data, timing = super().read(key)
            except Exception as error:
                tally.lost("read", error)
                raise
            tally.moved("read", data.nbytes)
            return data, timing

        def delete(self, key: str) -> None:
            try:
                super().delete(key)
            except Exception as error:
                tally.lost("delete", error)
                raise

    return Counted


def kvrail_back_end(base: type, objects: Objects) -> type:
    """The benchmark's back end over objects. `base` is its `StorageBackend`, with `IOTiming`."""

    class KvrailBackend(base):  # type: ignore[misc]
        def __init__(self, base_path: str | None = None) -> None:
            self.base_path = Path(base_path or ".")
            self.clear()  # as the benchmark's back end removes the files of an earlier run

        def write(self, key: str, data: Any) -> Any:
            took = objects.write(key, data)
            return base.IOTiming(total=took.total, device=took.device, host=took.host)

        def read(self, key: str) -> Any:
            data, took = objects.read(key)
            return data, base.IOTiming(total=took.total, device=took.device, host=took.host)

        def delete(self, key: str) -> None:
            objects.delete(key)

        def clear(self) -> None:
            objects.clear()

    return KvrailBackend


def clocked(
    run: Callable[[Any], Any], clock: Clock, tally: Tally, took: dict[str, float]
) -> Callable[..., Any]:
    """The workload with a clock around it: what is prepared before does not count."""

    def timed(benchmark: Any) -> Any:
        clock.start()
        try:
            return run(benchmark)
        finally:
            tally.end()
            took["seconds"], took["cpu_seconds"] = clock.stop()

    return timed


def play(arm: str, given: argparse.Namespace) -> dict[str, Any]:
    """One turn, in this process: the benchmark's own program with another back end in its place."""
    sys.path.insert(0, str(Path(given.checkout) / "kv_cache_benchmark"))
    from kv_cache import backends, benchmark, cache, cli

    tally, took, session = Tally(), {}, None
    if arm == "files":
        cache.NVMeBackend = counted(backends.NVMeBackend, tally)
    else:
        session = kvrail.Client(given.socket, name="mlperf", timeout=300.0)
        objects = Objects(
            session,
            arena_bytes=int(given.arena_gib * GIB),
            part_bytes=int(given.part_mib * (1 << 20)),
            durable=arm == "kvrail",
        )
        cache.NVMeBackend = counted(kvrail_back_end(backends.StorageBackend, objects), tally)
    clock = Clock(given.pid if session else None)
    whole = benchmark.IntegratedBenchmark
    whole.run = clocked(whole.run, clock, tally, took)
    output = Path(given.result).with_name("benchmark.json")
    sys.argv = ["kv-cache.py", *given.passed, "--cache-dir", given.files, "--output", str(output)]
    cli.main()
    summary = json.loads(output.read_text())["summary"]
    if session is not None:
        session.close()
    return {"arm": arm, **figures(summary), **took, **ends_of(tally)}


def figures(summary: dict[str, Any]) -> dict[str, float | None]:
    """Ours by the names of the benchmark. None: it had no such request."""
    found: dict[str, float | None] = {}
    for name, path in FIGURES.items():
        value: Any = summary
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        found[name] = value
    return found


def ends_of(tally: Tally) -> dict[str, Any]:
    return {
        "read_bytes": tally.bytes["read"],
        "write_bytes": tally.bytes["write"],
        "failed": dict(tally.failed.most_common(3)),
        "failures": sum(tally.failed.values()),
    }


def passed_on(given: argparse.Namespace) -> list[str]:
    """Options of the benchmark: of a size, then those behind `--`, which prevail."""
    model, users, seconds, cpu_gib, allocs = OPTIONS.get(given.option, SMALL)
    config = Path(given.checkout) / "kv_cache_benchmark" / "config.yaml"
    fixed = ["--config", config, "--seed", 42, "--generation-mode", "none", "--gpu-mem-gb", 0]
    size = ["--model", model, "--num-users", users, "--duration", given.seconds or seconds]
    memory = ["--cpu-mem-gb", cpu_gib, "--max-concurrent-allocs", allocs]
    capacity = ["--storage-capacity-gb", given.capacity_gib, "--log-level", "ERROR"]
    return [str(word) for word in (*fixed, *size, *memory, *capacity, *given.more)]


def turn(arm: str, given: argparse.Namespace, served: kvrail.Sidecar) -> dict[str, Any]:
    """One turn in a process of its own. What the benchmark prints is shown if it fails."""
    with tempfile.TemporaryDirectory(prefix="mlperf-") as place, folder() as files:
        result = Path(place) / "turn.json"
        asked = vars(given) | {"socket": str(served.socket), "pid": served.pid, "turn": arm}
        asked |= {"passed": passed_on(given), "result": str(result), "files": files}
        command = [sys.executable, __file__, "--one", json.dumps(asked)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not result.exists():
            sys.exit(f"{arm}: exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr}")
        found: dict[str, Any] = json.loads(result.read_text())
    if found["failures"]:
        reasons = "; ".join(f"{count} x {why}" for why, count in found["failed"].items())
        sys.exit(f"{arm}: {found['failures']} reads or writes failed: {reasons}")
    print(line(found), file=sys.stderr)
    return found


def line(found: dict[str, Any]) -> str:
    """A turn, or the medians of an arm."""
    nothing = float("nan")
    shown = {name: nothing if value is None else value for name, value in found.items()}
    moved = (found["read_bytes"] + found["write_bytes"]) / GIB or nothing
    return (
        f"{found['arm']:12} read {shown['read_gib_s']:5.2f} GiB/s, "
        f"P95 device {shown['read_device_p95_ms']:5.0f} ms, all {shown['read_p95_ms']:5.0f}; "
        f"write {shown['write_gib_s']:5.2f} GiB/s, P95 device {shown['write_device_p95_ms']:5.0f} "
        f"ms, all {shown['write_p95_ms']:5.0f}; {shown['tokens_s']:6.0f} tokens/s; "
        f"CPU {shown['cpu_seconds']:5.1f} s, {shown['cpu_seconds'] / moved:.3f} s/GiB"
    )


def medians(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure; of even counts the mean of the two in the middle."""
    names = [name for name, value in turns[0].items() if not isinstance(value, str | dict)]
    values = {name: [it[name] for it in turns if it[name] is not None] for name in names}
    middle = {name: median(those) if those else None for name, those in values.items()}
    return {"arm": turns[0]["arm"], **middle}


def options() -> argparse.Namespace:
    about = __doc__.split("\n\n")[0]
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("checkout", help="a checkout of mlcommons/storage")
    parser.add_argument("--option", type=int, choices=OPTIONS, help="a whole option of MLPerf 3.0")
    parser.add_argument("--arms", default="files,kvrail", help=f"of {', '.join(ARMS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, help="of a turn's workload")
    parser.add_argument("--capacity-gib", type=float, default=8, help="of both arms' objects")
    parser.add_argument("--store-gib", type=float, help="bytes of kvrail's store")
    parser.add_argument("--part-mib", type=float, default=8, help="parts of an object")
    parser.add_argument("--arena-gib", type=float, default=3, help="memory of objects in flight")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    words, more = sys.argv[1:], []
    if "--" in words:
        at = words.index("--")
        words, more = words[:at], words[at + 1 :]
    given = parser.parse_args(words)
    given.more = more
    if unknown := set(given.arms.split(",")) - set(ARMS):
        parser.error(f"no arm {', '.join(sorted(unknown))}; there are {', '.join(ARMS)}")
    if not (Path(given.checkout) / "kv_cache_benchmark" / "kv_cache" / "backends.py").exists():
        parser.error(f"{given.checkout} has no kv_cache_benchmark/kv_cache/backends.py")
    return given


def main() -> int:
    if sys.argv[1:2] == ["--one"]:
        given = argparse.Namespace(**json.loads(sys.argv[2]))
        Path(given.result).write_text(json.dumps(play(given.turn, given)))
        return 0
    given = options()
    arms, rounds = given.arms.split(","), []
    store = given.store_gib or 1.4 * given.capacity_gib + 2
    with sidecar(f"{int(store * 1024)}MiB", f"{int(given.part_mib)}MiB", "256MiB") as served:
        for at in range(given.rounds):
            order = arms[:: -1 if at % 2 else 1]
            rounds += [turn(arm, given, served) for arm in order]
    middle = [medians([it for it in rounds if it["arm"] == arm]) for arm in arms]
    print(f"medians of {given.rounds}", *map(line, middle), sep="\n", file=sys.stderr)
    if given.format == "json":
        asked = {"arms": arms, "passed": passed_on(given), "load": os.getloadavg()[2]}
        found = {"machine": machine(), "asked": asked, "turns": rounds, "medians": middle}
        print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
