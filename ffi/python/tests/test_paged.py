"""Keyed blocks of a paged cache, with a stand-in for the GPU: tables, slices, statuses, order."""

import ctypes
import random
import select
import time
from types import SimpleNamespace

import kvrail
import numpy
import pytest
from kvrail import _crc, gpu, paged
from standin import Tensor
from standin_mover import StandIn

LAYERS, TOKENS_BYTES, PAGES = 61, 10_496, 24
"""61 layers of an fp8 MLA cache, 16 tokens of 656 bytes a page: 640,256 bytes a block."""


@pytest.fixture(scope="module")
def sidecar():
    with kvrail.serve(store="192MiB", segment="8MiB", block_mean="256KiB", members=2) as sidecar:
        yield sidecar


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setattr(paged, "Mover", StandIn)


class Tensors:
    """One tensor [pages, bytes] a layer, and what its pages should have."""

    def __init__(self, layers: int = LAYERS, nbytes: int = TOKENS_BYTES, seed: int = 1) -> None:
        some = numpy.random.default_rng(seed)
        self.arrays = [some.integers(0, 256, (PAGES, nbytes), numpy.uint8) for _ in range(layers)]
        self.tensors = [Tensor(it) for it in self.arrays]

    def block(self, *pages: int) -> bytes:
        return b"".join(it[page].tobytes() for page in pages for it in self.arrays)

    def clear(self) -> None:
        for array in self.arrays:
            array[:] = 0


def keys(count: int, of: str = "key") -> list[bytes]:
    return [f"{of} {at}".encode() for at in range(count)]


def test_blocks_of_odd_bytes_come_back_into_other_pages(client, space):
    cache, numbers = Tensors(), [3, 0, 23, 11, 7]
    wanted = [cache.block(page) for page in numbers]
    with paged.Cache(client, space, cache.tensors) as its:
        assert its.block_bytes == 640_256 and its.check == "gpu"
        assert its.put(keys(5), numbers, metadata=keys(5, "mine")).counts == {"OK": 5}
        assert its.put(keys(5), numbers).counts == {"PRESENT": 5}
        # The host's check of the same bytes equals the GPU's: the store has no part for GPUs.
        assert [space.get(key) for key in keys(5)] == wanted
        assert {it.metadata for it in space.list()} == set(keys(5, "mine"))
        cache.clear()
        results = its.get([*keys(5), b"none"], numpy.array([1, 2, 4, 5, 6, 8]))
        assert list(results) == ["OK"] * 5 + ["MISS"] and results.prefix == 5
        assert [cache.block(page) for page in (1, 2, 4, 5, 6)] == wanted
        assert not any(cache.block(8)), "a miss leaves its page alone"
        assert client.copied_bytes == sum(map(len, wanted)), "by get() of the host alone"


@pytest.mark.parametrize("nbytes", [512, 528, 4096, 131_072, 131_088, 400_000])
def test_crcs_of_any_length_are_those_of_the_host(client, space, nbytes):
    cache = Tensors(2, nbytes, seed=nbytes)
    with paged.Cache(client, space, cache.tensors) as its:
        its.put([b"gpu"], [5])
        space.put(b"host", cache.block(6))
        assert space.get(b"gpu") == cache.block(5)
        assert its.get([b"host"], [9]).all_ok
        assert cache.block(9) == cache.block(6)


def test_more_blocks_than_there_is_pinned_memory_for(client, space):
    cache = Tensors(4, 4096)
    wanted = [cache.block(page) for page in range(PAGES)]
    with paged.Cache(client, space, cache.tensors, staging_bytes=64 << 10, depth=4) as its:
        put = its.submit_put(keys(PAGES), range(PAGES), priority="background")
        assert [it.ticket for it in its.wait()] == [put]
        cache.clear()
        gets = [its.submit_get(keys(PAGES)[at::2], range(at, PAGES, 2)) for at in (0, 1)]
        ended = its.wait(2)
        assert sorted(it.ticket for it in ended) == gets and its.outstanding == 0
        assert all(it.results.all_ok for it in ended)
    assert [cache.block(page) for page in range(PAGES)] == wanted


