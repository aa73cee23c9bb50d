"""Blocks without waiting: queues, selectors, event loops; and where memory lies."""

import asyncio
import fcntl
import mmap
import os
import select
import signal
import time

import kvrail
import kvrail.aio
import numpy
import pytest

IDENTITY = {"model": "m"}
BYTES = 8192


@pytest.fixture(scope="module")
def sidecar():
    with kvrail.serve(store="64MiB", segment="8MiB", block_mean="16KiB") as sidecar:
        yield sidecar


@pytest.fixture
def rows(client):
    arena = client.create_arena(8 << 20, pages="base")
    return numpy.frombuffer(arena, numpy.uint8).reshape(-1, BYTES)


def test_groups_larger_than_the_queue(space, rows):
    count = len(rows) // 2
    rows[:count] = numpy.arange(count)[:, None] % 251
    keys = kvrail.Keys(range(count))
    with space.queue(16) as queue:
        assert queue.capacity == 16 and queue.poll() == [] == queue.wait()
        put = queue.submit_put(keys, rows[:count])
        (end,) = queue.wait()
        assert end.ticket == put and end.results.all_ok and end.found is None
        tickets = [
            queue.submit_get(keys[at::4], rows[count + at :: 4][: len(keys[at::4])])
            for at in range(4)
        ]
        own = [bytearray(BYTES) for _ in range(100)]
        tickets.append(queue.submit_get(keys[:100], own))
        tickets.append(queue.submit_lookup([*range(count), b"no"], hold=1.0))
        assert queue.outstanding == 6
        ends = queue.wait(6, timeout=30)
        assert sorted(end.ticket for end in ends) == tickets and queue.outstanding == 0
        assert [end.found.prefix for end in ends if end.found] == [count]
        assert all(end.results.all_ok for end in ends if end.results)
        assert (rows[:count] == rows[count:]).all()
        assert all(own[at] == bytes(rows[at]) for at in range(100))
        dropped = queue.submit_drop(keys[:3])
        ends = []
        while not ends:
            ends = queue.poll(1)
        assert ends[0].ticket == dropped and ends[0].results.all_ok
        empty = queue.submit_put([], [])
        assert [end.ticket for end in queue.wait()] == [empty]


def test_a_poll_brings_all_that_has_ended(space, client):
    block = 64 << 10
    rows = numpy.zeros((32, block), numpy.uint8)
    space.put_many(range(32), rows)
    arena = client.create_arena(rows.nbytes, pages="base")
    with space.queue(32) as queue:
        places = [at * block for at in range(32)]
        ticket = queue.submit_get(range(32), (arena, places, [block] * 32))
        ends, polls = [], 0
        while not ends and polls < 32:
            time.sleep(0.2)  # all of them end meanwhile
            ends, polls = queue.poll(), polls + 1
        assert [end.ticket for end in ends] == [ticket] and ends[0].results.all_ok
        assert polls < 8, "an engine polls once in a step"


def test_a_selector(space, rows):
    space.put_many(range(64), rows[:64])
    with space.queue() as queue, select.epoll() as loop:
        loop.register(queue, select.EPOLLIN)
        ended = 0
        for at in range(50):
            queue.submit_get([at], rows[64:65])
            if not queue.arm():
                assert loop.poll(10), "the bell rings"
            ended += len(queue.poll())
        ended += len(queue.wait(50 - ended))
        assert ended == 50


def test_a_queue_that_is_misused(client, space, rows):
    queue = space.queue()
    with pytest.raises(TypeError, match="wait"):
        queue.submit_get([1], rows[:1], timeout=1)
    with pytest.raises(kvrail.RequestError):
        queue.submit_get([1, 2], rows[:3])
    queue.submit_get([1], rows[:1])
    queue.close()
    queue.close()
    for use in (queue.poll, queue.wait, queue.fileno, lambda: queue.submit_lookup([1])):
        with pytest.raises(kvrail.ClosedError):
            use()
    open_one = space.queue()
    open_one.submit_get(range(100), [bytearray(8) for _ in range(100)])
    client.close()
    with pytest.raises(kvrail.ClosedError):
        open_one.poll()


