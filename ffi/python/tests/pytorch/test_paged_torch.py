"""Keyed blocks of a paged cache on a real GPU: the kernels, streams, and bits that flip."""

import ctypes
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import kvrail
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no GPU", allow_module_level=True)

from kvrail import paged  # noqa: E402
from kvrail._mover import Way  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "kvrail_paged.py"
PAGES = 32


@pytest.fixture(scope="module")
def stores() -> Iterator[kvrail.Sidecar]:
    with kvrail.serve(store="1GiB", segment="64MiB", members=2) as sidecar:
        yield sidecar


@pytest.fixture
def client(stores) -> Iterator[kvrail.Client]:
    with stores.attach() as client:
        yield client


@pytest.fixture
def space(client, request) -> kvrail.Namespace:
    return client.store("kv").namespace(request.node.name[:64], {"model": "m"})


def tensors_of(layers: int, nbytes: int) -> list:
    made = [torch.empty((PAGES, nbytes), dtype=torch.uint8, device="cuda") for _ in range(layers)]
    for tensor in made:
        tensor.random_(0, 256)
    torch.cuda.synchronize()
    return made


def block(tensors: list, *pages: int) -> bytes:
    return b"".join(bytes(it[page].cpu().numpy()) for page in pages for it in tensors)


def keys(count: int) -> list[bytes]:
    return [f"key {at}".encode() for at in range(count)]


SHAPES = [(61, 10_496), (2, 512), (1, 528), (64, 32_768), (1, 131_072), (3, 131_088), (1, 5 << 20)]


@pytest.mark.parametrize(("layers", "nbytes"), SHAPES)
@pytest.mark.parametrize("check", ["auto", "host"])
def test_every_byte_and_the_hosts_own_check(client, space, layers, nbytes, check):
    tensors = tensors_of(layers, nbytes)
    wanted = [block(tensors, page) for page in range(6)]
    with paged.Cache(client, space, tensors, check=check) as its:
        assert its.check == ("gpu" if check == "auto" else "host: asked for")
        assert its.put(keys(6), range(6)).counts == {"OK": 6}
        assert [space.get(key) for key in keys(6)] == wanted
        space.put(b"host", wanted[3])
        for tensor in tensors:
            tensor.zero_()
        got = its.get([*keys(6), b"host", b"none"], [20, 19, 18, 17, 16, 15, 3, 2])
        assert list(got) == ["OK"] * 7 + ["MISS"]
        assert [block(tensors, page) for page in (20, 19, 18, 17, 16, 15)] == wanted
        assert block(tensors, 3) == wanted[3] and not any(block(tensors, 2))


def test_pages_whose_runs_lie_evenly_are_filled_by_copies(client, space):
    memory = torch.empty((64, PAGES, 32_768), dtype=torch.uint8, device="cuda").random_(0, 256)
    pairs = memory.view(32, 2, PAGES, 32_768)[:, :, : PAGES // 2]
    for tensors in (list(memory), [it for layer in pairs for it in layer]):
        wanted = [block(tensors, page) for page in range(4)]
        with paged.Cache(client, space, tensors) as its:
            assert its._mover.copies
            names = [f"{len(wanted)} {at} {tensors[0].shape}".encode() for at in range(4)]
            its.put(names, range(4)).check()
            memory[:, 8:].zero_()
            torch.cuda.synchronize()
            assert its.get(names, [15, 11, 9, 8]).all_ok and its._mover.copies
            assert [block(tensors, page) for page in (15, 11, 9, 8)] == wanted
            assert not any(block(tensors, 10, 12, 13, 14))


@pytest.mark.parametrize("evenly", [True, False])
def test_the_gpu_reads_hot_blocks_in_the_memory_tier(evenly):
    memory = torch.empty((64, PAGES, 32_768), dtype=torch.uint8, device="cuda").random_(0, 256)
    tensors = list(memory) if evenly else [*memory[::3], *memory[1:30]]
    settings = {"memory_tier.bytes": "512MiB"}
    with (
        kvrail.serve(store="1GiB", block_mean="1MiB", settings=settings) as sidecar,
        sidecar.attach() as client,
    ):
        space = client.store("kv").namespace("hot", {"model": "m"})
        wanted = [block(tensors, page) for page in range(8)]
        with paged.Cache(client, space, tensors) as its:
            its.put(keys(8), range(8)).check()
            until = time.monotonic() + 30
            while its.route != "memory tier" or len(space._views(keys(8)[:1])) == 0 or not all(
                space._views([key]) for key in keys(8)
            ):
                assert time.monotonic() < until, its.route
                space.lookup(keys(8), fetch=True)
                time.sleep(0.02)
            drives = []
            inner, its._from_drive = its._from_drive, lambda wave: drives.append(inner(wave))
            memory[:, 8:].zero_()
            torch.cuda.synchronize()
            for first in (8, 16, 24):
                assert its.get(keys(8), range(first, first + 8)).all_ok
                assert [block(tensors, first + at) for at in range(8)] == wanted
            assert not drives


def test_blocks_of_several_pages_and_parts_of_them(client, space):
    tensors = tensors_of(3, 40_960)
    wanted = block(tensors, 4, 9, 1, 7)
    with paged.Cache(client, space, tensors, block_pages=4) as its:
        assert its.put([b"chunk"], [[4, 9, 1, 7]]).all_ok
        assert space.get(b"chunk") == wanted
        for tensor in tensors:
            tensor.zero_()
        assert its.get([b"chunk"], [[-1, -1, 3, 8]]).all_ok
        assert block(tensors, 3, 8) == wanted[2 * 3 * 40_960 :]
        assert not any(block(tensors, *(set(range(PAGES)) - {3, 8})))


def test_more_than_the_pinned_memory_in_many_calls(client, space):
    tensors = tensors_of(4, 65_536)
    wanted = [block(tensors, page) for page in range(PAGES)]
    with paged.Cache(client, space, tensors, staging_bytes=2 << 20) as its:
        puts = [its.submit_put([key], [at]) for at, key in enumerate(keys(PAGES))]
        assert sorted(it.ticket for it in its.wait(PAGES, 60)) == puts
        for tensor in tensors:
            tensor.zero_()
        gets = [its.submit_get([key], [PAGES - 1 - at]) for at, key in enumerate(keys(PAGES))]
        ended = its.wait(PAGES, 60)
        assert sorted(it.ticket for it in ended) == gets and all(it.results.all_ok for it in ended)
    assert [block(tensors, page) for page in reversed(range(PAGES))] == wanted


SLEEP = 200_000_000
"""Cycles of the GPU: a tenth of a second."""


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_put_follows_what_the_stream_has(client, space, wrapped):
    tensors = tensors_of(2, 65_536)
    stream = torch.cuda.Stream()
    with paged.Cache(client, space, tensors) as its:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SLEEP)
            tensors[1][5].fill_(7)
        assert not stream.query(), "it is still at work"
        assert its.put([b"key"], [5], stream=stream if wrapped else stream.cuda_stream).all_ok
        assert space.get(b"key")[65_536:] == b"\7" * 65_536


