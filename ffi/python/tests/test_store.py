"""Blocks by key: any length, any memory, verified, alive again after a kill."""

import array
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import kvrail
import numpy
import pytest
from host import until

IDENTITY = {"model": "m", "dtype": "fp8", "tokens": 16}
GUARD = 0x5A
FIRST_SIGHT = "little write budget is left, and the block was not put before"


@pytest.fixture(scope="module")
def sidecar():
    with kvrail.serve(store="192MiB", segment="8MiB", block_mean="16KiB", members=2) as sidecar:
        yield sidecar


def some(nbytes: int, seed: int = 0) -> bytes:
    return random.Random(nbytes * 1000 + seed).randbytes(nbytes)


def test_a_block(space):
    assert space.get(b"key") is None
    assert space.put(b"key", b"bytes", metadata=b"mine", durable=True) == "OK"
    assert space.put(b"key", b"others") == "PRESENT"
    assert space.get(b"key") == b"bytes"
    assert space.usage()["blocks"] == 1 and space.usage()["bytes"] == 5
    assert space.name == "test_a_block"
    assert space.identity == '{"dtype":"fp8","model":"m","tokens":16}'


def test_a_replacing_put_never_leaves_other_bytes(space):
    assert space.put(b"key", b"bytes", replace=True) == "OK"
    assert space.put(b"key", b"bytes", replace=True) == "PRESENT", "these very bytes"
    for other in (b"other", b"longer than that", b"x", some(640_256)):
        before = space.usage()["bytes"]
        (word,) = results = space.put_many([b"key"], [other], replace=True)
        assert (word, list(results.replaced)) == ("OK", [before])
        assert space.get(b"key") == other
        assert (space.usage()["blocks"], space.usage()["bytes"]) == (1, len(other))
    assert space.put(b"key", b"others") == "PRESENT", "one that does not replace leaves it"
    dropped = space.drop([b"key", b"another"])
    assert (list(dropped), list(dropped.lengths)) == (["OK", "MISS"], [640_256, 0])


def test_what_was_replaced_does_not_come_back_with_a_crash(tmp_path):
    """The put of the other bytes need not outlive it, but the first ones must not."""
    names = [b"%d" % at for at in range(64)]
    first = [some(5000, at) for at in range(64)]
    second = [some(5000 + at % 2, 1000 + at) for at in range(64)]
    with kvrail.serve(store="64MiB", path=tmp_path) as sidecar, sidecar.attach() as client:
        space = client.store("kv").namespace("crash", IDENTITY)
        assert space.put_many(names, first, durable=True).all_ok
        assert space.put_many(names, second, replace=True).all_ok
        sidecar.kill()
    with kvrail.serve(store="64MiB", path=tmp_path) as sidecar, sidecar.attach() as client:
        space = client.store("kv").namespace("crash", IDENTITY)
        assert all(space.get(name) in (it, None) for name, it in zip(names, second, strict=True))


def test_blocks_that_are_touched_outlive_those_that_are_not():
    with kvrail.serve(store="64MiB", segment="4MiB") as sidecar, sidecar.attach() as client:
        space = client.store("kv").namespace("touched", IDENTITY)
        hot, cold = ([b"%s %d" % (what, at) for at in range(16)] for what in (b"hot", b"cold"))
        assert space.put_many([*hot, *cold], [some(65536)] * 32).all_ok
        queue = space.queue(16)
        for turn in range(64):
            names = [b"%d %d" % (turn, at) for at in range(64)]
            space.put_many(names, [some(65536, turn)] * 64)
            ticket = queue.submit_lookup(hot, touch=True)
            (end,) = queue.wait()
            assert end.ticket == ticket and end.found.prefix == 16
        queue.close()
        assert not any(space.lookup(cold)), "untouched ones age"
        with pytest.raises(TypeError, match="hold, touch, demote and fetch"):
            space.lookup(hot, hold=1.0, touch=True)


LENGTHS = [1, 7, 511, 512, 513, 4095, 4096, 4097, 65536, 640_256, 1_124_352, 4 << 20]


