"""Gets of hot blocks into GPU pages, against a plain copy of the same bytes from pinned memory.

    python bench/paged_hot.py [--dir FOLDER] [--rounds 7] [--layers 64] [--run-bytes 32768]

A sidecar with a memory tier has all blocks in it. Arms take turns, in another order each round:

- plain: the driver's own copies (`cuMemcpyHtoDAsync`) out of pinned memory into GPU memory, one for
  each block's bytes, on one stream, awaited at the end. Nothing is verified.
- hot: `kvrail.paged` reads the blocks where the tier has them, and checks them on the GPU.
- hot, by a kernel: the same for runs that copy engines do not take together.
- staged: the same blocks by way of the client's pinned memory, as before a tier could be lent.

GB/s, ratios to the plain copy within a round, and CPU seconds of this process for each GiB. All
blocks are compared after each turn.
"""

import argparse
import ctypes
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable

import kvrail
import torch
from kvrail import _cuda, paged

GIB = 1 << 30


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dir", default=tempfile.gettempdir())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--blocks", type=int, default=256)
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--run-bytes", type=int, default=32_768)
    parser.add_argument("--times", type=int, default=8, help="gets of all blocks in one turn")
    parser.add_argument("--tier-gib", type=int, default=16, help="its blocks limit the views")
    parser.add_argument("--one", action="store_true", help="a get for each block, one by one")
    return parser.parse_args()


def plain(blocks: int, nbytes: int) -> Callable[[], None]:
    pinned = torch.empty(blocks * nbytes, dtype=torch.uint8, pin_memory=True).random_(0, 256)
    target = torch.empty(blocks * nbytes, dtype=torch.uint8, device="cuda")
    stream, driver = torch.cuda.Stream(), _cuda.load()
    handle, each = ctypes.c_void_p(stream.cuda_stream), ctypes.c_size_t(nbytes)

    def arm() -> None:
        for at in range(0, blocks * nbytes, nbytes):
            to, from_ = ctypes.c_uint64(target.data_ptr() + at), pinned.data_ptr() + at
            driver.call("cuMemcpyHtoDAsync_v2", to, ctypes.c_void_p(from_), each, handle)
        stream.synchronize()

    return arm


def warm(space: kvrail.Namespace, keys: kvrail.Keys) -> None:
    """Has all blocks come into the memory tier."""
    until, missing = time.monotonic() + 120, list(range(len(keys)))
    while missing:
        if time.monotonic() > until:
            raise SystemExit(f"{len(missing)} blocks do not come into the memory tier")
        space.lookup(kvrail.uniform([keys[at] for at in missing]), fetch=True)
        time.sleep(0.05)
        missing = [at for at in missing if not space._views(keys[at : at + 1])]


def main() -> None:
    its = options()
    block_bytes = its.layers * its.run_bytes
    nbytes = its.blocks * block_bytes
    settings = {"memory_tier.bytes": f"{its.tier_gib}GiB"}
    more = {"block_mean": f"{block_bytes >> 10}KiB", "settings": settings}
    with (
        kvrail.serve(store=f"{(4 * nbytes >> 20) + 1024}MiB", directory=its.dir, **more) as sidecar,
        sidecar.attach() as client,
    ):
        run(its, client, nbytes)


def run(its: argparse.Namespace, client: kvrail.Client, nbytes: int) -> None:
    blocks, run_bytes = its.blocks, its.run_bytes
    space = client.store("kv").namespace("bench", {"model": "m"})
    memory = torch.empty((its.layers, blocks, run_bytes), dtype=torch.uint8, device="cuda")
    memory.random_(0, 256)
    whole, keys = memory.clone(), kvrail.uniform([os.urandom(16) for _ in range(blocks)])
    torch.cuda.synchronize()
    # Downwards no copy takes two runs: the same bytes, in another order of layers.
    caches = {
        "hot": paged.Cache(client, space, list(memory)),
        "hot, by a kernel": paged.Cache(client, space, list(memory)),
        "staged": paged.Cache(client, space, list(memory)),
    }
    its.views, began = space._views_left(), time.monotonic()
    while caches["hot"].route != "memory tier":
        if time.monotonic() > began + 60:
            raise SystemExit(caches["hot"].route)
        time.sleep(0.01)
    type(caches["hot"]._mover).copies = property(lambda mover: mover is not by_kernel)
    by_kernel = caches["hot, by a kernel"]._mover
    caches["staged"]._mover._lent.give_back()
    caches["staged"]._mover._lent = None
    caches["hot"].put(keys, range(blocks)).check()
    warm(space, keys)
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(1)).tolist()
    shuffled = kvrail.uniform([keys[at] for at in order])

    def get(cache: paged.Cache) -> Callable[[], None]:
        if its.one:
            pairs = [(shuffled[at : at + 1], [page]) for at, page in enumerate(order)]
            return lambda: [cache.get(key, page).check() for key, page in pairs]
        return lambda: cache.get(shuffled, order).check()

    arms = {"plain": plain(blocks, nbytes // blocks)}
    arms |= {name: get(cache) for name, cache in caches.items()}
    table = measure(its, arms, nbytes, (memory, whole))
    print(f"{torch.cuda.get_device_name()}, {os.cpu_count()} cores, {platform.release()}, "
          f"kvrail {kvrail.__version__}")
    print(f"{blocks} blocks of {nbytes // blocks:,} bytes in {its.layers} runs, {its.rounds} "
          f"rounds of {its.times}, {its.views} views\n")
    print("| arm | GB/s | / plain (quartiles) | CPU s/GiB |")
    print("| --- | --- | --- | --- |")
    for name, rows in table.items():
        rates, cpu = zip(*rows, strict=True)
        ratios = [mine / base for mine, (base, _) in zip(rates, table["plain"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"| {name} | {statistics.median(rates):.2f} | {middle:.3f} ({low:.3f} to {high:.3f}) "
              f"| {statistics.median(cpu):.4f} |", flush=True)
    for cache in caches.values():
        cache.close()


def measure(its, arms, nbytes, tensors) -> dict[str, list[tuple[float, float]]]:
    memory, whole = tensors
    for arm in arms.values():
        arm()
    table: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for number in range(its.rounds):
        for name, arm in random.Random(number).sample(list(arms.items()), len(arms)):
            memory.zero_()
            torch.cuda.synchronize()
            began, cpu = time.perf_counter(), time.process_time()
            for _ in range(its.times):
                arm()
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
            rate = nbytes * its.times / seconds / 1e9
            table[name].append((rate, cpu * GIB / (nbytes * its.times)))
            torch.cuda.synchronize()
            if name != "plain" and not torch.equal(memory, whole):
                raise SystemExit(f"{name}: other bytes")
    return table


if __name__ == "__main__":
    main()
