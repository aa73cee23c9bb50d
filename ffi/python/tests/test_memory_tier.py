"""Blocks in the sidecar's memory tier: gets that need no request."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import kvrail
import kvrail.aio
import numpy
import pytest
from host import until

BYTES = 50_000


@pytest.fixture(scope="module")
def tiered():
    settings = {"memory_tier.bytes": "16MiB"}
    with kvrail.serve(store="64MiB", block_mean="16KiB", members=2, settings=settings) as sidecar:
        yield sidecar


@pytest.fixture
def hot(tiered, request):
    """A namespace with 40 blocks in memory, and their names."""
    with tiered.attach(name="pytest") as client:
        space = client.store("kv").namespace(request.node.name[:64], {"model": "m"})
        names = [b"%d" % at for at in range(40)]
        assert space.put_many(names, [name.ljust(BYTES, b".") for name in names]).all_ok

        def all_in_memory():
            # Again and again: fetches take a part of the tier from others' blocks in a second.
            assert space.lookup(names, fetch=True).prefix == 40
            return all(space.view(name) is not None for name in names)

        until("all are in memory", all_in_memory)
        yield space, names


def fills(client):
    return sum(shard["counters"]["tier_fills"] for shard in client.status()["shards"])


def is_right(rows, names):
    return [bytes(row) for row in rows] == [name.ljust(BYTES, b".") for name in names]


def test_the_same_hot_blocks_again_and_again(hot):
    space, names = hot
    for _ in range(4):
        # Nothing is outstanding between the two, and yet the second has not ended.
        buffer = bytearray(BYTES)
        assert space.get(names[0], buffer, timeout=10) == BYTES and is_right([buffer], names[:1])
        rows = numpy.zeros((len(names), BYTES), numpy.uint8)
        assert space.get_many(names, rows, timeout=10).all_ok
        assert is_right(rows, names)


def test_hot_blocks_in_an_event_loop(hot):
    space, names = hot

    async def gets():
        async with kvrail.aio.Queue(space, 32) as blocks:
            for _ in range(3):
                rows = numpy.zeros((len(names), BYTES), numpy.uint8)
                assert (await blocks.get_many(names, rows)).all_ok
                assert is_right(rows, names)

    asyncio.run(asyncio.wait_for(gets(), 30))


def test_what_is_fetched_is_no_hold(hot):
    space, _ = hot
    for other in ({"touch": True}, {"demote": True}, {"hold": 1.0}):
        with pytest.raises(TypeError, match="fetch"):
            space.lookup([b"key"], fetch=True, **other)


def view(space, name):
    """The block as soon as it is in memory."""
    for _ in range(10_000):
        found = space.view(name)
        if found is not None:
            return found
        assert space.lookup([name], fetch=True).prefix == 1
    raise AssertionError("it does not come into memory")


def test_a_view_is_the_block_without_a_copy(hot):
    space, names = hot
    with view(space, names[5]) as block:
        assert len(block) == block.nbytes == BYTES and not block.released
        array = numpy.frombuffer(block, numpy.uint8)
        assert not array.flags.writeable and is_right([array], names[5:6])
        with pytest.raises(TypeError, match="read-only|readonly|writable"):
            memoryview(block)[0] = 1
        assert space.put(names[5], b"other".ljust(BYTES), replace=True) == "OK"
        assert is_right([array], names[5:6]), "it stays as it was"
    assert block.released and "released" in repr(block)
    assert is_right([array], names[5:6]), "the array keeps it"
    with pytest.raises(kvrail.ClosedError, match="released"):
        memoryview(block)
    with pytest.raises(kvrail.ClosedError, match="released"):
        len(block)
    del array
    assert bytes(view(space, names[5])) == b"other".ljust(BYTES)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_a_tensor_of_a_view_keeps_it(hot):
    torch = pytest.importorskip("torch")
    space, names = hot
    with view(space, names[7]) as block:
        tensor = torch.frombuffer(memoryview(block), dtype=torch.uint8)
    assert space.put(names[7], b"other".ljust(BYTES), replace=True) == "OK"
    others = [b"over %d" % at for at in range(600)]
    for name in others:
        space.put(name, name.ljust(BYTES, b"."))
        space.lookup([name], fetch=True)
    assert is_right([tensor.numpy()], names[7:8])


def test_what_is_not_in_memory_has_no_view(hot):
    space, names = hot
    assert space.view(b"no block has this key") is None
    assert space.drop([names[0]]).all_ok and space.view(names[0]) is None
    space.clear()
    assert all(space.view(name) is None for name in names)
    with pytest.raises(kvrail.RequestError, match="a key is 1.5"):
        space.view(1.5)


def test_a_view_is_of_the_whole_key(hot):
    """The directory of the tier knows half of a key."""
    space, _ = hot
    alike = [kvrail.uniform([7 | rank << 64]) for rank in range(3)]
    for rank in range(2):
        assert space.put_many(alike[rank], [b"rank %d" % rank * 1000]).all_ok

    def one_in_memory():
        assert space.lookup(alike[0], fetch=True).prefix == 1
        return any(space.view(names) is not None for names in alike[:2])

    until("one is in memory", one_in_memory)
    for _ in range(3):
        for rank in range(3):
            seen = space.view(alike[rank])
            assert seen is None or rank < 2 and bytes(seen) == b"rank %d" % rank * 1000
    assert bytes(space.get(alike[1])) == b"rank 1" * 1000 and space.get(alike[2]) is None


def test_a_stopped_sidecar_costs_the_first_view_a_moment(hot, tiered):
    space, names = hot
    with tiered.attach(name="pytest") as client:
        first = client.store("kv").namespace(space.name, {"model": "m"})
        assert is_right([first.get(names[3])], names[3:4])
        os.kill(tiered.pid, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            assert all(first.view(name) is None for name in names[:20])
            assert time.monotonic() - begun < 5, "one wait, not twenty"
        finally:
            os.kill(tiered.pid, signal.SIGCONT)
        until("views are there again", lambda: first.view(names[3]) is not None)


def test_views_are_bounded_and_come_back(hot):
    space, names = hot
    held = []
    while (found := next(filter(None, (space.view(name) for name in names)), None)) is not None:
        held.append(found)
    assert 4 <= len(held) <= 255
    assert space.get(names[1]) == names[1].ljust(BYTES, b"."), "gets go on"
    held.pop().release()
    assert space.view(names[2]) is not None


HOLDER = """
import kvrail, os, sys, time
client = kvrail.Client(sys.argv[1])
space = client.store("kv").namespace(sys.argv[2], {"model": "m"})
held = [view for name in range(40) if (view := space.view(b"%d" % name)) is not None]
if os.fork() == 0:
    held[0].release()
    del held
    os._exit(0)
