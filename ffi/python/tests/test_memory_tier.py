"""Blocks in the sidecar's memory tier: gets that need no request."""

import asyncio

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
        before = fills(client)
        assert space.lookup(names, fetch=True).prefix == 40
        until("all are in memory", lambda: fills(client) == before + 40)
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
