"""V2 and V3: kvrail beside vLLM's own tier of files, behind the same primary tier.

vllm_tier.py [ROUNDS]: chunks are stored, forgotten by the primary tier and loaded again, cold: both
arms go past the page cache. Arms take turns; CPU is that of this process and of the sidecar. JSON
goes to standard output, the thresholds to standard error.
"""

import sys
import time
from typing import Any

import numpy
from kvrail._vllm_tiers import Tiers, keys_of
from measure import Clock, Verdicts, folder, keep, median, p99, show, sidecar, write

SIZES = ((64, 2 << 20), (256, 640 << 10))
LOOKUPS, TURNS = 10_000, 6


def promotions(arms: dict[str, Tiers], count: int, size: int, rounds: int, pid: int) -> Any:
    """Seconds and CPU seconds of each load of all chunks, and of each store."""
    random = numpy.random.default_rng(1)
    told: dict[str, dict[str, list[float]]] = {
        name: {"load": [], "load_cpu": [], "store": [], "store_cpu": [], "steps": []}
        for name in arms
    }
    for turn in range(rounds):
        fresh = keys_of(range(1000 * (turn + 1), 1000 * (turn + 1) + count))
        content = random.integers(0, 256, (count, size), dtype=numpy.uint8)
        for name, tiers in list(arms.items())[:: -1 if turn % 2 else 1]:
            clock = Clock(pid if name == "kvrail" else None).start()
            tiers.store(fresh, content)
            tiers.settle()
            keep(told[name], "store", clock)
            for _ in range(TURNS):
                tiers.forget()
                clock = Clock(pid if name == "kvrail" else None).start()
                request, hits, steps = tiers.find(fresh)
                keep(told[name], "load", clock)
                told[name]["steps"].append(float(steps))
                if len(hits) != count or not tiers.same(fresh, content):
                    sys.exit(f"{name}: {len(hits)} of {count} chunks, or other bytes")
            tiers.forget()
    return told


def lookups(tier: dict[str, Any], *, ahead: bool) -> dict[str, float]:
    """Half of 10,000 keys are there: microseconds a key, and answers that are put off. vLLM's 0.30
    does not say ahead which keys a request has."""
    tiers = Tiers(tier, chunks=LOOKUPS // 2 + 2, chunk_bytes=4096, model="lookups")
    keys = keys_of(range(LOOKUPS))
    content = numpy.zeros((LOOKUPS // 2, 4096), numpy.uint8)
    tiers.store(keys[::2], content)
    tiers.settle()
    tiers.forget()
    request = tiers.request(keys if ahead else ())
    begun = time.perf_counter()
    answers = [tiers.tier.lookup(key, request).name for key in keys]
    seconds = time.perf_counter() - begun
    put_off = answers.count("RETRY")
    if not put_off and answers != ["HIT", "MISS"] * (LOOKUPS // 2):
        sys.exit(f"wrong answers: {answers.count('HIT')} hits of {LOOKUPS}")
    tiers.close()
    return {"us_per_key": seconds / LOOKUPS * 1e6, "put_off": put_off}


def main() -> int:
    rounds = int((sys.argv + ["5"])[1])
    verdicts, told = Verdicts(), {}
    with sidecar("2GiB") as served, folder() as place:
        ours = {"type": "Tier", "module_path": "kvrail.vllm", "socket": str(served.socket)}
        theirs = {"type": "fs", "root_dir": place}
        for count, size in SIZES:
            arms = {
                # The tier of files does not tell chunk sizes apart: another model does.
                name: Tiers(tier, chunks=count + 2, chunk_bytes=size, model=f"model-{size}")
                for name, tier in (("fs", theirs), ("kvrail", ours))
            }
            name = f"{count} x {size >> 10} KiB"
            told[name] = all_ = promotions(arms, count, size, rounds, served.pid)
            judge(verdicts, name, all_, count * size)
            copied = arms["kvrail"].tier.status()["copied_bytes"]
            verdicts.add("V2", f"{name}: bytes that kvrail copied", copied, "<=", 0)
            for tiers in arms.values():
                tiers.close()
    # As many entries in its index as blocks of that mean fit.
    with sidecar("1GiB", "16KiB") as served, folder() as place:
        ours, theirs = ours | {"socket": str(served.socket)}, {"type": "fs", "root_dir": place}
        told["lookups"] = looked = {
            "fs": lookups(theirs, ahead=True),
            "kvrail": lookups(ours, ahead=True),
            "kvrail, one by one": lookups(ours, ahead=False),
        }
        judge_lookups(verdicts, looked)
    return write({"rounds": rounds, "loads_a_round": TURNS, "arms": told}, verdicts)


def judge(verdicts: Verdicts, name: str, told: dict[str, Any], nbytes: int) -> None:
    ours, theirs = told["kvrail"], told["fs"]
    speed = median(theirs["load"]) / median(ours["load"])
    verdicts.add("V2", f"{name}: cold load, GB/s over fs", speed, ">=", 1.0)
    work = sum(theirs["load_cpu"]) / sum(ours["load_cpu"])
    verdicts.add("V2", f"{name}: cold load, GB/s per CPU-second over fs", speed * work, ">=", 4.0)
    late = p99(ours["load"]) / p99(theirs["load"])
    verdicts.add("V2", f"{name}: cold load, p99 over fs", late, "<=", 0.7)
    show(told, nbytes)


def judge_lookups(verdicts: Verdicts, told: dict[str, dict[str, float]]) -> None:
    verdicts.add("V3", "lookups that are put off", told["kvrail"]["put_off"], "<=", 0)
    verdicts.add("V3", "microseconds a lookup", told["kvrail"]["us_per_key"], "<=", 1.0)
    for name, it in told.items():
        words = f"{it['us_per_key']:.2f} us a lookup, {it['put_off']:.0f} of {LOOKUPS} put off"
        print(f"     {name}: {words}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
