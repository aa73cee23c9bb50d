"""Bytes go out and come back: synchronous calls, queues, event loops."""

import array
import asyncio
import fcntl
import os
import select
import zlib

import kvrail
import kvrail.aio
import numpy
import pytest

BLOCK = 64 << 10


def fill(arena: kvrail.Arena, seed: int) -> numpy.ndarray:
    view = numpy.frombuffer(arena, dtype=numpy.uint8)
    view[:] = numpy.random.default_rng(seed).integers(0, 256, len(view), dtype=numpy.uint8)
    return view


def test_one_block(volume, arena):
    view = fill(arena, 1)
    kept = view[:BLOCK].copy()
    end = volume.write(arena, 0, BLOCK, durable=True)
    assert end.ok and end.status == "OK" and end.bytes == BLOCK
    volume.read(arena, 0, BLOCK, 2 * BLOCK, priority="prefetch")
    assert (view[2 * BLOCK : 3 * BLOCK] == kept).all()
    assert volume.flush().ok


@pytest.mark.parametrize(
    "make",
    [
        lambda numbers: numpy.array(numbers, dtype=numpy.int64),
        lambda numbers: numpy.array(numbers, dtype=numpy.uint64),
        lambda numbers: numpy.repeat(numpy.array(numbers), 2)[::2],
        lambda numbers: numpy.array(numbers)[::-1][::-1],
        lambda numbers: array.array("q", numbers),
        lambda numbers: memoryview(array.array("Q", numbers)),
        list,
        tuple,
    ],
)
def test_batches_of_any_array(volume, arena, make):
    view = fill(arena, 2)
    count = len(arena) // BLOCK // 2
    there = [at * BLOCK for at in range(count)]
    back = [(count + at) * BLOCK for at in reversed(range(count))]
    volume.write_many(arena, make(there), make(there), BLOCK)
    ends = volume.read_many(arena, make(there), make(back), numpy.int64(BLOCK))
    assert [end.bytes for end in ends] == [BLOCK] * count
    for source, target in zip(there, back, strict=True):
        assert (view[source : source + BLOCK] == view[target : target + BLOCK]).all()


def test_batches_larger_than_any_queue(volume, arena):
    fill(arena, 3)
    places = numpy.arange(len(arena) // 4096) * 4096
    assert len(volume.write_many(arena, places, places, 4096)) == 1024
    ends = volume.read_many(arena, places, places, 4096, checksum=True)
    view = memoryview(arena)
    again = volume.read_many(
        arena, places, places, 4096, verify=numpy.array([end.checksum for end in ends], "u8")
    )
    assert len(again) == 1024 and len(view) == len(arena)


def test_a_request_over_stripes_is_one_request(volume, arena):
    view = fill(arena, 4)
    whole = zlib.crc32(view)
    volume.write(arena, 0, len(arena))
    view[:] = 0
    end = volume.read(arena, 0, len(arena))
    assert end.bytes == len(arena) and zlib.crc32(view) == whole


def test_a_queue_that_is_polled(volume, arena):
    fill(arena, 5)
    with volume.open_queue(16) as queue:
        assert queue.capacity == 16 and queue.poll() == []
        first = queue.write(arena, 0, BLOCK, tag=77)
        tickets = queue.read_many(arena, range(0, 20 * 4096, 4096), range(0, 20 * 4096, 4096), 4096)
        assert first + 1 == tickets.start and len(tickets) == 15
        with pytest.raises(kvrail.QueueFullError):
            queue.read(arena, 0, 4096)
        ends = queue.wait(16)
        assert {end.ticket for end in ends} == {first, *tickets}
        assert {end.tag for end in ends if end.ticket == first} == {77}
        assert queue.outstanding == 0 and queue.wait() == []
        queue.read(arena, 0, 4096)
        ends = []
        while not ends:
            ends = queue.poll(1)
        assert ends[0].ok


def test_a_queue_in_a_selector(volume, arena):
    with volume.open_queue() as queue, select.epoll() as loop:
        loop.register(queue, select.EPOLLIN)
        ended = 0
        for _ in range(50):
            queue.read(arena, 0, BLOCK)
            if not queue.arm():
                assert loop.poll(10), "the bell rings"
            ended += len(queue.poll())
        ended += len(queue.wait(50 - ended))
        assert ended == 50


def test_a_late_request_is_reported_and_goes_on(volume, arena):
    with volume.open_queue() as queue:
        queue.read(arena, 0, len(arena), deadline=1e-9)
        ends = queue.wait(1)
        while not any(not end.is_notice for end in ends):
            ends += queue.wait(1)
        assert all(end.status in ("LATE", "OK") for end in ends)
        assert volume.read(arena, 0, len(arena), deadline=1e-9).ok


def test_asyncio(volume, arena):
    view = fill(arena, 6)

    async def main():
        async with kvrail.aio.Queue(volume, 32) as queue:
            places = numpy.arange(len(arena) // 4096) * 4096
            kept = view.copy()
            await asyncio.gather(
                *(queue.write_many(arena, part, part, 4096) for part in places.reshape(4, -1))
            )
            view[:] = 0
            ends = await queue.read_many(arena, places, places, 4096)
            assert len(ends) == len(places) and (view == kept).all()
            assert (await queue.flush()).ok
            assert (await queue.read(arena, 0, 4096)).bytes == 4096

    asyncio.run(main())


def test_asyncio_errors_and_cancelled_calls(volume, arena):
    async def main():
        async with kvrail.aio.Queue(volume, 4) as queue:
            with pytest.raises(kvrail.RequestError):
                await queue.read(arena, 3, 4096)
            with pytest.raises(kvrail.RequestError, match="multiples"):
                await queue.read_many(arena, [0, 4096, 4097], [0, 4096, 8192], 4096)
            with pytest.raises(kvrail.CorruptError) as failed:
                await queue.read_many(arena, [0, 4096], [0, 4096], 4096, verify=[1, 1])
            assert failed.value.failed == [(0, "CORRUPT"), (1, "CORRUPT")]
            task = asyncio.create_task(queue.read(arena, 0, volume.stripe_bytes))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await queue.drain()
            assert (await queue.read(arena, 0, 4096)).ok
        with pytest.raises(kvrail.ClosedError):
            await queue.read(arena, 0, 4096)

    asyncio.run(main())


def test_memory_of_ones_own(client, volume):
    fd = os.memfd_create("own", os.MFD_ALLOW_SEALING)
    os.posix_fallocate(fd, 0, 1 << 20)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    with client.import_arena(fd, 1 << 20) as arena:
        os.pwrite(fd, b"k" * 4096, 0)
        volume.write(arena, 0, 4096)
        volume.read(arena, 0, 4096, 8192)
        assert os.pread(fd, 4096, 8192) == b"k" * 4096
        assert bytes(memoryview(arena)[8192:8196]) == b"kkkk"
    os.close(fd)


def test_attributes_of_objects(client, volume, arena, sidecar):
    assert client.epoch > 0 and client.session >= 0 and client.sidecar
    assert [each.name for each in client.volumes] == ["kv"]
    assert volume.members == 2 and volume.capacity >= 64 << 20
    assert volume.logical_block in (512, 4096) and len(volume.uuid) == 36
    assert arena.nbytes == len(arena) == 4 << 20 and arena.page_bytes in (4096, 2 << 20)
    names = [session["name"] for session in client.status()["sessions"]]
    assert "pytest" in names and sidecar.pid
    for thing in (client, volume, arena, volume.open_queue(2), volume.read(arena, 0, 4096)):
        assert "kvrail." in repr(thing)
