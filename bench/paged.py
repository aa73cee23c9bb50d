"""Verified gets of paged blocks by key, against the same blocks of a volume that nobody verifies.

    python bench/paged.py [--dir FOLDER ...] [--rounds 5] [--layers 64] [--run-bytes 32768]

One sidecar serves a volume and a store over files in these folders, and the GPU. Arms take turns,
in another order each round: a disk may remember what the arm before asked of it. Each reads the
same number of blocks into pages of one cache of CUDA tensors:

- volume: the sidecar stages the blocks and copies them to the GPU; nothing is verified.
- keyed, gpu: by key, checked on the GPU (`kvrail.paged`).
- keyed, host: by key, checked in pinned memory.

GB/s and CPU seconds for each GiB: of both processes, and of the whole machine (what its cores were
not idle), which has the drives' kernel threads too. Ratios to the volume's are medians of ratios
within a round, with quartiles for GB/s. Every block is compared after each turn.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import kvrail
import torch
from kvrail import paged
from kvrail._binary import binary

GIB = 1 << 30


class Sidecar:
    """A volume and a store on the same drives."""

    def __init__(self, home: Path, folders: list[Path], nbytes: int, stripe: str) -> None:
        self.socket = home / "s"
        # Keys fall on the drives unevenly: with room for a quarter more a store of four evicted
        # blocks in 6 of 60 runs.
        size = f"{(2 * nbytes >> 20) + 256}MiB"
        config = f'sidecar.socket = "{self.socket}"\nmetrics.listen = "off"\n'
        config += f'device.direct = "optional"\ngpu.devices = ["0"]\n'
        self.files: list[str] = []
        try:
            config += self._volumes(folders, size, stripe)
            self._serve(home, config)
        except BaseException:
            self._remove()
            raise

    def _volumes(self, folders: list[Path], size: str, stripe: str) -> str:
        """Makes both, for a configuration."""
        config = ""
        for name, kind in (("raw", []), ("kv", ["--kind", "store", "--block-mean", "1MiB"])):
            kind = kind or ["--stripe", stripe]
            files = [str(folder / f"kvrail-{name}.img") for folder in folders]
            command = ["volume", "create", name, *kind, "--size", size, "--quiet"]
            run = [str(binary()), *command, "--direct", "optional", *files]
            # What was there before is not ours.
            self.files += [it for it in files if not Path(it).exists()]
            done = subprocess.run(run, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
            config += f'[[volume]]\nname = "{name}"\nmembers = {json.dumps(files)}\n'
        return config

    def _serve(self, home: Path, config: str) -> None:
        (home / "kvrail.toml").write_text(config)
        serve = ["serve", "--exit-with-parent", f"--config={home / 'kvrail.toml'}"]
        self._log = (home / "log").open("wb")
        self._process = subprocess.Popen(
            [str(binary()), *serve], stdout=self._log, stderr=self._log
        )
        until = time.monotonic() + 60
        while True:
            try:
                kvrail.Client(self.socket).close()
                return
            except kvrail.NoSidecarError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise SystemExit((home / "log").read_text()) from None
                time.sleep(0.05)

    def cpu_s(self) -> float:
        # Its CPU clock (clock_getcpuclockid): /proc counts in 10 ms, a quarter of a short turn.
        return time.clock_gettime(~self._process.pid << 3 | 2)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._remove()

    def _remove(self) -> None:
        for file in self.files:
            Path(file).unlink(missing_ok=True)


def busy_s(began: float) -> float:
    """What all cores were not idle since then, up to a constant."""
    fields = Path("/proc/stat").read_text().split(maxsplit=6)
    idle = (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
    return (time.perf_counter() - began) * (os.cpu_count() or 1) - idle


def measured(sidecar: Sidecar, nbytes: int, arm: Callable[[], object]) -> tuple[float, ...]:
    """GB/s, and CPU seconds of both processes, and of the machine, for each GiB."""
    began = time.perf_counter()
    ours, all_cores = sidecar.cpu_s() + time.process_time(), busy_s(began)
    arm()
    seconds = time.perf_counter() - began
    ours, all_cores = sidecar.cpu_s() + time.process_time() - ours, busy_s(began) - all_cores
    return nbytes / seconds / 1e9, ours * GIB / nbytes, all_cores * GIB / nbytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dir", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=256)
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--run-bytes", type=int, default=32_768)
    parser.add_argument("--times", type=int, default=16, help="gets of all blocks in one turn")
    parser.add_argument("--depth", type=int, default=16, help="blocks in flight at the drives")
    parser.add_argument("--staging", type=int, default=32, help="MiB of pinned memory")
    its = parser.parse_args()
    folders = [Path(it) for it in its.dir or [tempfile.gettempdir()]]
    with tempfile.TemporaryDirectory() as home:
        run(its, Path(home), folders)


def read_all(queue: kvrail.Queue, region: kvrail.GpuRegion, offsets: list, blocks: list) -> None:
    """Reads blocks of a volume with a full queue."""
    begun = 0
    while begun < len(blocks) or queue.outstanding:
        if begun < len(blocks):
            begun += len(queue.read_blocks(region, offsets[begun:], blocks[begun:]))
        for end in queue.wait():
            end.check()


def run(its: argparse.Namespace, home: Path, folders: list[Path]) -> None:
    blocks, block_bytes = its.blocks, its.layers * its.run_bytes
    nbytes = blocks * block_bytes
    volume_block = -(-block_bytes // 4096) * 4096
    sidecar = Sidecar(home, folders, blocks * volume_block, f"{volume_block >> 10}KiB")
    tensor = torch.empty((its.layers, blocks, its.run_bytes), dtype=torch.uint8, device="cuda")
    tensor.random_(0, 256)
    whole, tensors = tensor.clone(), list(tensor)
    torch.cuda.synchronize()
    keys = kvrail.Keys([f"block {at}".encode() for at in range(blocks)])
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(1)).tolist()
    with kvrail.Client(sidecar.socket) as client:
        volume, space = client.volume("raw"), client.store("kv").namespace("bench", {"model": "m"})
        on_gpu, on_host = (
            paged.Cache(
                client,
                space,
                tensors,
                check=check,
                depth=its.depth,
                staging_bytes=its.staging << 20,
            )
            for check in ("auto", "host")
        )
        on_gpu.put(keys, range(blocks)).check()
        # Runs of a length that no drive takes are not to be had of a volume.
        region = client.gpu_region(tensors) if block_bytes % 4096 == 0 else None
        arms: dict[str, Callable[[], object]] = {}
        if region is not None:
            offsets = [at * block_bytes for at in range(blocks)]
            volume.write_blocks(region, offsets, range(blocks))
            mine = [offsets[at] for at in order]
            queue = volume.open_queue(its.depth)
            arms["volume"] = lambda: read_all(queue, region, mine, order)
        shuffled = kvrail.uniform([keys[at] for at in order])
        arms["keyed, gpu"] = lambda: on_gpu.get(shuffled, order).check()
        arms["keyed, host"] = lambda: on_host.get(shuffled, order).check()
        for arm in arms.values():
            arm()
        table: dict[str, list[tuple[float, ...]]] = {name: [] for name in arms}
        for number in range(its.rounds):
            for name, arm in random.Random(number).sample(list(arms.items()), len(arms)):
                tensor.zero_()
                torch.cuda.synchronize()

                def turn(arm: Callable[[], object] = arm) -> None:
                    for _ in range(its.times):
                        arm()

                figures = measured(sidecar, nbytes * its.times, turn)
                table[name].append(figures)
                torch.cuda.synchronize()
                if not torch.equal(tensor, whole):
                    raise SystemExit(f"{name}: other bytes")
        report(its, folders, block_bytes, table, region and region.route(volume), on_gpu.check)
        on_gpu.close()
        on_host.close()
    sidecar.stop()


def report(its, folders, block_bytes, table, route, check) -> None:
    print(f"{torch.cuda.get_device_name()}, {os.cpu_count()} cores, {platform.release()}, "
          f"kvrail {kvrail.__version__}")
    print(f"{its.blocks} blocks of {block_bytes:,} bytes in {its.layers} runs, {its.rounds} rounds "
          f"of {its.times}, {len(folders)} drives; volume: {route}; check: {check}\n")
    print("| arm | GB/s | / volume | processes, CPU s/GiB | / volume | machine | / volume |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, figures in table.items():
        row = [name]
        for at, values in enumerate(zip(*figures, strict=True)):
            row.append(f"{statistics.median(values):.3f}")
            pairs = zip(values, (it[at] for it in table.get("volume", [])), strict=False)
            ratios = [mine / base for mine, base in pairs if base]
            row.append(f"{statistics.median(ratios):.3f}" if ratios else "-")
            if at == 0 and len(ratios) > 1:
                low, _, high = statistics.quantiles(ratios, n=4)
                row[-1] += f" ({low:.2f} to {high:.2f})"
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