@pytest.mark.parametrize("where", ["arena", "bytes"])
def test_blocks_of_any_length_leave_their_neighbours_alone(client, space, where):
    arena = client.create_arena(16 << 20, pages="base")
    memory = memoryview(arena) if where == "arena" else memoryview(bytearray(16 << 20))
    for nbytes in LENGTHS:
        source, target = memory[4096 : 4096 + nbytes], memory[8 << 20 :]
        source[:] = some(nbytes)
        target[: nbytes + 8192] = bytes([GUARD]) * (nbytes + 8192)
        assert space.get(nbytes, target) is None
        assert space.put(nbytes, source) == "OK"
        assert space.get(nbytes, target[4096 : 4096 + nbytes + 9]) == nbytes
        assert target[4096 : 4096 + nbytes] == some(nbytes)
        assert set(target[:4096]) == {GUARD} == set(target[4096 + nbytes : nbytes + 8192])
        if nbytes > 1:
            with pytest.raises(kvrail.TooSmallError, match=f"{nbytes} bytes") as error:
                space.get(nbytes, memory[: nbytes - 1])
            assert error.value.needed == nbytes
        assert space.get(nbytes) == some(nbytes)
    moved = sum(LENGTHS)
    assert client.copied_bytes == (moved if where == "arena" else 3 * moved)


def test_many_blocks_of_any_memory(client, space):
    count, nbytes = 300, 5000
    blocks = numpy.frombuffer(some(count * nbytes), numpy.uint8).reshape(count, nbytes)
    keys = [b"%d" % at for at in range(count)]
    arena = client.create_arena(8 << 20, pages="base")
    rows = numpy.frombuffer(arena, numpy.uint8)[: count * 8192].reshape(count, 8192)
    rows[:, :nbytes] = blocks
    before = client.copied_bytes
    puts = space.put_many(keys, rows[:, :nbytes])
    assert puts.all_ok and puts.copied_bytes == 0 == client.copied_bytes - before
    assert list(puts) == ["OK"] * count and puts[-1] == "OK" and puts.prefix == count

    def check(buffers, see, copied):
        hits = space.get_many(keys, buffers)
        assert hits.counts == {"OK": count} and hits.prefix == count
        assert list(hits.lengths) == [nbytes] * count
        assert numpy.asarray(hits.ok).all()
        assert hits.copied_bytes == (count * nbytes if copied else 0)
        for at in range(count):
            assert bytes(see(at)) == bytes(blocks[at]), at

    rows[:] = 0
    check((arena, numpy.arange(count) * 8192, nbytes), lambda at: rows[at, :nbytes], False)
    rows[:] = 0
    check((arena, range(0, count * 8192, 8192), [nbytes] * count), lambda at: rows[at, :nbytes], 0)
    view = memoryview(arena)
    rows[:] = 0
    check([view[at * 8192 :][:nbytes] for at in range(count)], lambda at: rows[at, :nbytes], False)
    rows[:] = 0
    check(rows[::-1, :nbytes], lambda at: rows[count - 1 - at, :nbytes], False)
    own = numpy.zeros((count, nbytes), numpy.uint8)
    check(own, lambda at: own[at], True)
    each = [bytearray(nbytes) for _ in range(count)]
    check(each, lambda at: each[at], True)
    words = numpy.zeros((count, 625), numpy.float64)
    check(words, lambda at: words[at].tobytes(), True)
    # Begins where devices cannot reach: copied, and counted.
    odd = [view[at * 8192 + 1 :][:nbytes] for at in range(count)]
    check(odd, lambda at: odd[at], True)


