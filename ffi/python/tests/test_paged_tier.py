"""Blocks of a paged cache that the sidecar's memory tier has: a stand-in for the GPU reads them
where they lie, and they are held until it has."""

import time

import kvrail
import numpy
import pytest
from host import until
from kvrail import paged
from kvrail._mover import Way
from standin import Tensor
from standin_mover import StandIn

BYTES, PAGES = 8192, 64
COUNT = 12


class Late(StandIn):
    """A GPU that has not begun to read until it is let go."""

    busy = False

    def begin(self, way, batch, behind=None) -> None:
        if self.busy and way is Way.IN:
            self.waiting.append((way, batch, behind))
            self.looks[batch] = 0
        else:
            super().begin(way, batch, behind)

    @property
    def waiting(self) -> list:
        return self.__dict__.setdefault("_waiting", [])

    def is_done(self, batch) -> bool:
        return all(batch is not it for _, it, _ in self.waiting) and super().is_done(batch)

    def go_on(self) -> None:
        self.busy = False
        for way, batch, behind in self.waiting:
            super().begin(way, batch, behind)
        self.waiting.clear()


@pytest.fixture(scope="module")
def sidecar():
    settings = {"memory_tier.bytes": "16MiB"}
    with kvrail.serve(store="64MiB", block_mean="16KiB", members=2, settings=settings) as sidecar:
        yield sidecar


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setattr(paged, "Mover", Late)


@pytest.fixture
def tensor():
    some = numpy.random.default_rng(3)
    return some.integers(0, 256, (PAGES, BYTES), numpy.uint8)


@pytest.fixture
def cache(client, space, tensor):
    """With blocks that are in the memory tier."""
    with paged.Cache(client, space, [Tensor(tensor)], staging_bytes=64 << 10) as cache:
        assert cache.put(keys(), range(COUNT)).all_ok
        warm(space, keys())
        yield cache


def keys(count: int = COUNT) -> list[bytes]:
    return [b"block %d" % at for at in range(count)]


def warm(space, names) -> None:
    def all_in_memory() -> bool:
        assert space.lookup(names, fetch=True).prefix == len(names)
        return all(space.view(name) is not None for name in names)

    until("all are in memory", all_in_memory)


def addresses(cache, tier) -> list[bool]:
    """Of each batch that begins, whether all of its blocks lie in the memory tier."""
    seen = []

    def spoil(way, batch) -> None:
        its = batch.slots[: batch.count]
        inside = [any(at <= it < at + size for at, size in tier) for it in its]
        assert all(inside) or not any(inside)
        seen.append(all(inside))

    cache._mover.spoil = spoil
    return seen


def test_the_gpu_reads_hot_blocks_where_they_lie(client, space, tensor, cache):
    wanted, seen = tensor[:COUNT].copy(), addresses(cache, space._tier_memory())
    free, left = len(cache._slots), space._views_left()
    assert cache.route == "memory tier" and left >= 4
    for _ in range(3):
        tensor[:] = 0
        assert cache.get(keys(), range(20, 20 + COUNT)).all_ok
        assert (tensor[20 : 20 + COUNT] == wanted).all()
    assert seen and all(seen) and len(cache._slots) == free, "no pinned memory is used"
    assert space._views_left() == left and client.copied_bytes == 0