def test_one_class_of_queues_for_ranges_and_for_blocks(client, space, rows):
    with kvrail.serve("16MiB") as raw, raw.attach() as other:
        volume, arena = other.volume("kv"), other.create_arena(1 << 20)
        with volume.open_queue(8) as ranges, space.queue(8) as blocks:
            assert type(ranges) is type(blocks) is kvrail.Queue
            with pytest.raises(TypeError, match=r"of volume .*Namespace\.queue"):
                ranges.submit_get([1], rows[:1])
            with pytest.raises(TypeError, match=r"of volume .*Namespace\.queue"):
                ranges.submit_lookup([1])
            with pytest.raises(TypeError, match=r"of namespace .*Volume\.open_queue"):
                blocks.read(arena, 0, 4096)
            ranges.write_many(arena, [0, 4096], [0, 4096], 4096, tag=1 << 40)
            ends = ranges.wait(2)
            assert {type(end) for end in ends} == {kvrail.Completion}
            assert [end.tag for end in ends] == [1 << 40] * 2
            blocks.submit_put([1], rows[:1])
            assert {type(end) for end in blocks.wait()} == {kvrail.GroupEnd}

        async def main():
            async with kvrail.aio.Queue(volume) as ranges, kvrail.aio.Queue(space) as blocks:
                with pytest.raises(TypeError, match="of volume"):
                    await ranges.get(b"key", bytearray(8))
                with pytest.raises(TypeError, match="of namespace"):
                    await blocks.read(arena, 0, 4096)

        asyncio.run(asyncio.wait_for(main(), 30))


def test_the_sidecar_dies_under_a_queue():
    with kvrail.serve(store="16MiB") as sidecar, sidecar.attach() as client:
        space = client.store("kv").namespace("a", IDENTITY)
        queue = space.queue(8)
        queue.submit_put(range(1000), [b"x"] * 1000)
        sidecar.kill()
        (end,) = queue.wait()
        assert set(end.results) <= {"OK", "RESTARTED"} and end.results[-1] == "RESTARTED"
        with pytest.raises(kvrail.SessionEndedError):
            end.results.check()


def test_asyncio(space, rows):
    async def main():
        async with kvrail.aio.Queue(space, 32) as blocks:
            half = len(rows) // 2
            rows[:half] = numpy.arange(half)[:, None] % 249
            parts = [slice(at, half, 4) for at in range(4)]
            keys = kvrail.Keys(range(half))
            await asyncio.gather(*(blocks.put_many(keys[part], rows[part]) for part in parts))
            hits = await blocks.get_many(keys, rows[half:])
            assert hits.all_ok and (rows[:half] == rows[half:]).all()
            assert (await blocks.lookup([*keys, 1 << 80])).prefix == 0
            assert (await blocks.lookup([*range(half), 1 << 80])).prefix == half
            assert await blocks.put(b"one", b"its bytes") == "OK"
            assert await blocks.get_bytes(b"one") == b"its bytes"
            assert await blocks.get_bytes(b"none") is None
            buffer = bytearray(100)
            assert await blocks.get(b"one", buffer) == 9 and buffer.startswith(b"its bytes\0")
            assert await blocks.get(b"none", buffer) is None
            with pytest.raises(kvrail.TooSmallError):
                await blocks.get(b"one", bytearray(3))
            assert await blocks.put(b"long", bytes(100_000)) == "OK"
            assert await blocks.get_bytes(b"long") == bytes(100_000)
            task = asyncio.create_task(blocks.get_many(keys, rows[half:]))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await blocks.drain()
            assert (await blocks.drop([b"one", b"none"])).counts == {"OK": 1, "MISS": 1}
        with pytest.raises(kvrail.ClosedError):
            await blocks.lookup([b"one"])

    asyncio.run(asyncio.wait_for(main(), 60))