def test_keys_of_any_kind(space):
    hashes = numpy.frombuffer(some(64 * 32), numpy.uint8).reshape(64, 32)
    listed = [bytes(row) for row in hashes]
    assert list(kvrail.Keys(hashes)) == list(kvrail.Keys(listed))
    assert list(kvrail.uniform(hashes)) == list(kvrail.uniform(listed))
    assert list(kvrail.uniform(hashes[:, :16])) == list(kvrail.uniform(hashes))
    assert list(kvrail.uniform(hashes)) != list(kvrail.Keys(hashes))
    assert list(kvrail.Keys(hashes.view("S32").ravel())) == list(kvrail.Keys(listed))
    assert list(kvrail.Keys(map(memoryview, listed))) == list(kvrail.Keys(listed))
    assert list(kvrail.Keys(map(bytearray, listed))) == list(kvrail.Keys(listed))
    numbers = array.array("Q", range(10))
    assert list(kvrail.Keys(numbers)) == list(kvrail.Keys(range(10)))
    assert list(kvrail.Keys(numpy.arange(10))) == list(kvrail.Keys(range(10)))
    assert list(kvrail.uniform([0, 2**128 - 1])) == [0, 2**128 - 1]
    assert kvrail.uniform(bytes(range(16)))[0] == int.from_bytes(bytes(range(16)), "little")
    keys = kvrail.Keys(listed)
    assert len(keys[10:20]) == 10 and list(keys[10:20]) == list(keys)[10:20]
    assert keys[::-1][0] == keys[-1] and len(keys.tobytes()) == 64 * 16
    assert list(kvrail.uniform(keys)) == list(keys)
    space.put_many(keys, [b"%d" % at for at in range(64)])
    assert space.get(listed[7]) == b"7" and space.get(keys[7:8]) == b"7"
    assert space.get(kvrail.uniform(keys[7])) == b"7"
    assert len({*kvrail.Keys([b"", b"\0", b"\0\0", 0, 1])}) == 5


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("key", "one key"),
        (b"key", "one key"),
        (["key"], "encode"),
        ([-1], "2\\*\\*128"),
        ([2**128], "2\\*\\*128"),
        ([1.5], "integer"),
        ([None], "integer"),
        (5, "sequence"),
        (numpy.zeros(16, numpy.uint8), "one key"),
        (numpy.zeros((2, 4, 4), numpy.uint8)[:, ::2], "lie apart"),
        ([memoryview(b"abcd")[::2]], "lie apart"),
    ],
)
def test_what_is_no_key(space, keys, words):
    with pytest.raises(kvrail.RequestError, match=words):
        space.lookup(keys)
    with pytest.raises(kvrail.RequestError, match="at least 16"):
        kvrail.uniform([b"short"])


def test_no_keys_and_the_same_keys(space):
    assert len(space.put_many([], [])) == 0 and len(space.get_many([], [])) == 0
    assert len(space.lookup([])) == 0 and len(space.drop([])) == 0
    space.release([])
    twice = space.put_many([b"k"] * 3, [b"a", b"a", b"a"])
    assert twice[0] == "OK" and set(twice) <= {"OK", "PRESENT", "PENDING"}
    hits = space.get_many([b"k"] * 3, numpy.zeros((3, 1), numpy.uint8))
    assert hits.all_ok
    assert list(space.lookup([b"k", b"no", b"k"])) == [True, False, True]


@pytest.mark.parametrize(
    ("buffers", "words"),
    [
        ([b"x"], "read-only"),
        ([bytearray(0)], "0 bytes"),
        ([memoryview(bytearray(8))[::2]], "contiguous"),
        (numpy.zeros((1, 8), numpy.uint8)[:, ::2], "contiguous|lie apart"),
        ([5], "contiguous"),
        (7, "buffer"),
        ([bytearray(8)] * 2, "2 buffers for 1 keys"),
        (numpy.zeros((3, 8), numpy.uint8).reshape(3, 8)[:, :7], "3 rows for 1 keys"),
    ],
)
def test_what_is_no_buffer_of_a_get(space, buffers, words):
    space.put(b"k", b"x")
    with pytest.raises(kvrail.RequestError, match=words):
        space.get_many([b"k"], buffers)