def test_blocks_of_several_pages_and_parts_of_them(client, space):
    cache = Tensors(3, 4096)
    wanted = cache.block(4, 5, 6, 7)
    with paged.Cache(client, space, cache.tensors, block_pages=4) as its:
        assert its.put([b"chunk"], [[4, 5, 6, 7]]).all_ok
        assert space.get(b"chunk") == wanted
        cache.clear()
        assert its.get([b"chunk"], [[-1, -1, 9, 8]]).all_ok
        assert cache.block(9, 8) == wanted[2 * 3 * 4096 :]
        assert not any(cache.block(*range(8))), "what has no page goes nowhere"


def test_no_more_waves_have_memory_than_the_drives_are_given_and_one(client, space):
    cache, slots, used = Tensors(2, 4096), 16, []
    with paged.Cache(client, space, cache.tensors, staging_bytes=slots * 8192) as its:
        its.put(keys(PAGES), range(PAGES))

        def came(among: int, waited: float) -> int:
            wave = SimpleNamespace(among=among, begun_ns=time.monotonic_ns() - 10**9)
            its._fit(wave, int(waited * 10**9))
            return its._window

        assert (its._window, its._window_most) == (1, 4), "waves of four"
        assert [came(4, waited) for waited in (0.0, 0.3, 0.5, 0.75, 0.99)] == [4, 4, 3, 2, 2]
        its._fit = lambda wave, queue_ns: None
        its._mover.spoil = lambda way, batch: used.append(slots - len(its._slots))
        assert its.get(keys(PAGES), range(PAGES)).all_ok and max(used) == 8
        del its._fit
        its._window = 1
        assert [came(among, 0.0) for among in (1, 2, 3, 4)] == [2, 4, 4, 4]


class SlowDrive:
    """A queue whose drive serves all waves at a time, and takes 30 ms for each of them."""

    WAVE_S = 0.03

    def __init__(self, queue):
        self._queue, self._begun, self._came = queue, {}, []

    def submit_get(self, *memory, **options):
        ticket = self._queue.submit_get(*memory, **options)
        self._begun[ticket] = time.monotonic()
        return ticket

    def poll(self):
        self._came += self._queue.poll()
        took = self.WAVE_S * len(self._begun)
        for end in self._came:
            if time.monotonic() - self._begun[end.ticket] >= took:
                self._came.remove(end)
                del self._begun[end.ticket]
                return [end]
        return []

    def wait(self, timeout):
        time.sleep(0.002)
        return self.poll()

    def __getattr__(self, name):
        return getattr(self._queue, name)


def test_a_drive_that_is_slow_from_the_start_is_waited_for(client, space, monkeypatch):
    """With 16 waves at once it would be silent for half a second; patience is a tenth."""
    monkeypatch.setattr(paged, "WAVE_BYTES", 8192)
    cache, among = Tensors(2, 4096), []
    with paged.Cache(client, space, cache.tensors, staging_bytes=16 * 8192) as its:
        its.put(keys(PAGES), range(PAGES))
        its._queue = drive = SlowDrive(its._queue)
        its._mover.spoil = lambda way, batch: among.append(len(drive._begun))
        for _ in range(2):
            assert its.get(keys(PAGES), range(PAGES), prefix=True, patience=0.1).all_ok
        assert max(among) > 8, "it is given more once it has answered"
        its._queue = drive._queue


def test_how_long_blocks_waited_for_their_drive():
    settings = {"device.in_flight_bytes": "64KiB"}
    with (
        kvrail.serve(store="64MiB", segment="8MiB", settings=settings) as sidecar,
        sidecar.attach() as client,
        client.create_arena(24 << 16) as arena,
    ):
        space = client.store("kv").namespace("n", {"model": "m"})
        memory = arena, [at << 16 for at in range(24)], [1 << 16] * 24
        assert space.put_many(keys(24), memory).all_ok
        alone = space.get_many(keys(1), (arena, [0], [1 << 16])).queue_ns
        assert space.get_many(keys(24), memory).queue_ns > max(alone, 100_000), "one at a time"


def flip(address: int) -> None:
    ctypes.c_uint8.from_address(address).value ^= 0x10


