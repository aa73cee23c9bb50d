"""What the measurements of engines share: a sidecar, CPU time of everybody, thresholds, a table."""

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kvrail

DISK = os.environ.get("KVRAIL_BENCH_DIR", "/var/tmp")


@contextmanager
def sidecar(
    store: str, block_mean: str = "512KiB", segment: str = "64MiB"
) -> Iterator[kvrail.Sidecar]:
    """A sidecar with a store on the disk that the other arms use too."""
    accept = {"memory.unsealed_imports": "accept", "device.direct": "required"}
    with kvrail.serve(
        store=store, directory=DISK, settings=accept, block_mean=block_mean, segment=segment
    ) as it:
        yield it


@contextmanager
def folder() -> Iterator[str]:
    """A folder on that disk."""
    with tempfile.TemporaryDirectory(dir=DISK, prefix="engines-") as name:
        yield name


def cpu_seconds(pid: int | None = None) -> float:
    """CPU time of a process, in nanoseconds' steps, or of this one."""
    if pid is None:
        return time.process_time()
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


@dataclass
class Clock:
    """Time and CPU time between two moments, of this process and of a sidecar."""

    pid: int | None
    began: float = 0.0
    cpu: float = 0.0

    def start(self) -> "Clock":
        self.cpu, self.began = self._cpu(), time.perf_counter()
        return self

    def stop(self) -> tuple[float, float]:
        """Seconds, and CPU seconds."""
        seconds = time.perf_counter() - self.began
        return seconds, self._cpu() - self.cpu

    def _cpu(self) -> float:
        return cpu_seconds() + (cpu_seconds(self.pid) if self.pid else 0.0)


def keep(told: dict[str, list[float]], what: str, clock: Clock) -> None:
    """Keeps what a clock shows as one of `what` and of its CPU."""
    seconds, cpu = clock.stop()
    told[what].append(seconds)
    told[f"{what}_cpu"].append(cpu)


@dataclass
class Verdicts:
    """Ratios with their thresholds, as they are printed and kept."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, test: str, what: str, value: float, bound: str, limit: float) -> None:
        """`bound` is ">=" or "<="."""
        held = value >= limit if bound == ">=" else value <= limit
        row = {"test": test, "what": what, "value": round(value, 4), "bound": f"{bound} {limit}"}
        self.rows.append(row | {"held": held})
        word = "ok" if held else "MISSED"
        print(f"{test:4} {word:7} {what}: {value:.3g} ({bound} {limit})", file=sys.stderr)

    def held(self) -> bool:
        return all(row["held"] for row in self.rows)


def median(values: list[float]) -> float:
    return statistics.median(values)


def p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


def show(told: dict[str, dict[str, list[float]]], nbytes: int) -> None:
    """A line for each arm: stores and loads of so many bytes."""
    gb, width = nbytes / 1e9, max(map(len, told))
    for arm, all_ in told.items():
        load_cpu, store_cpu = (statistics.mean(all_[f"{what}_cpu"]) for what in ("load", "store"))
        print(
            f"     {arm:{width}} load {gb / median(all_['load']):6.2f} GB/s, "
            f"{load_cpu / gb:.3f} CPU-s/GB, p99 {1e3 * p99(all_['load']):.0f} ms; "
            f"store {gb / median(all_['store']):6.2f} GB/s, {store_cpu / gb:.3f} CPU-s/GB",
            file=sys.stderr,
        )


def machine() -> dict[str, Any]:
    """Where this was measured."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return {
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "cpu": (models or ["unknown"])[0],
        "python": platform.python_version(),
    }


def write(told: dict[str, Any], verdicts: Verdicts) -> int:
    """Prints all of it as JSON; the exit status says whether every threshold was held."""
    print(json.dumps({"machine": machine()} | told | {"verdicts": verdicts.rows}, indent=1))
    return 0 if verdicts.held() else 1