def test_a_get_waits_for_readers_of_the_pages(client, space):
    tensors = tensors_of(2, 65_536)
    wanted, before = block(tensors, 0), tensors[0][5].clone()
    stream, copy = torch.cuda.Stream(), torch.empty_like(tensors[0][5])
    with paged.Cache(client, space, tensors) as its:
        its.put([b"key"], [0])
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SLEEP)
            copy.copy_(tensors[0][5])
        assert its.get([b"key"], [5], stream=stream).all_ok
        assert torch.equal(copy, before), "it read what was there before"
        assert block(tensors, 5) == wanted, "and any stream sees what came"


class Spoiled:
    """Changes one bit when a batch was moved, before it is summed on the way in."""

    def __init__(self, mover, what, times: int) -> None:
        self._run, self._what, self.left = mover._run, what, times
        mover._run = self

    def __call__(self, kernel, batch, stream) -> None:
        self._run(kernel, batch, stream)
        if kernel != "check" and self.left > 0:
            self.left -= 1
            torch.cuda.synchronize()
            self._what(kernel, batch)
            torch.cuda.synchronize()


def test_a_bit_that_flips_on_the_gpu(client, space):
    tensors = tensors_of(61, 10_496)
    wanted = [block(tensors, page) for page in range(3)]

    def flip(kernel, batch) -> None:
        tensors[60][11][10_495] ^= 0x80

    with paged.Cache(client, space, tensors) as its:
        its.put(keys(3), range(3))
        spoiled = Spoiled(its._mover, flip, 1)
        results = its.get(keys(3), [10, 11, 12])
        assert list(results) == ["OK", "MISS", "OK"] and spoiled.left == 0
        assert [block(tensors, page) for page in (10, 12)] == [wanted[0], wanted[2]]
        assert block(tensors, 11) != wanted[1]
        assert its.get(keys(3), [10, 11, 12]).all_ok, "the block itself is whole"
        assert block(tensors, 11) == wanted[1]


@pytest.mark.parametrize("way", [Way.OUT, Way.IN])
def test_a_bit_that_flips_in_pinned_memory(client, space, way):
    tensors = tensors_of(61, 10_496)
    wanted = [block(tensors, page) for page in range(3)]
    with paged.Cache(client, space, tensors) as its:

        def flip(kernel, batch) -> None:
            place = batch.slots[1] - its._mover._offset + 300_000  # in the arena
            ctypes.c_uint8.from_address(place).value ^= 1

        if way is Way.OUT:
            Spoiled(its._mover, flip, 1)
        its.put(keys(3), range(3))
        if way is Way.IN:
            inner = its._mover.begin

            def begin(way, batch, behind=None) -> None:
                flip("", batch)
                its._mover.begin = inner
                inner(way, batch, behind)

            its._mover.begin = begin
        results = its.get(keys(3), [10, 11, 12])
        assert list(results) == ["OK", "MISS", "OK"]
        assert [block(tensors, at) for at in (10, 12)] == [wanted[0], wanted[2]]
        # On the way in the block itself is whole: it comes with the next get.
        assert its.get(keys(3), [10, 11, 12]).ok == [True, way is Way.IN, True]
        assert (block(tensors, 11) == wanted[1]) == (way is Way.IN)


def test_the_example(tmp_path):
    command = [sys.executable, str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every byte is equal" in done.stdout and "a miss, and no other" in done.stdout
    print(done.stdout)