def test_a_bit_that_flips_on_the_gpu_is_a_miss_at_once(client, space):
    cache = Tensors(2, 4096)
    wanted = [cache.block(page) for page in range(3)]
    with paged.Cache(client, space, cache.tensors) as its:
        its.put(keys(3), range(3))
        flips = []

        def spoil(way, batch):
            if not flips:
                flips.append(way)
                flip(cache.arrays[1].ctypes.data + 11 * 4096 + 77)

        its._mover.spoil = spoil
        results = its.get(keys(3), [10, 11, 12])
        assert list(results) == ["OK", "MISS", "OK"]
        assert [cache.block(page) for page in (10, 12)] == [wanted[0], wanted[2]]
        assert results.reason(1) == "its bytes were wrong on the GPU"
        assert its.get(keys(3), [10, 11, 12]).all_ok, "the block itself is whole"


def test_a_bit_that_flips_between_gpu_and_drive_makes_that_block_a_miss_and_no_other(client, space):
    cache = Tensors(2, 4096)
    with paged.Cache(client, space, cache.tensors) as its:
        its._mover.spoil = lambda way, batch: flip(batch.slots[1])
        assert its.put(keys(3), range(3)).all_ok, "no check has run yet"
        its._mover.spoil = lambda way, batch: None
        results = its.get(keys(3), [10, 11, 12])
        assert list(results) == ["OK", "MISS", "OK"] and results.prefix == 1
        # It is read again and reported, and is no hit from then on.
        until = time.monotonic() + 10
        while space.lookup(keys(3)).prefix == 3 and time.monotonic() < until:
            its.poll()
        assert list(space.lookup(keys(3))) == [True, False, True]


def test_blocks_behind_a_wrong_one_are_put_anew(client, space):
    """All are damaged, and those behind the first ones are never read."""
    cache = Tensors(2, 4096)
    wanted = [cache.block(page) for page in range(12)]
    with paged.Cache(client, space, cache.tensors, staging_bytes=64 << 10) as its:
        its._mover.spoil = lambda way, batch: [flip(slot) for slot in batch.slots[: batch.count]]
        assert its.put(keys(12), range(12)).all_ok
        its._mover.spoil = lambda way, batch: None
        its.submit_get(keys(12), range(12, 24), prefix=True)
        (ended,) = its.wait(timeout=10)
        assert set(ended.results) == {"MISS"}
        assert its.put(keys(12), range(12), replace=True).counts == {"OK": 12}
        assert its.get(keys(12), range(12, 24), prefix=True).all_ok
        assert [cache.block(12 + at) for at in range(12)] == wanted
        assert its.put(keys(12), range(12), replace=True).counts == {"PRESENT": 12}, "once"
        assert its.outstanding == 0


def test_puts_have_worths_and_a_time_to_live(client, space):
    cache = Tensors(2, 4096)

    def there(key):
        return space.explain(key)["state"]["there"]

    with paged.Cache(client, space, cache.tensors, staging_bytes=64 << 10) as its:
        each = ["high", "normal", "low"] * 4
        assert its.put(keys(12), range(12), worth=each).all_ok
        assert [there(key)["worth"] for key in keys(12)] == each, "over several waves"
        assert its.put([b"a", b"b"], [0, 1], worth="high", ttl=500).all_ok
        ends = [there(key)["worth_until_unix_s"] - time.time() for key in (b"a", b"b")]
        assert all(490 < end < 502 for end in ends)
        assert there(keys(12)[0])["worth_until_unix_s"] is None
        assert its.put([b"c"], [0], worth=None, ttl=None).all_ok
        for options, says in [
            ({"worth": "most"}, "worth is 'most'"),
            ({"worth": ["high", None]}, "worth is None"),
            ({"worth": 2}, "worth is 2"),
            ({"worth": ["high"]}, "worth has 1 items for 2 keys"),
            ({"ttl": -1}, "ttl is -1"),
            ({"ttl": float("nan")}, "ttl is nan"),
            ({"ttl": float("inf")}, "ttl is inf"),
            ({"ttl": 1e300}, "ttl is 1e"),
        ]:
            with pytest.raises(kvrail.RequestError, match=says):
                its.put([b"x", b"y"], [0, 1], **options)
        assert its.put([b"x"], [0]).all_ok, "nothing has failed for it"