def test_requests_that_cannot_be(client, space):
    arena = client.create_arena(1 << 20, pages="base")
    unit, most = space_units(client)
    with pytest.raises(kvrail.RequestError, match=f"takes up to {most}"):
        space.put(b"k", bytes(most + 1))
    with pytest.raises(kvrail.RequestError, match="1025 bytes, 1024 at most"):
        space.put(b"k", b"x", metadata=b"m" * 1025)
    with pytest.raises(kvrail.RequestError, match="2 pieces of metadata for 1"):
        space.put_many([b"k"], [b"x"], metadata=[b"a", b"b"])
    with pytest.raises(kvrail.RequestError, match="overlap"):
        space.get_many([1, 2], (arena, [0, 4096], 8192))
    for positions, lengths in (((1 << 20) - 8, 16), (0, 0), (unit + 1, 16)):
        with pytest.raises(kvrail.RequestError, match="block 0"):
            space.put_many([b"k"], (arena, [positions], lengths))
    with pytest.raises(kvrail.RequestError, match="1 keys and 2 positions"):
        space.put_many([b"k"], (arena, [0, 4096], 16))
    with pytest.raises(TypeError, match="metadata"):
        space.get(b"k", metadata=b"")
    with pytest.raises(kvrail.RequestError, match="hold"):
        space.lookup([b"k"], hold=-1)
    assert space.usage()["blocks"] == 0
    with client_of_another() as other, pytest.raises(kvrail.RequestError, match="another client"):
        space.put_many([b"k"], (other.create_arena(4096), [0], 16))
    arena.close()
    with pytest.raises(kvrail.ClosedError):
        space.put_many([b"k"], (arena, [0], 16))


def space_units(client):
    store = client.store("kv")
    return store.memory_alignment, store.block_bytes_max


def client_of_another():
    class Other:
        def __enter__(self):
            self.sidecar = kvrail.serve("16MiB")
            self.client = self.sidecar.attach()
            return self.client

        def __exit__(self, *raised):
            self.client.close()
            self.sidecar.__exit__(None, None, None)

    return Other()


def test_namespaces_and_identities(client):
    store = client.store("kv")
    with pytest.raises(kvrail.MissError, match="no namespace"):
        store.namespace("new", IDENTITY, create=False)
    one = store.namespace("new", IDENTITY)
    same = store.namespace("new", '{"tokens": 16, "dtype": "fp8", "model": "m"}', create=False)
    with pytest.raises(kvrail.NamespaceError, match='dtype is "fp8" in the store and "bf16"'):
        store.namespace("new", IDENTITY | {"dtype": "bf16"})
    for nothing, words in (({}, "says nothing"), ({"a": None}, '"a" is null'), ("[]", "object")):
        with pytest.raises(kvrail.NamespaceError, match=words):
            store.namespace("new", nothing)
    with pytest.raises(kvrail.NamespaceError, match="JSON"):
        store.namespace("new", {"a": object()})
    for name in ("", "x" * 65):
        with pytest.raises(kvrail.NamespaceError, match="1 to 64 bytes"):
            store.namespace(name, IDENTITY)
    other = store.namespace("other", IDENTITY)
    one.put(b"k", b"one's")
    assert same.get(b"k") == b"one's" and other.get(b"k") is None
    assert {"new", "other"} <= {space["name"] for space in store.namespaces()}
    store.clear("new")
    store.remove("other")
    assert "other" not in {space["name"] for space in store.namespaces()}
    with pytest.raises(kvrail.MissError):
        store.clear("absent")
    assert repr(store) == '<kvrail.Store "kv">' and store.members == 2


def test_a_raw_volume_is_no_store():
    with kvrail.serve("16MiB") as sidecar, sidecar.attach() as client:
        with pytest.raises(kvrail.NoStoreError, match="--kind store"):
            client.store("kv")
        with pytest.raises(kvrail.UnknownVolumeError, match="it has: kv"):
            client.store("nowhere")


def test_lookup_drop_and_release(space):
    keys = [b"%d" % at for at in range(700)]
    space.put_many(keys, [b"x"] * 700)
    found = space.lookup(keys, hold=30.0)
    assert found.prefix == found.held == len(found) == 700 and found.warming == 0
    space.release(keys)
    dropped = space.drop([keys[600], b"never"], durable=True)
    assert list(dropped) == ["OK", "MISS"] and list(dropped.ok) == [True, False]
    assert dropped[:1] == ["OK"] and dropped[::-1] == ["MISS", "OK"]
    found = space.lookup([*keys, b"never"])
    assert found[599:602] == [True, False, True] and found[-1:] == [False] and found[9:9] == []
    assert found.prefix == 600 and sum(found) == 699
    assert numpy.asarray(found.there).sum() == 699 and not found[600] and not found[-1]
    front = space.lookup([b"never"] + keys, prefix_only=True)
    assert front.prefix == 0 and 0 < len(front) <= 1 + len(keys) and not front[0]


