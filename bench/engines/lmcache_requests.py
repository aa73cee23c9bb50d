"""L2: kvrail beside LMCache's `fs_native`, both under LMCache's own server and its bench's client.

lmcache_requests.py [PASSES]: 50 requests of 8 MiB are stored through an L1 of 256 MiB in a shared
file, which is too small for them; then all are loaded, so often, and every object's digest is
compared. What LMCache dropped before its L2 had it is stored again, and counted. Arms take turns on
one disk, with direct I/O. A request's time is that of its lookup, in which the server loads the
objects, and of the copy to the client. CPU is that of the server and of the sidecar. JSON goes to
standard output, the thresholds to standard error.
"""

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kvrail._lmcache_server import CHUNK, TOKENS, Client, Loaded, Server, adapter
from measure import Verdicts, cpu_seconds, folder, median, p99, sidecar, write

REQUESTS, OBJECTS, REQUEST = 50, TOKENS // CHUNK, 8 << 20
STORES, PATIENCE_S = 4, 10.0


class Arm:
    """A server with its client, and what was measured."""

    def __init__(self, l2: dict[str, Any], log: Path, more: list[int]) -> None:
        self.name, self.server = log.stem, Server(l2, log)
        self._client, self._pids = Client(self.server), [self.server.pid, *more]
        self._digests: dict[int, list[str]] = {}
        self.told: dict[str, list[float]] = {"lookup": [], "copy": [], "whole": [], "cpu": []}
        self.differ = self.short = self.lost = 0

    def store(self) -> None:
        """All requests, until the L2 has each of them."""
        begun, cpu = time.perf_counter(), self._cpu()
        missing = list(range(REQUESTS))
        for _ in range(STORES):
            for number in missing:
                self._digests[number] = self._client.store(number)
            self.server.settle()
            self.told.setdefault("store", [time.perf_counter() - begun])
            self.told.setdefault("store_cpu", [self._cpu() - cpu])
            missing = [number for number in missing if self._whole(number) is None]
            self.lost += len(missing)
            if not missing:
                return
        sys.exit(f"{self.name}: requests {missing} are not in the L2 after {STORES} stores")

    def _whole(self, number: int) -> Loaded | None:
        """This request. While its L1 has no room LMCache finds nothing: it is asked again."""
        deadline = time.monotonic() + PATIENCE_S
        while (came := self._client.load(number)).hits < OBJECTS:
            if time.monotonic() > deadline:
                return None
            self.short += 1
            time.sleep(0.02)
        return came

    def load(self) -> None:
        """Each request once."""
        cpu = self._cpu()
        for number, wanted in self._digests.items():
            if (came := self._whole(number)) is None:
                sys.exit(f"{self.name}: request {number} does not come")
            self.differ += came.digests != wanted
            self.told["lookup"].append(came.lookup_s)
            self.told["copy"].append(came.retrieve_s)
            self.told["whole"].append(came.lookup_s + came.retrieve_s)
        self.told["cpu"].append(self._cpu() - cpu)

    def close(self) -> None:
        self._client.close()
        self.server.close()

    def _cpu(self) -> float:
        return sum(map(cpu_seconds, self._pids))


def main() -> int:
    passes, verdicts = int((sys.argv + ["4"])[1]), Verdicts()
    with ExitStack() as stack:
        served, place = stack.enter_context(sidecar("2GiB")), stack.enter_context(folder())
        files = {"type": "fs_native", "base_path": place, "use_odirect": True}
        assert served.pid is not None
        arms: dict[str, Arm] = {}
        for name, l2, more in (
            ("kvrail", adapter(served.socket), [served.pid]),
            ("fs_native", files, []),
        ):
            arms[name] = Arm(l2, Path(place) / f"{name}.log", more)
            stack.callback(arms[name].close)
        for arm in arms.values():
            arm.store()
        for turn in range(passes):
            for arm in list(arms.values())[:: -1 if turn % 2 else 1]:
                arm.load()
        copied = arms["kvrail"].server.adapter()["copied_bytes"]
    judge(verdicts, arms, copied)
    told = {
        name: arm.told | {"asked_again": [arm.short], "stored_again": [arm.lost]}
        for name, arm in arms.items()
    }
    about = {"passes": passes, "requests": REQUESTS, "bytes_a_request": REQUEST}
    return write(about | {"arms": told}, verdicts)


def judge(verdicts: Verdicts, arms: dict[str, Arm], copied: int) -> None:
    gib = REQUESTS * REQUEST / (1 << 30)
    for name, arm in arms.items():
        told = arm.told
        times = ", ".join(
            f"{what} p50 {1e3 * median(told[what]):.1f} ms p99 {1e3 * p99(told[what]):.1f} ms"
            for what in ("lookup", "copy", "whole")
        )
        print(
            f"     {name:10} {times}; {median(told['cpu']) / gib:.2f} CPU-s/GiB; store "
            f"{told['store'][0]:.1f} s, {told['store_cpu'][0] / gib:.2f} CPU-s/GiB; asked again "
            f"{arm.short} times, stored again {arm.lost}",
            file=sys.stderr,
        )
        verdicts.add("L2", f"{name}: requests with other bytes", arm.differ, "<=", 0)
    verdicts.add("L2", "bytes that kvrail copied", copied, "<=", 0)
    ours, theirs = arms["kvrail"].told, arms["fs_native"].told
    for what, limit in (("lookup", 0.7), ("whole", 0.7)):
        words = {"lookup": "lookup and load", "whole": "retrieve"}[what]
        late = p99(ours[what]) / p99(theirs[what])
        verdicts.add("L2", f"{words}, p99 over fs_native", late, "<=", limit)


if __name__ == "__main__":
    sys.exit(main())