def doubting(client, space, cache, **more):
    """A cache with 12 blocks that are wrong on the drive; those behind the first are unread."""
    its = paged.Cache(client, space, cache.tensors, staging_bytes=64 << 10, **more)
    its._mover.spoil = lambda way, batch: [flip(slot) for slot in batch.slots[: batch.count]]
    assert its.put(keys(12), range(12)).all_ok
    its._mover.spoil = lambda way, batch: None
    its.submit_get(keys(12), range(12, 24), prefix=True)
    (ended,) = its.wait(timeout=10)
    assert set(ended.results) == {"MISS"}
    return its


def test_blocks_that_another_engine_has_repaired_are_left_as_they_are(client, space):
    cache = Tensors(2, 4096)
    wanted = [cache.block(page) for page in range(12)]
    with doubting(client, space, cache) as its:
        space.drop(keys(12))
        with paged.Cache(client, space, cache.tensors) as other:
            assert other.put(keys(9), range(9)).counts == {"OK": 9}
        before = space.explain(keys(12)[8])["state"]["there"]
        assert its.put(keys(12), range(12), replace=True).counts == {"PRESENT": 9, "OK": 3}
        assert space.explain(keys(12)[8])["state"]["there"]["offset"] == before["offset"]
        assert its.get(keys(12), range(12, 24)).all_ok and not its._doubted
        assert [cache.block(12 + at) for at in range(12)] == wanted


def test_a_put_of_blocks_in_doubt_that_is_cut_short_reads_no_page(client, space):
    cache = Tensors(2, 4096)
    with doubting(client, space, cache) as its:
        put = its.submit_put(keys(12), range(12), replace=True)
        while not any(wave.checked for wave in its._on_drive.values()):
            its.poll()  # first the wrong blocks are reported
        assert its.cut_short({put}) == 12
        cache.clear()
        (ended,) = its.wait(timeout=10)
        assert ended.results.counts == {"DECLINED": 12}
        while its._on_drive:
            its.poll()
        assert not any(space.get_many(keys(12), [bytearray(8192) for _ in range(12)]).ok)


@pytest.mark.parametrize("hole", [0, 5, 11])
def test_blocks_behind_a_hole_are_given_up(client, space, hole):
    cache = Tensors(2, 4096)
    wanted = [cache.block(page) for page in range(12)]
    with paged.Cache(client, space, cache.tensors, staging_bytes=64 << 10) as its:
        assert its.put(keys(12), range(12)).all_ok
        space.drop([keys(12)[hole]])
        its.submit_get(keys(12), range(12, 24), prefix=True)
        (ended,) = its.wait(timeout=10)
        words = list(ended.results)
        assert words[:hole] == ["OK"] * hole and set(words[hole:]) == {"MISS"}
        assert [cache.block(12 + at) for at in range(hole)] == wanted[:hole]
        if hole < 11:
            assert ended.results.reason(11) == "a block before it is not there"
        whole = its.get(keys(12), range(12, 24))
        assert whole.counts == {"OK": 11, "MISS": 1}, "without `prefix` all are brought"
        assert its.outstanding == 0


def test_a_block_of_another_length_is_a_miss(client, space):
    cache = Tensors(2, 4096)
    with paged.Cache(client, space, cache.tensors) as its:
        space.put(b"short", b"x" * 8000)
        space.put(b"long", b"x" * 9000)
        results = its.get([b"short", b"long"], [0, 1])
        assert list(results) == ["MISS", "TOO_SMALL"] and not any(results.ok)
        assert results.reason(0) == "the block has 8000 bytes, one of this cache 8192"


def test_checked_on_the_host_where_the_gpu_cannot(client, space):
    cache = Tensors(2, 4096)
    wanted = cache.block(1)
    with paged.Cache(client, space, cache.tensors, check="host") as its:
        assert its.check == "host: asked for"
        assert its.put([b"key"], [1]).all_ok and its.get([b"key"], [2]).all_ok
        assert cache.block(2) == wanted == space.get(b"key")


