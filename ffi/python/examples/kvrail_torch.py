"""KV blocks of PyTorch's tensors to a volume and back, within and across processes.

    python kvrail_torch.py [--layers 32] [--blocks 128]

A sidecar serves GPU 0. A writer process fills K and V of every layer, writes half of the blocks,
clears the tensors, reads the blocks into other indices and compares every byte. This process reads
the same blocks into tensors of its own: while the writer lives, and after it was killed in the
middle of more writes.
"""

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import kvrail
import torch

SEED = 20
TOKENS, HEADS, SIZE = 16, 8, 128


def cache(layers: int, blocks: int) -> list[torch.Tensor]:
    """K and V of every layer, paged: 32 KiB of each block in each."""
    shape = (blocks, TOKENS, HEADS, SIZE)
    return [torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2 * layers)]


def fill(tensors: list[torch.Tensor]) -> None:
    """The same bytes in every process."""
    generator = torch.Generator("cuda").manual_seed(SEED)
    for tensor in tensors:
        tensor.view(torch.int16).random_(-32768, 32768, generator=generator)
    torch.cuda.synchronize()  # the sidecar does not see streams


def clear(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.zero_()
    torch.cuda.synchronize()


def check(what: str, tensors: list[torch.Tensor], at: torch.Tensor, wanted: list) -> None:
    """Every byte of these blocks, and that every other block is still clear."""
    others = torch.ones(len(tensors[0]), dtype=torch.bool, device="cuda")
    others[at] = False
    for index, (tensor, bytes_of) in enumerate(zip(tensors, wanted, strict=True)):
        bits = tensor.view(torch.int16)
        if not torch.equal(bits[at], bytes_of) or bits[others].any():
            sys.exit(f"{what}: other bytes in tensor {index}")


def halves(blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks to be written, and the other ones, into which they come back."""
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(SEED))
    return order[: blocks // 2], order[blocks // 2 :]


def moving(client: kvrail.Client, tensors: list[torch.Tensor]) -> tuple:
    """A region, its volume, and where in the volume each block belongs."""
    region, volume = client.gpu_region(tensors), client.volume("kv")
    there, back = halves(region.blocks)
    offsets = (torch.arange(len(there)) * region.block_bytes).numpy()
    return region, volume, offsets, there, back


def expected(tensors: list[torch.Tensor], there: torch.Tensor) -> list[torch.Tensor]:
    fill(tensors)
    wanted = [tensor.view(torch.int16)[there].clone() for tensor in tensors]
    clear(tensors)
    return wanted


def write(socket: str, layers: int, blocks: int) -> None:
    """The writer: prints `ready` once all is written and compared, then writes until killed."""
    tensors = cache(layers, blocks)
    with kvrail.Client(socket, name="writer") as client:
        region, volume, offsets, there, back = moving(client, tensors)
        wanted = expected(tensors, there)
        fill(tensors)
        volume.write_blocks(region, offsets, there.numpy())
        clear(tensors)
        volume.read_blocks(region, offsets, back.numpy())
        check("the writer", tensors, back, wanted)
        print("ready", flush=True)
        beyond = offsets + volume.capacity // 2 // region.block_bytes * region.block_bytes
        with volume.open_queue(256) as queue:
            while True:
                queue.write_blocks(region, beyond, back.numpy(), priority="background")
                queue.wait()


@contextmanager
def writer(socket: str, layers: int, blocks: int) -> Iterator[subprocess.Popen]:
    command = [sys.executable, __file__, "--layers", str(layers), "--blocks", str(blocks)]
    with subprocess.Popen([*command, "--write", socket], stdout=subprocess.PIPE) as process:
        try:
            if process.stdout.readline() != b"ready\n":
                sys.exit(f"the writer ended with {process.wait()}")
            yield process
        finally:
            process.kill()


def wait_until_alone(client: kvrail.Client) -> None:
    """Waits until the sidecar has released the dead writer's memory."""
    deadline = time.monotonic() + 30
    while client.status()["gpus"][0]["regions"] > 1:
        if time.monotonic() > deadline:
            sys.exit("the dead writer's memory is not let go")
        time.sleep(0.01)


def show(layers: int, blocks: int) -> None:
    settings = {"gpu.devices": '["0"]'}
    with kvrail.serve("1GiB", settings=settings) as sidecar, sidecar.attach() as client:
        (gpu,) = client.gpus
        print(f"{gpu['name']}, PyTorch {torch.__version__}, Linux {platform.release()}")
        with writer(str(sidecar.socket), layers, blocks) as process:
            print("writer: written, cleared, read into other blocks: every byte equal")
            tensors = cache(layers, blocks)
            region, volume, offsets, there, back = moving(client, tensors)
            parts = f"{2 * layers} parts of {region.block_bytes // (2 * layers)} bytes"
            print(f"{len(there)} of {blocks} blocks of {region.block_bytes} bytes in {parts}")
            print(f"route: {': '.join(region.route(volume))}")
            wanted = expected(tensors, there)
            volume.read_blocks(region, offsets, back.numpy())
            check("a second process", tensors, back, wanted)
            print("a second process: every byte equal")
            process.kill()
            process.wait()
        clear(tensors)
        volume.read_blocks(region, offsets, there.numpy())
        check("after the writer was killed", tensors, there, wanted)
        print("after the writer was killed with writes in flight: every byte equal")
        wait_until_alone(client)
        print("the sidecar has let go of the writer's memory")
        region.close()
        failed = client.status()["gpus"][0]["failed"]
        print(f"GPU jobs that failed: {failed}")
        if failed:
            sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description="KV blocks of PyTorch's tensors and back.")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=128)
    parser.add_argument("--write", metavar="SOCKET", help="be the writer, for this sidecar")
    chosen = parser.parse_args()
    if chosen.write:
        write(chosen.write, chosen.layers, chosen.blocks)
    else:
        show(chosen.layers, chosen.blocks)


if __name__ == "__main__":
    main()
