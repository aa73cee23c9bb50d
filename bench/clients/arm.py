"""The Python arm of run.py, as bench/examples/client_arm.rs, and that with blocks of 1 MiB.

arm.py SOCKET VOLUME latency|batch|large SECONDS
"""

import json
import sys
import time

import kvrail
import numpy

BATCH, BLOCK, SMALL, LARGE, DEPTH = 64, 256 << 10, 4096, 1 << 20, 16


def latency(volume: kvrail.Volume, arena: kvrail.Arena, seconds: float) -> dict[str, float]:
    """Median of single reads, one after the other."""
    span = min(volume.capacity, 64 << 20) // SMALL
    samples, offset, clock = [], 0, time.perf_counter_ns
    end = clock() + int(seconds * 1e9)
    while (before := clock()) < end:
        offset = (offset + 7919) % span
        before = clock()
        volume.read(arena, offset * SMALL, SMALL)
        samples.append(clock() - before)
    return {"p50_ns": sorted(samples)[len(samples) // 2]}


def batch(
    volume: kvrail.Volume, arena: kvrail.Arena, seconds: float, *, count: int, block: int
) -> dict[str, float]:
    """Throughput of batches, each waited for as a whole."""
    span = volume.capacity // block
    positions = numpy.arange(count) * block
    steps, offset, moved = numpy.arange(1, count + 1) * 7919, 0, 0
    start, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        volume.read_many(arena, (offset + steps) % span * block, positions, block)
        offset = (offset + count * 7919) % span
        moved += count * block
    elapsed = time.perf_counter() - start
    gib = moved / (1 << 30)
    return {"gib_per_s": gib / elapsed, "cpu_s_per_gib": (time.process_time() - cpu) / gib}


def large(volume: kvrail.Volume, arena: kvrail.Arena, seconds: float) -> dict[str, float]:
    """Blocks of 1 MiB, a new one whenever one has ended, as NIXL's arm does."""
    span = volume.capacity // LARGE
    offset = moved = 0
    with volume.open_queue(1024) as queue:
        start, cpu = time.perf_counter(), time.process_time()
        free = list(range(DEPTH))
        while time.perf_counter() - start < seconds:
            for place in free:
                offset = (offset + 7919) % span
                queue.read(arena, offset * LARGE, LARGE, place * LARGE, tag=place)
            ends = queue.wait()
            for end in ends:
                end.check()
            free = [end.tag for end in ends]
            moved += len(ends) * LARGE
        elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
    gib = moved / (1 << 30)
    return {"gib_per_s": gib / elapsed, "cpu_s_per_gib": cpu / gib}


def main() -> None:
    socket, name, workload, seconds = sys.argv[1:]
    with kvrail.Client(socket) as client:
        volume = client.volume(name)
        arena = client.create_arena(max(BATCH * BLOCK, DEPTH * LARGE))
        if workload == "latency":
            told = latency(volume, arena, float(seconds))
        elif workload == "batch":
            told = batch(volume, arena, float(seconds), count=BATCH, block=BLOCK)
        else:
            told = large(volume, arena, float(seconds))
    print(json.dumps(told))


main()