def test_loads_go_before_stores_and_behind_the_callers_stream(client, space):
    class Stream:
        cuda_stream = 77

    cache = Tensors(2, 4096)
    with paged.Cache(client, space, cache.tensors, staging_bytes=32 << 10) as its:
        its.put([b"there"], [0], stream=Stream())
        store = its.submit_put(keys(16), range(16), stream=5)
        load = its.submit_get([b"there"], [20])
        assert [it.ticket for it in its.wait()] == [load]
        assert [it.ticket for it in its.wait()] == [store]
        assert [(way.value, at) for way, at in its._mover.ordered] == [
            ("gather", 77),
            ("gather", 5),
            ("scatter", 0),
        ]


def test_a_load_does_not_wait_for_work_of_a_later_one(client, space):
    cache, began = Tensors(2, 4096), []
    with paged.Cache(client, space, cache.tensors, staging_bytes=32 << 10) as its:
        its.put(keys(12), range(12))
        its._mover.spoil = lambda way, batch: began.append(len(its._mover.ordered))
        its.submit_get(keys(12), range(12, 24), stream=1)
        its.submit_get(keys(4), range(4), stream=2)
        its.wait(2)
        assert [at for _, at in its._mover.ordered] == [0, 1, 2]
        assert began == [2] * 12 + [3] * 4 and its._mover.marks == 0


def test_a_pause_ends_when_something_came(client, space):
    cache = Tensors(2, 4096)
    with paged.Cache(client, space, cache.tensors, staging_bytes=32 << 10) as its:
        assert its.rest() == ([], None), "nothing is in flight"
        its.put(keys(8), range(8))
        its.submit_get(keys(8), range(8, 16), patience=7.0)
        ended, pauses = [], 0
        while not ended:
            descriptors, seconds = its.rest()
            assert seconds is not None and seconds <= 3.5
            assert bool(its._on_drive) == bool(descriptors)
            assert not its._on_gpu or seconds <= 0.001
            came, *_ = select.select(descriptors, [], [], seconds)
            assert came or seconds < 3.5, "a drive has answered"
            ended, pauses = its.poll(), pauses + 1
        assert ended[0].results.all_ok and pauses < 1000
        assert its.rest() == ([], None)


def test_a_put_that_is_cut_short_reads_its_pages_no_more(client, space):
    cache = Tensors(2, 4096)
    wanted = [cache.block(page) for page in range(PAGES)]
    with paged.Cache(client, space, cache.tensors, staging_bytes=4 * 8192) as its:
        put, other = its.submit_put(keys(PAGES), range(PAGES)), its.submit_put([b"other"], [3])
        cut = its.cut_short({put})
        cache.clear()
        assert 0 < cut < PAGES
        results = {it.ticket: it.results for it in its.wait(2)}
        assert results[put].counts == {"OK": PAGES - cut, "DECLINED": cut}
        assert results[put].prefix == PAGES - cut and results[put].went_well
        assert "page was needed" in results[put].reason(PAGES - 1)
        assert its.cut_short({put, other}) == 0, "what has ended is left alone"
        stored = [space.get(key) for key in keys(PAGES)[: PAGES - cut]]
        assert stored == wanted[: PAGES - cut] and results[other].all_ok


def test_wrong_arguments_are_refused_with_the_reason(client, space):
    cache = Tensors(2, 4096)
    with paged.Cache(client, space, cache.tensors) as its:
        for call, says in [
            (lambda: its.put([b"a"], [PAGES]), f"no page {PAGES}; the cache has {PAGES}"),
            (lambda: its.put([b"a"], [-1]), "no page -1"),
            (lambda: its.put([b"a"], [[1, 2]]), "block 0 has 2 pages, 1 are one"),
            (lambda: its.get([b"a", b"b"], [1, 1]), "page 1 is given twice"),
            (lambda: its.get([b"a", b"b"], [1]), "1 items for 2 keys"),
            (lambda: its.put([b"a"], [1], priority="soon"), "priority is 'soon'"),
            (lambda: its.put([b"a"], [1], metadata=[b"x" * 1025]), "1025 bytes, 1024 at most"),
        ]:
            with pytest.raises(kvrail.RequestError, match=says):
                call()
        with pytest.raises(TypeError, match="'verify' is no option of this call"):
            its.get([b"a"], [1], verify=False)
        assert its.outstanding == 0 and its.put([b"a"], [1]).all_ok
    with pytest.raises(kvrail.ClosedError):
        its.put([b"a"], [1])
    odd = gpu.Pages(4, [gpu.Span(cache.arrays[0].ctypes.data, 4096, 4090)])
    with pytest.raises(kvrail.LayoutError, match="1 of them not at multiples of 16"):
        paged.Cache(client, space, odd)
    with pytest.raises(kvrail.RequestError, match="2 items for 1 keys"):
        space.put_many([b"a"], [b"x"], crc=[1, 2])
    with pytest.raises(TypeError, match="verify"):
        space.get(b"a", bytearray(8192), verify=False)