def test_cold_and_hot_blocks_together(space, tensor, cache):
    names = [*keys(), *(b"cold %d" % at for at in range(COUNT))]
    assert cache.put(names[COUNT:], range(COUNT, 2 * COUNT)).all_ok
    wanted, seen = tensor[: 2 * COUNT].copy(), addresses(cache, space._tier_memory())
    order = [at // 2 + COUNT * (at % 2) for at in range(2 * COUNT)]
    tensor[:] = 0
    results = cache.get([*(names[at] for at in order), b"none"], [*order, 60])
    assert list(results) == ["OK"] * 2 * COUNT + ["MISS"]
    assert (tensor[: 2 * COUNT] == wanted).all() and set(seen) == {True, False}


def test_a_block_is_held_until_the_gpu_has_it(client, space, tensor, cache):
    wanted, left = tensor[:2].copy(), space._views_left()
    cache._mover.busy = True
    ticket = cache.submit_get(keys(2), [20, 21])
    assert space._views_left() == left - 2
    # Replaced, dropped and driven out: nothing else may come into its memory.
    assert space.put(keys()[0], b"other".ljust(BYTES), replace=True) == "OK"
    assert space.drop([keys()[1]]).all_ok
    for at in range(3000):
        name = b"flood %d" % at
        assert space.put(name, b"\7" * BYTES) in {"OK", "DECLINED"}
        space.lookup([name], fetch=True)
    for _ in range(20):
        assert cache.poll() == [] and space._views_left() == left - 2, "it has not read them yet"
    cache._mover.go_on()
    (ended,) = cache.wait(timeout=10)
    assert ended.ticket == ticket and ended.results.all_ok
    assert (tensor[20:22] == wanted).all() and space._views_left() == left


def test_with_few_views_the_gpu_is_waited_for(space, tensor, cache):
    """The client has four: neither a copy by a core nor a pause without end."""
    seen, wanted = addresses(cache, space._tier_memory()), tensor[:COUNT].copy()
    left = space._views_left()
    held = [space.view(name) for name in keys(left - 1)]
    assert all(held) and space._views_left() == 1
    results = cache.get(keys(), range(20, 20 + COUNT))
    assert results.all_ok and seen == [True] * COUNT, "one after the other"
    assert (tensor[20 : 20 + COUNT] == wanted).all()
    # Where the program holds all there are, gets go on.
    held.append(space.view(keys()[0]))
    seen.clear()
    assert cache.get(keys(), range(20, 20 + COUNT)).all_ok and not any(seen)
    for view in held:
        view.release()


def test_a_refused_registration_leaves_the_pinned_memory(space, tensor, cache):
    cache._mover.why_staged = "the driver takes no memory that can only be read"
    seen, wanted = addresses(cache, space._tier_memory()), tensor[:COUNT].copy()
    assert cache.route == "staged: the driver takes no memory that can only be read"
    tensor[:] = 0
    assert cache.get(keys(), range(COUNT)).all_ok and (tensor[:COUNT] == wanted).all()
    assert seen and not any(seen)


def test_what_is_read_in_the_background_is_no_use(space, cache):
    seen = addresses(cache, space._tier_memory())
    assert cache.get(keys(), range(COUNT), priority="background").all_ok and not any(seen)
    assert cache.get(keys(), range(COUNT), priority="prefetch").all_ok and seen[-1]


def test_a_hot_block_that_is_wrong_on_the_gpu_is_a_miss_at_once(space, tensor, cache):
    wanted, spoilt, left = tensor[:3].copy(), [], space._views_left()

    def spoil(way, batch) -> None:
        if not spoilt and 31 in batch.pages[: batch.count]:
            spoilt.append(way)
            tensor[31, 77] ^= 8

    cache._mover.spoil = spoil
    results = cache.get(keys(3), [30, 31, 32])
    assert list(results) == ["OK", "MISS", "OK"]
    assert results.reason(1) == "its bytes were wrong on the GPU"
    # It is read once more, in memory that its own check can be made in, and is whole.
    until("it was read again", lambda: not (cache.poll() or cache._on_drive or cache._suspects))
    assert len(cache._slots) == 8 and space._views_left() == left
    assert cache.get(keys(3), [30, 31, 32]).all_ok and (tensor[30:33] == wanted).all()


def test_a_hot_block_of_another_length_is_a_miss(space, cache):
    space.put(b"short", b"x" * 8000)
    warm(space, [b"short"])
    left = space._views_left()
    results = cache.get([keys()[0], b"short", keys()[1]], [40, 41, 42])
    assert list(results) == ["OK", "MISS", "OK"] and space._views_left() == left
    assert results.reason(1) == "the block has 8000 bytes, one of this cache 8192"


def test_a_gpu_that_fails_lets_go_of_all(space, cache):
    left = space._views_left()

    def fail(way, batch, behind=None):
        raise kvrail.GpuError("cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED (719)")

    cache._mover.begin = fail
    cache.submit_get(keys(4), range(4))
    (ended,) = cache.wait(timeout=10)
    assert ended.results.counts == {"GPU_ERROR": 4} and space._views_left() == left


def test_a_failure_lets_go_when_the_gpu_is_done(space, cache):
    left = space._views_left()
    cache._mover.busy = True
    cache.submit_get(keys(2), [20, 21])
    cache._fail(kvrail.SessionEndedError("it has ended"))
    assert cache.wait(timeout=0.05) == [] and space._views_left() == left - 2
    cache._mover.go_on()
    (ended,) = cache.wait(timeout=10)
    assert ended.results.counts == {"RESTARTED": 2} and space._views_left() == left


def test_patience_is_for_drives(space, cache):
    """Blocks that wait for the GPU are not given up while it brings others."""
    cache._mover.busy = True
    ticket = cache.submit_get(keys(), range(40, 40 + COUNT), prefix=True, patience=1.0)
    ended, began = [], time.monotonic()
    while not ended:
        assert cache._mover.waiting, "it has all that a client may view"
        until_s = time.monotonic() + 0.6
        while time.monotonic() < until_s:
            assert cache.poll() == []
        cache._mover.go_on()
        cache._mover.busy = True
        ended = cache.wait(timeout=0.05)
    assert time.monotonic() - began > 1.5, "some waited for longer than that"
    assert ended[0].ticket == ticket and ended[0].results.all_ok


def test_a_cache_that_is_closed_while_the_gpu_hangs_keeps_its_blocks(space, cache):
    left = space._views_left()
    cache._mover.busy = True
    cache.submit_get(keys(2), [20, 21])
    cache.close(timeout=0.05)
    assert space._views_left() == left - 2 and cache in paged._touched
    for wave in cache._on_gpu:
        wave.let_go()
    paged._touched.remove(cache)