def test_a_million_keys(space):
    space.put(kvrail.uniform(999_999), b"last")
    keys = kvrail.uniform(range(1_000_000))
    found = space.lookup(keys)
    assert len(found) == 1_000_000 and sum(found.there) == 1 and found[-1]
    # Keys that were sent before the first answer: a queue's worth.
    assert 0 < len(space.lookup(keys, prefix_only=True)) < 10_000
    with pytest.raises(kvrail.TimedOutError):
        space.lookup(keys, timeout=0.001)
    assert space.get(kvrail.uniform(999_999)) == b"last"


def test_somebody_clears_the_namespace(sidecar, space):
    keys = [b"%d" % at for at in range(50)]
    space.put_many(keys, [b"old"] * 50)
    with sidecar.attach() as other:
        theirs = other.store("kv").namespace(space.name, IDENTITY)
        theirs.clear()
        theirs.put_many(keys, [b"new"] * 50)
    into = numpy.zeros((50, 3), numpy.uint8)
    missed = space.get_many(keys, into)
    assert missed.counts == {"MISS": 50} and "cleared" in missed.reason(0) and not into.any()
    assert space.get_many(keys, into).all_ok and bytes(into[0]) == b"new"
    with sidecar.attach() as other:
        other.store("kv").clear(space.name)
    assert space.lookup(keys).prefix == 0
    with sidecar.attach() as other:
        other.store("kv").clear(space.name)
    # No put is lost: the namespace is opened again, and the blocks are sent once more.
    assert space.put_many(keys, [b"x"] * 50).counts == {"OK": 50}
    with sidecar.attach() as other:
        other.store("kv").clear(space.name)
    assert space.put_many(keys, [b"x"] * 50, chain=True).counts == {"OK": 50}
    with sidecar.attach() as other:
        other.store("kv").clear(space.name)
    with space.queue(16) as queue:
        queue.submit_put(keys, [b"y"] * 50)
        (end,) = queue.wait(timeout=30)
        assert end.results.counts == {"OK": 50} and space.get(b"49") == b"y"
    space.clear()
    assert space.usage()["blocks"] == 0 and space.put(b"k", b"x") == "OK"


def test_a_chain_ends_where_it_is_declined():
    keys = [b"%d" % at for at in range(2000)]
    with (
        kvrail.serve(store="64MiB", segment="8MiB", block_mean="4MiB") as sidecar,
        sidecar.attach() as client,
    ):
        space = client.store("kv").namespace("chains", IDENTITY)
        puts = space.put_many(keys, [bytes(4096)] * 2000, chain=True, depth=3)
        assert puts.counts == {"OK": puts.prefix, "DECLINED": 2000 - puts.prefix}
        assert "index" in puts.reason(puts.prefix) and "in its chain" in puts.reason(-1)


def test_puts_carry_their_place_in_their_chain(space):
    def put(keys, **options):
        assert space.put_many(keys, [b"x"] * len(keys), metadata=keys, **options).all_ok

    put([b"a", b"b"], chain="begins", depth=3)
    put([b"c", b"d"], chain=["begins", "extends"], depth=[5, 1 << 40])
    put([b"e", b"f"], chain=["extends"] * 2, depth=numpy.array([7, 9]))
    put([b"g", b"h"], depth=6)
    put([b"i", b"j"], chain="extends")
    assert space.put(b"k", b"x", metadata=b"k", chain="begins", depth=2) == "OK"
    depths = {block.metadata.decode(): block.depth for block in space.list()}
    wanted = {"a": 3, "b": 4, "c": 5, "d": 32767, "e": 7, "f": 9, "g": 6, "h": 6, "i": 0, "j": 1}
    assert depths == wanted | {"k": 2}

    for options, words in [
        ({"chain": "new"}, "chain is 'new'"),
        ({"chain": 5}, "chain is 5"),
        ({"chain": [True, False]}, "chain is True"),
        ({"chain": ["begins"]}, "chain has 1 items for 2 keys"),
        ({"depth": [1, 2, 3]}, "depth has 3 items for 2 keys"),
        ({"depth": -1}, "depth is -1"),
    ]:
        with pytest.raises(kvrail.RequestError, match=re.escape(words)):
            put([b"y", b"z"], **options)
    with pytest.raises(TypeError, match="no option of this call"):
        space.get_many([b"a"], [bytearray(1)], chain="begins")

    keys = [b"a", b"b", b"none", b"c", b"d"]
    for look in (space.lookup, space.probe_many):
        assert [look(keys[:count]).chain for count in (3, 4, 5)] == ["extends"] * 2 + ["begins"]
        assert look([b"none"]).chain == "begins" and look([]).chain == "extends"
    assert space.lookup(keys, prefix_only=True).chain == "begins"