def test_a_sidecar_that_dies_ends_everything_once():
    cache = Tensors(2, 4096)
    with kvrail.serve(store="64MiB", segment="8MiB") as sidecar, sidecar.attach() as client:
        space = client.store("kv").namespace("n", {"model": "m"})
        with paged.Cache(client, space, cache.tensors) as its:
            its.put(keys(8), range(8))
            ticket = its.submit_get(keys(8), range(8))
            sidecar.kill()
            began = time.monotonic()
            ended = its.wait(timeout=20)
            assert [it.ticket for it in ended] == [ticket] and time.monotonic() - began < 10
            assert set(ended[0].results) <= {"OK", "RESTARTED"}
            with pytest.raises(kvrail.KvrailError):
                its.get(keys(8), range(8), timeout=20)


@pytest.mark.parametrize("error", [kvrail.SessionEndedError, kvrail.GpuError])
def test_pages_that_the_gpu_still_fills_are_not_given_back(client, space, error):
    """Neither when the session fails nor when other work of the GPU's does."""
    cache, busy = Tensors(2, 4096), [True]

    def fail(wave):
        raise error("it has ended")

    with paged.Cache(client, space, cache.tensors) as its:
        its.put(keys(8), range(8))
        its._mover.is_done = lambda batch: not busy
        load, until = its.submit_get(keys(2), [10, 11]), time.monotonic() + 10
        while not its._on_gpu:
            assert its.poll() == [] and time.monotonic() < until
        its._from_drive = fail
        other = its.submit_get(keys(8)[2:], range(12, 18))
        (ended,) = its.wait(timeout=10)
        assert ended.ticket == other and not any(ended.results.ok)
        assert its.rest().seconds is not None, "a thread looks again"
        assert set(its._jobs[load].words) == {"LATE"} and its.wait(timeout=0.05) == []
        busy.clear()
        (ended,) = its.wait(timeout=10)
        assert ended.ticket == load and not any(ended.results.ok)
        assert its.rest() == ([], None) and its.outstanding == 0


def test_a_gpu_that_has_failed_ends_everything_once(client, space):
    cache = Tensors(2, 4096)

    def fail(batch):
        raise kvrail.GpuError("cuEventQuery: CUDA_ERROR_ILLEGAL_ADDRESS (700)")

    with paged.Cache(client, space, cache.tensors) as its:
        its.put(keys(8), range(8))
        # Not at once: a submission raises once a failure was noticed.
        its._mover.is_done = lambda batch: False
        tickets = [its.submit_get(keys(4), range(at, at + 4)) for at in (8, 16)]
        put = its.submit_put([b"other"], [3])
        its._mover.is_done = fail
        assert its.cut_short({put}) in (0, 1)
        ended = its.wait(3, timeout=10)
        assert sorted(it.ticket for it in ended) == [*tickets, put]
        assert {word for it in ended for word in it.results} <= {"GPU_ERROR", "DECLINED"}
        with pytest.raises(kvrail.GpuError):
            its.get(keys(1), [1])


def test_the_crc_is_the_known_one():
    data = random.Random(7).randbytes(16 * 999)
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    total = 0
    for at, word in enumerate(words):
        total ^= _crc.multiply(word, _crc.power(64 * (len(words) - at)))
    crc = _crc.ONES
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_crc.POLYNOMIAL if crc & 1 else 0)
    assert next(_crc.joined([total], 1, 1, len(data))) == crc ^ _crc.ONES
    slices = list(_crc.behind(999, 100))
    assert len(slices) == 10 and slices[-1] == 1 << 63 and slices[0] == _crc.power(128 * 899)
