"""Tensors of the real PyTorch on a real GPU: shared ones, and refused ones."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kvrail
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no GPU", allow_module_level=True)

EXAMPLE = Path(__file__).parents[2] / "examples" / "kvrail_torch.py"


@pytest.fixture(scope="module")
def client() -> Iterator[kvrail.Client]:
    settings = {"gpu.devices": '["0"]'}
    with kvrail.serve("256MiB", settings=settings) as sidecar, sidecar.attach() as client:
        yield client


def ran(command, environment=None):
    capture = {"capture_output": True, "text": True, "timeout": 120}
    return subprocess.run(command, env=environment, check=False, **capture)


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


def goes_and_comes(client, tensors, block_dim=0):
    """Every block through the volume into the mirrored index; others keep their bytes."""
    volume = client.volume("kv")
    for tensor in tensors:
        tensor.copy_(torch.randn(tensor.shape, device="cuda").to(tensor.dtype))
    torch.cuda.synchronize()
    kept = [bits(tensor.movedim(block_dim, 0)).clone() for tensor in tensors]
    with client.gpu_region(tensors, block_dim=block_dim) as region:
        offsets = [at * region.block_bytes for at in range(region.blocks)]
        volume.write_blocks(region, offsets, range(region.blocks))
        for tensor in tensors:
            tensor.zero_()
        torch.cuda.synchronize()
        volume.read_blocks(region, offsets, range(region.blocks - 1, -1, -1))
        for tensor, bytes_of in zip(tensors, kept, strict=True):
            assert torch.equal(bits(tensor.movedim(block_dim, 0)), bytes_of.flip(0))
        return region.block_bytes


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.uint8])
def test_dtypes(client, dtype):
    made = [torch.zeros((12, 16, 4, 64), device="cuda").to(dtype) for _ in range(6)]
    assert goes_and_comes(client, made) == 6 * 16 * 4 * 64 * dtype.itemsize


def test_shapes(client):
    half = dict(dtype=torch.bfloat16, device="cuda")
    # K and V in one tensor.
    goes_and_comes(client, [torch.empty((2, 20, 16, 8, 64), **half) for _ in range(3)], 1)
    # MLA: one tensor a layer, 576 values a token.
    goes_and_comes(client, [torch.empty((20, 64, 576), **half) for _ in range(5)])
    # Heads before tokens, seen the other way round.
    goes_and_comes(client, [torch.empty((20, 8, 16, 64), **half).permute(0, 2, 1, 3)])
    # All layers of a block side by side.
    whole = torch.empty((20, 4, 16, 8, 64), **half)
    goes_and_comes(client, [whole[:, layer] for layer in range(4)])
    # Larger than the segments of the allocator.
    goes_and_comes(client, [torch.empty((32, 256, 8, 128), **half) for _ in range(2)])


def test_groups_of_a_hybrid_model(client):
    """Two regions over the same memory, as groups with block tables of their own have."""
    pool = torch.zeros((16, 4096), dtype=torch.uint8, device="cuda")
    other = pool.view(32, 2048)
    with client.gpu_region([pool]) as full, client.gpu_region([other]) as state:
        assert (full.blocks, state.blocks) == (16, 32)
        pool[3] = 7
        torch.cuda.synchronize()
        volume = client.volume("kv")
        volume.write_blocks(full, 0, 3)
        volume.read_blocks(state, [0, 2048], [20, 0])
        assert (other[20] == 7).all() and (other[0] == 7).all() and (pool[3] == 7).all()


def test_what_cannot_be_shared(client):
    def refused(tensors, words, error=kvrail.TensorError):
        with pytest.raises(error, match=words):
            client.gpu_region(tensors)

    good = torch.zeros((4, 1024), device="cuda")
    refused([torch.zeros(4, 1024)], "on cpu")
    refused([torch.zeros(4, 1024).pin_memory()], "on cpu")
    refused([good.to_sparse()], "dense")
    refused([good[:, ::2]], "runs of 4 bytes", kvrail.LayoutError)
    refused([good[:, :100]], "runs of 400 bytes", kvrail.LayoutError)
    refused([good, good[:2]], "has 2 blocks", kvrail.LayoutError)
    refused([good, good], "overlap", kvrail.LayoutError)
    freed = torch.zeros((4, 1024), device="cuda")
    freed.untyped_storage().resize_(0)
    refused([freed], "freed")
    assert client.status()["gpus"][0]["regions"] == 0


def test_memory_is_kept_for_the_region(client):
    """The allocator does not give a cache's memory to others while the sidecar may write it."""
    tensor = torch.zeros((64, 4096), dtype=torch.uint8, device="cuda")
    place = tensor.data_ptr()
    region = client.gpu_region([tensor])
    del tensor
    gc.collect()
    others = [torch.ones((64, 4096), dtype=torch.uint8, device="cuda") for _ in range(8)]
    assert place not in [other.data_ptr() for other in others]
    client.volume("kv").read_blocks(region, 0, 5)
    assert all((other == 1).all() for other in others)
    region.close()