def test_blocks_have_a_worth_and_a_time_to_live(client, space):
    assert space.put(b"as others", b"x") == "OK"
    assert space.put(b"less", b"x", worth="low") == "OK"
    assert space.put_many([b"more", b"too"], [b"x"] * 2, worth="high", ttl=600.0).all_ok
    assert space.put(b"over", b"x", worth="high", ttl=0) == "OK"
    assert space.put_many([b"one", b"other"], [b"x"] * 2, worth=("low", "high")).all_ok

    def worth_of(key):
        return space.explain(key)["state"]["there"]["worth"]

    worth = {key: worth_of(key) for key in (b"as others", b"less", b"more", b"too")}
    assert worth == {b"as others": "normal", b"less": "low", b"more": "high", b"too": "high"}
    assert (worth_of(b"one"), worth_of(b"other")) == ("low", "high")
    assert space.get(b"over") == b"x", "it is served for as long as it is there"
    assert space.lookup([b"more", b"none"], demote=True).prefix == 1
    assert (worth_of(b"more"), worth_of(b"too")) == ("normal", "high")
    assert client.dropped_hints == 0, "this sidecar takes them"
    for options, words in [
        ({"worth": "urgent"}, "worth is 'urgent'"),
        ({"worth": 2}, "worth is 2"),
        ({"worth": ["low", "high"]}, "worth has 2 items for 1 keys"),
        ({"ttl": -1}, "ttl"),
        ({"ttl": float("nan")}, "ttl"),
    ]:
        with pytest.raises((kvrail.RequestError, ValueError), match=words):
            space.put(b"y", b"z", **options)
    for options in ({"touch": True, "demote": True}, {"hold": 1.0, "demote": True}):
        with pytest.raises(TypeError, match="demote"):
            space.lookup([b"more"], **options)
    with pytest.raises(TypeError, match="no option of this call"):
        space.get_many([b"a"], [bytearray(1)], worth="low")


def test_a_prefix_ends_in_the_middle_of_a_long_lookup(space):
    names = [b"%d" % at for at in range(9000)]
    assert space.put_many(names, [b"x"] * 9000).prefix > 100
    space.drop(names[100:8192])
    assert space.probe_many(names).prefix == 100
    assert space.lookup(names, prefix_only=True).prefix == 100


def write_budget(sidecar, words):
    """Gives a running sidecar another one; the volume's table is its configuration's last."""
    config = sidecar.socket.parent / "kvrail.toml"
    lines = [line for line in config.read_text().splitlines() if "write_budget" not in line]
    config.write_text("\n".join([*lines, f'write_budget = "{words}"', ""]))
    os.kill(sidecar.pid, signal.SIGHUP)


def declined(puts):
    return puts.counts == {"DECLINED": 30}


def first_sight(puts):
    return declined(puts) and {puts.reason(at) for at in range(30)} == {FIRST_SIGHT}