os.wait()
print(len(held), flush=True)
time.sleep(600)
"""


def test_a_killed_client_holds_nothing(hot, tiered):
    space, names = hot
    command = [sys.executable, "-c", HOLDER, str(tiered.socket), space.name]
    before = 0
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
            try:
                held = int(holder.stdout.readline())
            finally:
                holder.kill()
        assert held >= max(before, 4), "as many as the first"
        before = held
    # Their memory is used again: all blocks that fit come in.
    others = [b"other %d" % at for at in range(400)]
    for name in others:
        space.put(name, name.ljust(BYTES, b"."))
    for name in others * 2:
        space.lookup([name], fetch=True)
        assert space.get(name) == name.ljust(BYTES, b".")


HOSTILE = """
import kvrail, random, struct, sys
client = kvrail.Client(sys.argv[1])
space = client.store("kv").namespace(sys.argv[2], {"model": "m"})
assert space.view(b"1") is not None
with open("/proc/self/maps") as maps:
    (page,) = [int(line.split("-")[0], 16) for line in maps if "kvrail-holds" in line]
noise = random.Random(7)
print("ready", flush=True)
with open("/proc/self/mem", "r+b", buffering=0) as memory:
    while True:
        words = []
        for _ in range(512):
            # A tier that there is, some entry, a count that many entries have; or anything.
            held = noise.randint(1, 2) << 48 | noise.randint(1, 8) * 2 << 32 | noise.randrange(2048)
            words.append(held if noise.random() < 0.9 else noise.getrandbits(64))
        memory.seek(page)
        memory.write(struct.pack("512Q", *words))
"""


def test_a_client_with_garbage_in_its_words_holds_no_more_than_its_share(hot, tiered):
    space, names = hot
    command = [sys.executable, "-c", HOSTILE, str(tiered.socket), space.name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as hostile:
        try:
            assert hostile.stdout.readline() == "ready\n"
            with tiered.attach(name="pytest") as client:
                before, wanted = fills(client), 500

                def come_and_go():
                    # Of these some 300 have room at once; a block comes in at its second get.
                    for at in range(600):
                        name = b"more %d" % at
                        space.put(name, name.ljust(BYTES, b"."))
                        for _ in range(2):
                            assert space.get(name) == name.ljust(BYTES, b".")
                        assert space.get(names[1]) == names[1].ljust(BYTES, b".")
                    return fills(client) > before + wanted

                until("blocks come and go", come_and_go)
            assert hostile.poll() is None, "it was not dismissed for its own words"
        finally:
            hostile.kill()


def test_a_view_outlives_its_client(tiered):
    client = tiered.attach(name="pytest")
    space = client.store("kv").namespace("outlives", {"model": "m"})
    space.put(b"one", b"1" * BYTES)
    block = view(space, b"one")
    client.close()
    assert bytes(block) == b"1" * BYTES
    with pytest.raises(kvrail.ClosedError):
        space.view(b"one")
