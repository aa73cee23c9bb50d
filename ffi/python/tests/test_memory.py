"""Arenas as buffers, arrays and tensors, also after their end."""

import gc
import os
import subprocess
import sys
import tempfile

import kvrail
import numpy
import pytest


def mapped() -> int:
    gc.collect()
    with open("/proc/self/maps") as maps:
        return sum("kvrail-arena" in line or "memfd:kvrail" in line for line in maps)


def test_views_are_no_copies(arena):
    first = numpy.frombuffer(arena, dtype=numpy.uint8)
    second = memoryview(arena).cast("Q")
    third = numpy.from_dlpack(arena)
    first[:8] = 255
    assert second[0] == 2**64 - 1 and (third[:8] == 255).all()
    assert len(first) == len(third) == len(arena)
    third[0] = 7
    assert first[0] == 7


def test_views_outlive_their_arena(client):
    before = mapped()
    arena = client.create_arena(1 << 20, pages="base")
    view = numpy.frombuffer(arena, dtype=numpy.uint8)
    tensor = numpy.from_dlpack(arena)
    view[:] = 3
    arena.close()
    arena.close()
    assert arena.closed and (view == 3).all() and (tensor == 3).all()
    with pytest.raises(kvrail.ClosedError):
        memoryview(arena)
    with pytest.raises(kvrail.ClosedError):
        arena.__dlpack__()
    del arena, view
    assert (tensor == 3).all()
    assert mapped() == before + 1
    del tensor
    assert mapped() == before


def test_dlpack_refuses_with_the_reason(arena):
    assert arena.__dlpack_device__() == (1, 0)
    assert "dltensor" in repr(arena.__dlpack__(max_version=None))
    assert "dltensor_versioned" in repr(arena.__dlpack__(max_version=(1, 1)))
    with pytest.raises(BufferError, match="device"):
        arena.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="copies"):
        arena.__dlpack__(copy=True)


def test_torch_takes_it(arena):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.from_dlpack(arena)
    tensor[:16] = 9
    assert bytes(memoryview(arena)[:16]) == b"\x09" * 16


def test_nothing_is_left_behind(sidecar):
    def belongings():
        gc.collect()
        return mapped(), len(os.listdir("/proc/self/fd"))

    sidecar.attach().close()
    before = belongings()
    for _ in range(20):
        with sidecar.attach() as client:
            arena = client.create_arena(1 << 20, pages="base")
            volume = client.volume("kv")
            volume.read(arena, 0, 4096)
            volume.open_queue(8).read(arena, 0, 4096)
            del arena
    del client, volume
    assert belongings() == before


def test_memory_that_cannot_be_sealed():
    settings = {"memory.unsealed_imports": "accept"}
    with kvrail.serve("16MiB", settings=settings) as sidecar, sidecar.attach() as client:
        volume = client.volume("kv")
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
            os.posix_fallocate(file.fileno(), 0, 1 << 20)
            arena = client.import_arena(file, 1 << 20)
            os.pwrite(file.fileno(), b"s" * 4096, 0)
            volume.write(arena, 0, 4096)
            volume.read(arena, 0, 4096, 4096)
            assert os.pread(file.fileno(), 4096, 4096) == b"s" * 4096
            # A client that shrinks it harms itself alone: devices keep their pages. (Checksums are
            # read in this process, and would end it as any other load of lost memory.)
            os.truncate(file.name, 0)
            volume.read_many(arena, [0] * 200, range(0, 200 * 4096, 4096), 4096)
            arena.close()
        with tempfile.NamedTemporaryFile() as file, pytest.raises(kvrail.RequestError):
            file.truncate(4096)
            client.import_arena(file, 4096)
        arena = client.create_arena(1 << 20)
        assert volume.read(arena, 0, 4096, checksum=True).ok


def test_it_is_imported_without_a_sidecar():
    code = "import kvrail, kvrail.aio; print(kvrail.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == kvrail.__version__