def test_the_sidecar_dies_under_an_event_loop():
    async def main():
        with kvrail.serve(store="16MiB") as sidecar, sidecar.attach() as client:
            async with kvrail.aio.Queue(client.store("kv").namespace("a", IDENTITY)) as blocks:
                asyncio.get_running_loop().call_later(0.2, sidecar.kill)
                with pytest.raises(kvrail.SessionEndedError):
                    while True:
                        await blocks.put_many(range(100), [b"x"] * 100)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_where_memory_lies(client, space):
    arena = client.create_arena(1 << 20, pages="base")
    other = client.create_arena(1 << 20, pages="base")
    view = numpy.frombuffer(arena, numpy.uint8)
    found, position = client.region_of(view[12345:])
    assert position == 12345 and memoryview(found)[:1].nbytes == 1
    assert client.region_of(view.ctypes.data + 1)[1] == 1
    assert client.region_of(bytearray(8)) is None and client.region_of(8) is None
    fd = os.memfd_create("own", os.MFD_ALLOW_SEALING)
    os.posix_fallocate(fd, 0, 1 << 20)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    own = mmap.mmap(fd, 1 << 20)
    assert client.region_of(own) is None
    brought = client.import_arena(fd, 1 << 20)
    found, position = client.region_of(memoryview(own)[8192:])
    assert position == 8192
    own[8192:8195] = b"own"
    before = client.copied_bytes
    assert space.put_many([b"k"], (found, [position], 3)).all_ok
    assert client.copied_bytes == before and space.get(b"k") == b"own"
    for it in (brought, other, arena):
        it.close()
    assert client.region_of(view) is None
    os.close(fd)


def test_an_event_loop_goes_on_during_a_lookup_that_hangs():
    with kvrail.serve(store="16MiB") as sidecar, sidecar.attach() as client:
        space = client.store("kv").namespace("a", IDENTITY)
        space.put_many(range(100), [b"x"] * 100)

        async def main():
            async with kvrail.aio.Queue(space, 8) as blocks:
                os.kill(sidecar.pid, signal.SIGSTOP)
                os.waitid(os.P_PID, sidecar.pid, os.WSTOPPED)
                lookup = asyncio.ensure_future(blocks.lookup(range(100)))
                turns = 0
                for _ in range(20):
                    await asyncio.sleep(0.01)
                    turns += 1
                assert turns == 20 and not lookup.done()
                os.kill(sidecar.pid, signal.SIGCONT)
                assert (await lookup).prefix == 100

        try:
            asyncio.run(main())
        finally:
            os.kill(sidecar.pid, signal.SIGCONT)


def test_lookups_of_a_queue_end_by_their_time(sidecar, client, space):
    space.put_many(range(10), [b"x"] * 10)
    with space.queue(8) as queue:
        os.kill(sidecar.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, sidecar.pid, os.WSTOPPED)  # a thread of it may still be running
        try:
            ticket = queue.submit_lookup(range(10), timeout=0.05)
            (end,) = queue.wait()
        finally:
            os.kill(sidecar.pid, signal.SIGCONT)
        assert end.ticket == ticket and end.results is None
        with pytest.raises(kvrail.TimedOutError, match="lookup"):
            _ = end.found
        assert queue.outstanding == 0
        twice = [queue.submit_lookup(range(10)), queue.submit_lookup([b"no", 1])]
        ends = queue.wait(2)
        assert sorted(end.ticket for end in ends) == twice
        assert sorted(end.found.prefix for end in ends) == [0, 10]
        client.store("kv").namespace(space.name, IDENTITY).clear()
        queue.submit_lookup(range(10))
        (end,) = queue.wait()
        assert end.found.prefix == 0


def taken_over(sidecar, space):
    """Removes the namespace, and gives its name to another identity: it cannot be opened again."""
    with sidecar.attach() as other:
        other.store("kv").remove(space.name)
        other.store("kv").namespace(space.name, {"model": "another"})


def test_each_call_of_a_queue_ends_when_its_namespace_is_taken_over(sidecar, space, rows):
    space.put_many(range(4), rows[:4])
    with space.queue(16) as queue:
        taken_over(sidecar, space)
        tickets = [queue.submit_get([at], rows[at : at + 1]) for at in range(2)]
        tickets += [queue.submit_lookup([at]) for at in range(2)]
        tickets.append(queue.submit_put([9], rows[9:10]))
        ends = queue.wait(len(tickets), timeout=30)
        assert sorted(end.ticket for end in ends) == tickets and queue.outstanding == 0
        for end in ends:
            with pytest.raises(kvrail.KvrailError, match="another identity"):
                _ = end.results or end.found


def test_awaited_calls_end_when_their_namespace_is_taken_over(sidecar, space, rows):
    space.put_many(range(4), rows[:4])

    async def main():
        async with kvrail.aio.Queue(space, 16) as blocks:
            taken_over(sidecar, space)
            calls = [blocks.get(at, rows[at]) for at in range(2)]
            calls += [blocks.lookup([at]) for at in range(2)]
            ends = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
            assert [type(end) for end in ends] == [type(ends[0])] * 4
            assert all("another identity" in str(end) for end in ends)

    asyncio.run(main())