def test_a_chain_is_taken_at_second_sight():
    with kvrail.serve(store="16MiB", segment="1MiB", block_mean="16KiB") as sidecar:
        write_budget(sidecar, "0.001dwpd")
        until("the budget is in force", lambda: "write_budget" in sidecar.log())
        space = sidecar.attach().store("kv").namespace("rationed", IDENTITY)
        filled, chains = itertools.count(), itertools.count()
        deadline, first = time.monotonic() + 60, None
        # What the last block of a fill overdraws decides how long the budget is short: too short
        # to be seen, at times.
        while first is None or not first_sight(first):
            write_budget(sidecar, "0.001dwpd")
            reason = None
            while reason != "no write budget is left":  # until the ring was full once
                assert time.monotonic() < deadline, reason
                reason = space.put_many([b"fill %d" % next(filled)], [bytes(40_000)]).reason(0)
            assert next(filled) * 40_000 > 8 << 20
            write_budget(sidecar, "20dwpd")  # some seconds between nothing and enough
            first = None
            while first is None or (declined(first) and not first_sight(first)):
                assert time.monotonic() < deadline, first
                time.sleep(0.05)
                chain = next(chains)
                keys, blocks = [b"%d %d" % (chain, at) for at in range(30)], [bytes(500)] * 30
                first = space.put_many(keys, blocks, chain=True)
        write_budget(sidecar, "200dwpd")
        while not (second := space.put_many(keys, blocks, chain=True)).all_ok:
            assert time.monotonic() < deadline, second
        assert space.lookup(keys).prefix == 30


def test_threads(client, space):
    def work(me):
        arena = client.create_arena(1 << 20, pages="base")
        rows = numpy.frombuffer(arena, numpy.uint8).reshape(-1, 8192)
        for round in range(10):
            keys = [b"%d %d %d" % (me, round, at) for at in range(64)]
            rows[:64] = numpy.arange(64)[:, None] + me
            assert space.put_many(keys, rows[:64]).all_ok
            assert space.get_many(keys, rows[64:]).all_ok
            assert (rows[:64] == rows[64:]).all()
            assert space.lookup(keys, hold=1.0).prefix == 64
            assert space.get(keys[3]) == bytes([3 + me]) * 8192
            assert space.drop(keys).all_ok

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))


TEN_LINES = """
import sys, kvrail
with kvrail.Client(sys.argv[1]) as client:
    space = client.store("kv").namespace("two processes", {"model": "m"})
    for nbytes in (1, 4097, 640256, 1124352):
        block = bytes(range(256)) * (nbytes // 256 + 1)
        if sys.argv[2] == "put":
            assert space.put(nbytes, block[:nbytes]) == "OK"
        else:
            assert space.get(nbytes) == block[:nbytes]
"""


def test_two_processes(sidecar):
    for verb in ("put", "get"):
        command = [sys.executable, "-c", TEN_LINES, str(sidecar.socket), verb]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_blocks_outlive_a_killed_sidecar(tmp_path):
    blocks = {at: some(1000 * at + 1, at) for at in range(40)}
    for life in range(3):
        with kvrail.serve(store="64MiB", path=tmp_path) as sidecar, sidecar.attach() as client:
            space = client.store("kv").namespace("kept", IDENTITY)
            for at, block in blocks.items():
                assert space.get(at) == (block if life else None)
            assert space.put_many(blocks, blocks.values()).all_ok
            # A durable put writes the open page: the kill loses no put before it.
            assert space.put(f"fence {life}".encode(), b"x", durable=True) == "OK"
            if life < 2:
                sidecar.kill()
                with pytest.raises(kvrail.SessionEndedError):
                    space.get_many(blocks, [bytearray(1 << 16) for _ in blocks])
                with pytest.raises(kvrail.SessionEndedError):
                    space.lookup(blocks)
                with pytest.raises(kvrail.SessionEndedError):
                    space.put(b"k", b"x")
                with pytest.raises(kvrail.SessionEndedError):
                    space.get(b"k")
    assert os.listdir(tmp_path) == ["kv-0.img"]


def test_an_embedded_store_that_cannot_be():
    with pytest.raises(kvrail.ServeError, match="not both"):
        kvrail.serve("1GiB", store="1GiB")
    with pytest.raises(kvrail.ServeError, match="store='1GiB'"):
        kvrail.serve("1GiB", path="/tmp")
    with pytest.raises(kvrail.ServeError, match="segment"):
        kvrail.serve(store="64MiB", segment="3MiB")


def test_a_full_store_evicts(tmp_path):
    with kvrail.serve(store="16MiB") as sidecar, sidecar.attach() as client:
        space = client.store("kv").namespace("full", IDENTITY)
        for first in range(0, 1024, 64):
            keys = range(first, first + 64)
            puts = space.put_many(keys, [some(40_000, key) for key in keys])
            assert set(puts) <= {"OK", "DECLINED"}
        found = space.lookup(range(1024))
        assert 100 < sum(found) < 700
        newest = [key for key in range(1024) if found[key]][-1]
        assert newest > 900 and space.get(newest) == some(40_000, newest)


