"""A paged MLA cache in GPU memory, stored by key, and got back by another process.

    python kvrail_paged.py [--layers 61] [--blocks 64]

A writer process fills the latent cache of every layer in fp8 (16 tokens of 656 bytes a page:
640,256 bytes a block of 61 layers), puts half of its blocks by key, and ends. This process gets
them into other blocks of a cache of its own and compares every byte. Then one byte is changed on
the drive: that block is a miss, and no other.
"""

import argparse
import mmap
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import kvrail
import torch
from kvrail import paged

SEED, TOKENS, TOKEN_BYTES = 20, 16, 656
IDENTITY = {"model": "an MLA model", "dtype": "fp8_e4m3", "tokens": TOKENS, "layers": 61}


def cache(layers: int, blocks: int) -> list[torch.Tensor]:
    shape = (blocks, TOKENS, TOKEN_BYTES)
    return [torch.zeros(shape, dtype=torch.float8_e4m3fn, device="cuda") for _ in range(layers)]


def fill(tensors: list[torch.Tensor]) -> None:
    """The same bytes in every process."""
    generator = torch.Generator("cuda").manual_seed(SEED)
    for tensor in tensors:
        tensor.view(torch.uint8).random_(0, 256, generator=generator)


def keys(blocks: int) -> list[bytes]:
    return [f"block {at}".encode() for at in range(0, blocks, 2)]


def write(socket: str, layers: int, blocks: int) -> None:
    stream, tensors = torch.cuda.Stream(), cache(layers, blocks)
    with kvrail.Client(socket) as client:
        space = client.store("kv").namespace("paged", IDENTITY)
        with paged.Cache(client, space, tensors) as its, torch.cuda.stream(stream):
            fill(tensors)  # nothing is synchronized: the put follows it on the stream
            began = time.perf_counter()
            results = its.put(keys(blocks), range(0, blocks, 2), stream=stream)
            seconds = time.perf_counter() - began
            gb = len(results) * its.block_bytes / 1e9
            print(f"put {len(results)} blocks of {its.block_bytes:,} bytes, checked by the "
                  f"{its.check}: {results.counts}, {gb / seconds:.1f} GB/s")
            results.check()


def read(client: kvrail.Client, tensors: list[torch.Tensor], blocks: int) -> paged.Results:
    """Into the other half of the blocks; every byte of those that are OK."""
    wanted, stream = cache(len(tensors), blocks), torch.cuda.Stream()
    fill(wanted)
    torch.cuda.synchronize()
    space = client.store("kv").namespace("paged", IDENTITY)
    with paged.Cache(client, space, tensors) as its, torch.cuda.stream(stream):
        for tensor in tensors:
            tensor.zero_()
        results = its.get(keys(blocks), range(1, blocks, 2), stream=stream)
        for at, ok in enumerate(results.ok):
            for index, (tensor, whole) in enumerate(zip(tensors, wanted, strict=True)):
                bits, must = (it.view(torch.uint8) for it in (tensor, whole))
                if ok and not torch.equal(bits[2 * at + 1], must[2 * at]):
                    sys.exit(f"block {at}: other bytes in layer {index}")
                if bits[2 * at].any():
                    sys.exit(f"block {2 * at}, which was not requested, has bytes in layer {index}")
    return results


def change(folder: str, layers: int, blocks: int, block: int) -> None:
    """One byte of one block on the drive."""
    wanted = cache(layers, blocks)
    fill(wanted)
    begin = bytes(wanted[0].view(torch.uint8)[block].flatten()[:64].cpu().numpy())
    for path in Path(folder).glob("*.img"):
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as image:
            at = image.find(begin)
            if at >= 0:
                image[at + 300_000] ^= 1
                image.flush()
                print(f"changed one bit of {path.name} at {at + 300_000}")
                return
    sys.exit("the block is not on the drive")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=61)
    parser.add_argument("--blocks", type=int, default=64)
    parser.add_argument("--write", metavar="SOCKET", help=argparse.SUPPRESS)
    its = parser.parse_args()
    if its.write:
        write(its.write, its.layers, its.blocks)
        return
    print(torch.cuda.get_device_name())
    with tempfile.TemporaryDirectory() as folder, kvrail.serve(
        store="1GiB", segment="64MiB", block_mean="512KiB", path=folder
    ) as sidecar:
        sizes = ["--layers", str(its.layers), "--blocks", str(its.blocks)]
        subprocess.run([sys.executable, __file__, "--write", sidecar.socket, *sizes], check=True)
        with sidecar.attach() as client:
            tensors = cache(its.layers, its.blocks)
            results = read(client, tensors, its.blocks)
            if not results.all_ok:
                sys.exit(f"not all came back: {results.counts}")
            print(f"another process got {len(results)} blocks: every byte is equal")
            change(folder, its.layers, its.blocks, 10)
            words = list(read(client, tensors, its.blocks))
            if words != ["MISS" if at == 5 else "OK" for at in range(len(words))]:
                sys.exit(f"the changed block is number 5: {words}")
            print("with one bit changed on the drive that block is a miss, and no other")


if __name__ == "__main__":
    main()
