"""Lookups from Python that ask nobody: one key, and a thousand in one call.

presence.py [BLOCKS]: a store has so many blocks, and half of the keys asked for; the sidecar is
stopped meanwhile. JSON goes to standard output, the thresholds to standard error.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

import kvrail
import numpy
from measure import DISK, Verdicts, p99, write

SINGLES, MANY, TURNS = 100_000, 1000, 2000


def quantiles(ns: list[int]) -> dict[str, float]:
    us = sorted(it / 1000 for it in ns)
    return {"p50_us": us[len(us) // 2], "p99_us": p99(us), "max_us": us[-1]}


def singles(space: kvrail.Namespace, names: list[bytes], *, there: bool) -> dict[str, float]:
    """Each call timed by itself; reading the clock is part of it."""
    took, clock, probe = [], time.perf_counter_ns, space.probe
    for at in range(SINGLES):
        name = names[at * 7919 % len(names)]
        began = clock()
        answer = probe(name)
        took.append(clock() - began)
        if answer is not there:
            sys.exit(f"{name!r} is {answer}, not {there}")
    return quantiles(took)


def many(space: kvrail.Namespace, calls: Sequence[Any]) -> dict[str, float]:
    took, clock = [], time.perf_counter_ns
    for turn in range(TURNS):
        keys = calls[turn % len(calls)]
        began = clock()
        probed = space.probe_many(keys)
        took.append(clock() - began)
        if probed.prefix != MANY // 2 or probed.unknown:
            sys.exit(f"{probed}, not half of them")
    return quantiles(took)


def measure(space: kvrail.Namespace, there: list[bytes], gone: list[bytes]) -> dict[str, Any]:
    half = MANY // 2
    starts = range(0, min(len(there), 100_000) - half, half)
    calls = [there[at : at + half] + gone[at : at + half] for at in starts]
    return {
        "hit": singles(space, there, there=True),
        "miss": singles(space, gone, there=False),
        "1000 names": many(space, calls),
        "1000 keys, made before": many(space, [kvrail.Keys(names) for names in calls]),
    }


def main() -> int:
    blocks = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    hashes = numpy.random.default_rng(1).bytes(2 * blocks * 32)
    names = [hashes[at : at + 32] for at in range(0, len(hashes), 32)]
    there, gone = names[:blocks], names[blocks:]
    size, mean = f"{blocks // 1024 + 512}MiB", "1KiB"
    with kvrail.serve(store=size, directory=DISK, block_mean=mean) as sidecar:
        client = sidecar.attach()
        space = client.store("kv").namespace("presence", {"model": "m"})
        for first in range(0, blocks, 4000):
            keys = there[first : first + 4000]
            while not space.put_many(keys, numpy.zeros((len(keys), 512), numpy.uint8)).all_ok:
                time.sleep(0.001)
        space.probe(names[0])
        os.kill(sidecar.pid or 0, signal.SIGSTOP)  # deeper asleep than it ever is
        try:
            told = measure(space, there, gone)
        finally:
            os.kill(sidecar.pid or 0, signal.SIGCONT)
        client.close()
    verdicts = Verdicts()
    for what in ("hit", "miss"):
        verdicts.add("P1", f"one name, {what}, p50 us", told[what]["p50_us"], "<=", 1)
        verdicts.add("P1", f"one name, {what}, p99 us", told[what]["p99_us"], "<=", 5)
    for what in ("1000 names", "1000 keys, made before"):
        verdicts.add("P2", f"{what}, p50 us", told[what]["p50_us"], "<=", 50)
    return write({"blocks": blocks} | told, verdicts)


if __name__ == "__main__":
    sys.exit(main())
