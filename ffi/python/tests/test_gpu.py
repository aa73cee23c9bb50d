"""Blocks of GPU memory go out and come back: on a stand-in, through a real sidecar."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import kvrail
import kvrail.aio
import numpy
import pytest
from host import until
from kvrail import gpu
from standin import SETTINGS, Allocation, Cache, Tensor

LAYERS, BLOCKS = 4, 24


def _opens_handles() -> bool:
    """Whether a sidecar opens the stand-in's memory of another process by its handle.

    The handle is a path below /proc. It needs the capabilities of that process, of which root in a
    container has some that a sidecar drops, or CAP_SYS_PTRACE (19).
    """
    status = Path("/proc/self/status").read_text()
    (held,) = (int(line[8:], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    return not held or bool(held >> 19 & 1)


HANDLES = pytest.mark.skipif(not _opens_handles(), reason="root without CAP_SYS_PTRACE")


@pytest.fixture(scope="module")
def sidecar() -> Iterator[kvrail.Sidecar]:
    with kvrail.serve("64MiB", members=2, settings=SETTINGS) as sidecar:
        yield sidecar


@pytest.fixture
def uuid(client: kvrail.Client) -> str:
    (only,) = client.gpus
    assert only["index"] == 0 and "stand-in" in only["name"] and only["memory_bytes"] > 0
    return only["uuid"]


def moved(cache: Cache, seed: int) -> tuple[numpy.ndarray, numpy.ndarray, list[bytes]]:
    """Blocks to write, the other indices they come back into, and their bytes."""
    cache.fill(seed)
    order = numpy.random.default_rng(seed).permutation(cache.blocks)
    there, back = order[: cache.blocks // 2], order[cache.blocks // 2 :]
    return there, back, [cache.block(index) for index in there]


@pytest.mark.parametrize("legacy", [False, pytest.param(True, marks=HANDLES)])
def test_blocks_come_back_into_other_indices(client, uuid, legacy):
    cache, volume = Cache(LAYERS, BLOCKS, legacy), client.volume("kv")
    with client.gpu_region(layout=cache.layout(uuid)) as region:
        assert (region.blocks, region.gpu) == (BLOCKS, uuid)
        assert region.block_bytes == len(cache.block(0)) == 2 * LAYERS * 16 * 4 * 64 * 2
        mechanism, reason = region.route(volume)
        assert mechanism == "staged" and reason
        there, back, wanted = moved(cache, 1)
        offsets = there * region.block_bytes
        ends = volume.write_blocks(region, offsets, there)
        assert [end.bytes for end in ends] == [region.block_bytes] * len(there)
        cache.clear()
        volume.read_blocks(region, offsets, back)
        assert [cache.block(index) for index in back] == wanted
        assert not any(any(cache.block(index)) for index in there), "the others stay as they were"
    assert region.closed and "closed" in repr(region)


def test_a_part_of_each_block(client, uuid):
    cache, volume = Cache(LAYERS, BLOCKS), client.volume("kv")
    region = client.gpu_region(layout=cache.layout(uuid))
    there, back, wanted = moved(cache, 2)
    volume.write_blocks(region, there * region.block_bytes, there)
    cache.clear()
    start, length = 3 * 8192, 8192  # V of layer 1
    volume.read_blocks(region, there * region.block_bytes + start, back, part=(start, length))
    for index, whole in zip(back, wanted, strict=True):
        kept = bytes(start) + whole[start : start + length] + bytes(len(whole) - start - length)
        assert cache.block(index) == kept
    region.close()
    region.close()


def test_queues_and_event_loops(client, uuid):
    cache, volume = Cache(LAYERS, BLOCKS), client.volume("kv")
    region = client.gpu_region(layout=cache.layout(uuid))
    there, back, wanted = moved(cache, 3)
    offsets = there * region.block_bytes
    with volume.open_queue(8) as queue:
        done = 0
        while done < len(there):
            rest = (offsets[done:], there[done:])
            done += len(queue.write_blocks(region, *rest, priority="background"))
            assert all(end.ok for end in queue.wait(1))
        assert all(end.ok for end in queue.wait(8))
    cache.clear()

    async def read():
        async with kvrail.aio.Queue(volume, 4) as queue:
            halves = zip(numpy.split(offsets, 2), numpy.split(back, 2), strict=True)
            await asyncio.gather(*(queue.read_blocks(region, *half) for half in halves))
            (end,) = await queue.write_blocks(region, 0, 0, part=(0, 4096))
            assert end.bytes == 4096

    asyncio.run(read())
    assert [cache.block(index) for index in back] == wanted


def test_shapes_of_caches(uuid):
    """Fragments by shape and strides: K and V in one tensor, MLA, permuted views, one block."""
    memory = Allocation(1 << 20)

    def tensor(dtype, shape, axes=None):
        count = int(numpy.prod(shape))
        array = numpy.frombuffer(memory.map, dtype, count).reshape(shape)
        return Tensor(array if axes is None else array.transpose(axes))

    def fragments(tensor, block_dim=0):
        layout = gpu.paged(tensor, block_dim, memories=[memory.descriptor()], gpu=uuid)
        return layout.blocks, [tuple(it) for it in layout.fragments]

    both = tensor("f2", (2, 8, 16, 64))  # [K and V, blocks, tokens, size]
    assert fragments(both, 1) == (8, [(0, 0, 2048, 2048), (0, 16384, 2048, 2048)])
    assert fragments(both, -3) == fragments(both, 1)
    mla = tensor("u1", (10, 64, 576))
    assert fragments(mla) == (10, [(0, 0, 36864, 36864)])
    # [blocks, heads, tokens, size] seen as [blocks, tokens, heads, size]: a block lies together.
    assert fragments(tensor("f4", (4, 8, 16, 32), (0, 2, 1, 3))) == (4, [(0, 0, 16384, 16384)])
    # Layers of a block side by side, seen layer by layer.
    inside = tensor("f2", (6, 3, 512))
    layer = Tensor(inside.array[:, 1])
    assert fragments(layer) == (6, [(0, 1024, 3072, 1024)])
    assert fragments(tensor("f2", (1, 512))) == (1, [(0, 0, 1024, 1024)])
    padded = Tensor(tensor("f2", (4, 2, 1024)).array[:, :, :512])
    assert fragments(padded) == (4, [(0, 0, 4096, 1024), (0, 2048, 4096, 1024)])


def test_what_is_no_cache(uuid):
    memory = Allocation(1 << 20)
    plain = numpy.frombuffer(memory.map, "f2", 1 << 16).reshape(16, 4096)

    def refused(tensors, words, error=kvrail.LayoutError, block_dim=0):
        with pytest.raises(error, match=words):
            gpu.paged(tensors, block_dim, memories=[memory.descriptor()], gpu=uuid)

    refused([], "no tensors")
    refused([Tensor(plain), Tensor(plain[:8])], "tensor 1 has 8 blocks, tensor 0 has 16")
    refused([Tensor(plain)], "none is number 2", block_dim=2)
    refused([Tensor(plain[:, :100])], "runs of 200 bytes")
    refused([Tensor(plain[:, ::2])], "runs of 2 bytes")
    refused([Tensor(plain[::-1])], "go backwards")
    refused([Tensor(numpy.broadcast_to(plain[:1], (16, 4096)))], "read-only", kvrail.TensorError)
    refused([Tensor(plain[:0])], r"shape \[0, 4096\]")
    refused([Tensor(plain[0, 0])], r"shape \[\]")
    refused([Tensor(plain.T)], "runs of")
    refused([Tensor(numpy.zeros((2, 512), "f4"))], "lies in none of the 1 memories")
    refused(plain, "is a ndarray", kvrail.TensorError)
    refused([plain], "tensor 0 is a ndarray", kvrail.TensorError)
    refused(None, "tensors is a NoneType", kvrail.TensorError)
    refused(["k"], "tensor 0 is a str", kvrail.TensorError)
    with pytest.raises(kvrail.LayoutError, match="gpu="):
        gpu.paged([Tensor(plain)], memories=[memory.descriptor()])


class Torch:
    """The parts of a PyTorch tensor that are used."""

    device = "cpu"

    def __init__(self, stored=4096, is_cuda=True, address=4096, sparse=False):
        self.shape, self.is_cuda = (2, 512), is_cuda
        self._stored, self._address, self._sparse = stored, address, sparse

    def element_size(self):
        return 2

    def data_ptr(self):
        return self._address

    def stride(self):
        return (512, 1)

    def untyped_storage(self):
        if self._sparse:
            raise NotImplementedError("Cannot access storage of SparseTensorImpl")
        return self

    def nbytes(self):
        return self._stored


def test_tensors_of_pytorch(uuid):
    memories = [gpu.Memory(1 << 20, handle=bytes(64))]
    layout = gpu.paged([Torch(), Torch(address=8192)], memories=memories, gpu=uuid)
    assert layout.fragments == [(0, 4096, 1024, 1024), (0, 8192, 1024, 1024)]
    assert layout.block_bytes == 2048 and len(layout.keep) == 2
    for tensor, words in [
        (Torch(is_cuda=False), "on cpu"),
        (Torch(stored=0), "freed"),
        (Torch(address=0), "freed"),
        (Torch(sparse=True), "dense"),
    ]:
        with pytest.raises(kvrail.TensorError, match=words):
            gpu.paged([tensor], memories=memories, gpu=uuid)


def test_each_allocation_is_exported_once(monkeypatch, uuid):
    """Tensors that share an allocation share its handle; only what they use can be reached."""
    exported = []

    def export(name, address):
        exported.append(name)
        base = address // 65536 * 65536
        gpu_of = "GPU-2" if base >= 1 << 20 else uuid
        return gpu._cuda.Allocation(gpu_of, base, 65536, handle=base.to_bytes(64))

    monkeypatch.setattr(gpu._cuda, "export", export)
    near, far = Torch(address=65536 + 4096), Torch(address=65536 + 32768)
    layout = gpu.paged([near, Torch(address=3 * 65536), far])
    assert exported == ["tensor 0", "tensor 1"] and layout.gpu == uuid
    first, second = layout.memories
    assert (first.offset, first.nbytes, first.address) == (4096, 32768 - 4096 + 2048, near._address)
    assert (second.offset, second.nbytes) == (0, 2048)
    assert [it[:2] for it in layout.fragments] == [(0, 0), (1, 0), (0, 32768 - 4096)]
    with pytest.raises(kvrail.TensorError, match="expandable_segments:False"):
        gpu.paged([Torch(address=2 * 65536 - 1024)])
    with pytest.raises(kvrail.TensorError, match="for each GPU"):
        gpu.paged([near, Torch(address=1 << 20)])


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU")
def test_no_driver(client):
    with pytest.raises(kvrail.GpuError, match="no CUDA driver.*install"):
        client.gpu_region([Torch()])


def test_layouts_that_the_sidecar_would_refuse(client, uuid):
    good = gpu.Memory(8192, handle=bytes(64)), gpu.Fragment(0, 0, 1024, 1024)

    def refused(words, error=kvrail.LayoutError, *, gpu_of=uuid, blocks=2, **parts):
        memory, fragment = parts.get("memory", good[0]), parts.get("fragment", good[1])
        layout = gpu.Layout(gpu_of, blocks, [memory], [fragment])
        with pytest.raises(error, match=words):
            client.gpu_region(layout=layout)

    refused("base = 8", fragment=gpu.Fragment(0, 8, 1024, 1024))
    refused("ends at byte", blocks=9)
    refused("no memory 70000", fragment=gpu.Fragment(70000, 0, 1024, 1024))
    refused("memory 1", fragment=gpu.Fragment(1, 0, 1024, 1024))
    refused("overlap", fragment=gpu.Fragment(0, 0, 512, 1024))
    refused("64 bytes, this one 3", memory=gpu.Memory(8192, handle=b"abc"))
    refused("64 bytes, this one 0", memory=gpu.Memory(8192))
    refused("can't convert", OverflowError, fragment=gpu.Fragment(0, -16, 1024, 1024))
    refused("serves no GPU GPU-0", kvrail.UnknownGpuError, gpu_of="GPU-0")
    # What only the sidecar can see.
    refused("not a handle", kvrail.RequestError)
    file = Allocation(4096)
    refused("4096 bytes", kvrail.RequestError, memory=gpu.Memory(8192, file=file.fd))
    for nothing, words in ((-1, "descriptor -1"), (12345, "Bad file")):
        refused(words, OSError, memory=gpu.Memory(8192, file=nothing))
    for call in (client.gpu_region, lambda: client.gpu_region([], layout=object())):
        with pytest.raises(kvrail.LayoutError, match="either"):
            call()
    assert client.status()["gpus"][0]["regions"] == 0


def test_requests_that_cannot_be(client, sidecar, uuid):
    cache, volume = Cache(1, BLOCKS), client.volume("kv")
    region = client.gpu_region(layout=cache.layout(uuid))
    whole = region.block_bytes
    for blocks, offsets, options, words in [
        (BLOCKS, 0, {}, "block 24 does not exist"),
        ([0, 2**32], [0, whole], {}, "does not exist"),
        (-1, 0, {}, "blocks is -1"),
        ([0, 1], [0, 1, 2], {}, "blocks has 2 items and offsets has 3"),
        (0, 100, {}, "multiples"),
        (0, volume.capacity, {}, "beyond"),
        (0, 0, {"part": (0, 2 * whole)}, "leave the block"),
        (0, 0, {"part": (8, 512)}, "multiple of"),
        (0, 0, {"part": (0, 100)}, "multiples"),
        (0, 0, {"checksum": True}, "no checksum"),
        (0, 0, {"verify": 1}, "no checksum"),
    ]:
        for call in (volume.read_blocks, volume.write_blocks):
            with pytest.raises(kvrail.RequestError, match=words):
                call(region, offsets, blocks, **options)
    with pytest.raises(OverflowError):
        volume.read_blocks(region, 0, 0, part=(-16, 512))
    arena = client.create_arena(4096)
    with pytest.raises(TypeError):
        volume.read_blocks(arena, 0, 0)
    with pytest.raises(TypeError):
        volume.read(region, 0, 4096)
    with sidecar.attach() as other, pytest.raises(kvrail.RequestError, match="another client"):
        other.volume("kv").read_blocks(region, 0, 0)
    region.close()
    for call in (volume.read_blocks, volume.write_blocks):
        with pytest.raises(kvrail.ClosedError, match="GPU region"):
            call(region, 0, 0)


def test_a_closed_client_closes_its_regions(sidecar, uuid):
    client = sidecar.attach()
    region = client.gpu_region(layout=Cache(1, BLOCKS).layout(uuid))
    client.close()
    assert region.closed
    with pytest.raises(kvrail.ClosedError):
        client.gpu_region(layout=Cache(1, BLOCKS).layout(uuid))
    with pytest.raises(kvrail.ClosedError):
        client.gpus
    region.close()


def test_a_fork_may_not_use_it(client, uuid):
    cache = Cache(1, BLOCKS)
    region, volume = client.gpu_region(layout=cache.layout(uuid)), client.volume("kv")
    child = os.fork()
    if child == 0:
        try:
            for call in (
                lambda: volume.read_blocks(region, 0, 0),
                region.close,
                lambda: client.gpu_region(layout=cache.layout(uuid)),
            ):
                with pytest.raises(kvrail.ForkedError):
                    call()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert volume.read_blocks(region, 0, 0)[0].ok


def test_tensors_live_until_the_sidecar_has_let_go(client, uuid):
    cache = Cache(1, BLOCKS)
    told = weakref.ref(cache.tensors[0])
    region = client.gpu_region(layout=cache.layout(uuid))
    del cache
    gc.collect()
    assert told() is not None, "the region keeps them"
    assert client.volume("kv").read_blocks(region, 0, 0)[0].ok
    region.close()
    del region
    gc.collect()
    assert told() is None

    cache = Cache(1, BLOCKS)
    told = weakref.ref(cache.tensors[0])
    region = client.gpu_region(layout=cache.layout(uuid))
    del cache, region  # never closed: detached behind our back

    def is_gone():
        gc.collect()
        return told() is None and not client.status()["gpus"][0]["regions"]

    until("a dropped region is detached", is_gone)


def test_a_limit_has_its_key(uuid):
    settings = SETTINGS | {"limits.gpu_regions_per_session": "1"}
    with kvrail.serve("16MiB", settings=settings) as sidecar, sidecar.attach() as client:
        kept = client.gpu_region(layout=Cache(1, BLOCKS).layout(uuid))
        with pytest.raises(kvrail.QuotaError, match="gpu_regions_per_session"):
            client.gpu_region(layout=Cache(1, BLOCKS).layout(uuid))
        assert not kept.closed


def test_a_sidecar_without_gpus():
    with kvrail.serve("16MiB") as sidecar, sidecar.attach() as client:
        assert client.gpus == []
        with pytest.raises(kvrail.UnknownGpuError, match="serves: none.*configuration"):
            client.gpu_region(layout=Cache(1, BLOCKS).layout("GPU-5d5d5d5d"))


def test_a_sidecar_that_dies(uuid):
    with kvrail.serve("64MiB", settings=SETTINGS) as sidecar:
        client = sidecar.attach()
        cache, volume = Cache(LAYERS, BLOCKS), client.volume("kv")
        region = client.gpu_region(layout=cache.layout(uuid))
        with volume.open_queue(256) as queue:
            tickets = queue.read_blocks(region, [0] * 200, [at % BLOCKS for at in range(200)])
            sidecar.kill()
            ends = queue.wait(len(tickets), timeout=10)
            assert len(ends) == len(tickets)
            assert {end.status for end in ends} <= {"OK", "RESTARTED"}
        with pytest.raises(kvrail.SessionEndedError):
            volume.read_blocks(region, 0, 0)
        with pytest.raises(kvrail.SessionEndedError):
            client.gpu_region(layout=cache.layout(uuid))
        region.close()
        client.close()


WRITER = """
import sys, time
sys.path.insert(0, sys.argv[1])
import kvrail
from standin import Cache
client = kvrail.Client(sys.argv[2])
volume, cache = client.volume("kv"), Cache({layers}, {blocks}, sys.argv[3] == "legacy")
region = client.gpu_region(layout=cache.layout(client.gpus[0]["uuid"]))
cache.fill(9)
volume.write_blocks(region, range(0, {blocks} * region.block_bytes, region.block_bytes),
                    range({blocks}))
with volume.open_queue() as queue:  # dies with requests in flight
    print("written", flush=True)
    while True:
        queue.write_blocks(region, 32 << 20, range({blocks}))
        queue.wait()
"""


@pytest.mark.parametrize("kind", ["descriptor", pytest.param("legacy", marks=HANDLES)])
def test_another_process_reads_what_a_dead_one_has_written(sidecar, client, uuid, kind):
    code = WRITER.format(layers=LAYERS, blocks=BLOCKS)
    arguments = [str(Path(__file__).parent), str(sidecar.socket), kind]
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline() == "written\n"
        cache, volume = Cache(LAYERS, BLOCKS), client.volume("kv")
        region = client.gpu_region(layout=cache.layout(uuid))
        writer.send_signal(signal.SIGKILL)
    cache.fill(9)
    wanted = [cache.block(index) for index in range(BLOCKS)]
    cache.clear()
    back = numpy.arange(BLOCKS)[::-1]
    volume.read_blocks(region, numpy.arange(BLOCKS) * region.block_bytes, back)
    assert [cache.block(index) for index in back] == wanted
    region.close()
    of = "the dead client's region is freed"
    until(of, lambda: not client.status()["gpus"][0]["regions"])