def test_other_libraries(client):
    """CuPy describes its arrays by `__cuda_array_interface__`."""
    cupy = pytest.importorskip("cupy")
    array = cupy.arange(8 * 1024, dtype=cupy.float32).reshape(8, 1024)
    kept = array.copy()
    cupy.cuda.Device().synchronize()
    with client.gpu_region([array]) as region:
        volume = client.volume("kv")
        offsets = [at * region.block_bytes for at in range(8)]
        volume.write_blocks(region, offsets, range(8))
        array[:] = 0
        cupy.cuda.Device().synchronize()
        volume.read_blocks(region, offsets, range(7, -1, -1))
        assert (array == kept[::-1]).all()
    cupy.cuda.set_allocator(cupy.cuda.malloc_managed)
    try:
        managed = cupy.zeros((8, 1024), dtype=cupy.float32)
    finally:
        cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
    with pytest.raises(kvrail.TensorError, match="managed"):
        client.gpu_region([managed])


ALLOCATORS = """
import sys, torch, kvrail
with kvrail.Client(sys.argv[1]) as client:
    small = torch.full((8, 4096), 5, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    try:
        with client.gpu_region([small]) as region:
            volume = client.volume("kv")
            volume.write_blocks(region, 0, 1)
            small.zero_()
            torch.cuda.synchronize()
            volume.read_blocks(region, 0, 6)
            assert (small[6] == 5).all() and not small[1].any()
            print("small: shared")
    except kvrail.TensorError as error:
        print("small:", error)
    large = torch.zeros((8, 16 << 20), dtype=torch.uint8, device="cuda")
    try:
        client.gpu_region([large]).close()
        print("large: shared")
    except kvrail.TensorError as error:
        print("large:", error)
"""


@pytest.mark.parametrize(
    ("allocator", "small", "large"),
    [
        # Virtual memory: a tensor within one piece is shared, one over a border cannot be.
        ("expandable_segments:True", "small: shared", "large: tensor 0 goes over the border"),
        ("backend:cudaMallocAsync", "small: tensor 0 cannot be shared", "large: tensor 0 cannot"),
    ],
)
def test_allocators(allocator, small, large):
    with kvrail.serve("64MiB", settings={"gpu.devices": '["0"]'}) as sidecar:
        environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": allocator}
        done = ran([sys.executable, "-c", ALLOCATORS, str(sidecar.socket)], environment)
    assert done.returncode == 0, done.stderr
    assert small in done.stdout and large in done.stdout, done.stdout


def test_the_guide():
    from test_guide import ON_GPU  # of the parent folder

    for snippet in ON_GPU:
        done = ran([sys.executable, "-c", snippet])
        assert (done.returncode, done.stderr) == (0, "")


def test_the_show():
    done = ran([sys.executable, str(EXAMPLE)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("every byte equal") == 3