def test_calls_after_the_end(sidecar):
    client = sidecar.attach()
    space = client.store("kv").namespace("ended", IDENTITY)
    store = client.store("kv")
    client.close()
    calls = (
        lambda: space.put(b"k", b"x"),
        lambda: space.get(b"k"),
        lambda: space.lookup([b"k"]),
        lambda: space.release([b"k"]),
        lambda: space.drop([b"k"]),
        lambda: space.get_many([b"k"], [bytearray(1)]),
        space.clear,
        space.usage,
        store.namespaces,
        lambda: store.namespace("a", IDENTITY),
    )
    for call in calls:
        with pytest.raises(kvrail.ClosedError):
            call()


def test_a_fork_and_an_interrupt(sidecar):
    code = """
import os, signal, sys, time, kvrail
client = kvrail.Client(sys.argv[1])
space = client.store("kv").namespace("fork", {"model": "m"})
space.put(b"k", b"x")
if os.fork() == 0:
    refused = 0
    for use in (lambda: space.get(b"k"), lambda: space.lookup([b"k"]), space.usage):
        try:
            use()
        except kvrail.ForkedError:
            refused += 1
    os._exit(0 if refused == 3 else 1)
assert os.wait()[1] == 0
stopped = int(sys.argv[2])
signal.signal(signal.SIGALRM, signal.default_int_handler)
os.kill(stopped, signal.SIGSTOP)
threads = [f"/proc/{stopped}/task/{thread}/stat" for thread in os.listdir(f"/proc/{stopped}/task")]
while not all(") T" in open(thread).read() for thread in threads):
    time.sleep(0.001)
waits = (lambda: space.get(b"k"), lambda: space.lookup([b"k"]), lambda: space.put(b"l", b"x"),
         lambda: space.release([b"k"]), lambda: space.drop([b"k"]), space.usage, space.clear)
try:
    for wait in waits:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            wait()
            print("no interrupt")
        except KeyboardInterrupt:
            print("interrupted")
    for wait in (lambda: space.get(b"k", timeout=0.1), lambda: space.lookup([b"k"], timeout=0.1)):
        try:
            wait()
        except kvrail.TimedOutError:
            print("late")
finally:
    os.kill(stopped, signal.SIGCONT)
print(space.get(b"k", timeout=20))
client.close()
"""
    command = [sys.executable, "-c", code, str(sidecar.socket), str(sidecar.pid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split()[:9] == ["interrupted"] * 7 + ["late"] * 2, done
    assert done.returncode == 0, done


def test_listings_and_what_is_gone(client, space):
    store = client.store("kv")
    events = store.events()
    names = [b"name %d" % at for at in range(300)]
    blocks = [b"x" * (1 + at) for at in range(300)]
    space.put_many(names, blocks, metadata=names, chain=True)
    listed = {block.metadata: block for block in space.list()}
    assert sorted(listed) == sorted(names)
    for at, name in enumerate(names):
        block = listed[name]
        assert (block.length, block.depth) == (1 + at, at) and block.member < 2
        assert block.key == kvrail.Keys([name])[0] and abs(block.put_unix_s - time.time()) < 600
    keys = kvrail.uniform(block.key for block in listed.values())
    assert space.lookup(keys).prefix == 300
    assert "there" in space.explain(names[0])["state"]
    assert space.explain(b"never")["state"] == "absent"
    uid = space.usage()["uid"]
    space.drop(names[:2])
    space.clear()
    deadline, gone = time.monotonic() + 10, []
    # Each member has its own feed: the clear of one may come before the drop of the other.
    while len({event.key for event in gone}) < 3 and time.monotonic() < deadline:
        more, lost = events.poll()
        gone += [event for event in more if event.uid == uid]
        assert lost == 0
        time.sleep(0.01)
    whys = {event.key: event.why for event in gone}
    dropped = {key: "dropped" for key in kvrail.Keys(names[:2])}
    assert whys == dropped | {0: "cleared"}
    assert list(space.list()) == []
