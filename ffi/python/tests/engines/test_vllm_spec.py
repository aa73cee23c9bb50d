"""vLLM's offloading without a CPU tier: its manager and worker, driven as its connector does. With
PyTorch's tensors on a GPU where there is one, else in memory of the host and with a stand-in."""

import pickle
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
torch = pytest.importorskip("torch")

import kvrail  # noqa: E402
from kvrail import _vllm_spec, gpu, paged  # noqa: E402
from kvrail._vllm_spec import KvrailOffloadingSpec  # noqa: E402
from host import Host, until  # noqa: E402
from standin_mover import StandIn  # noqa: E402
from vllm.v1.kv_offload.base import (  # noqa: E402
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
    LookupResult,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.config import (  # noqa: E402
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KNOWS_PROMPTS = hasattr(ReqContext, "set_offload_key_position")
BLOCKS, PAGE, PADDED = 48, 10_496, 10_752
HITS = {LookupResult.HIT}


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setattr(paged, "Mover", StandIn)


def config(host: Any, chunk: int = 1, events: bool = False, **extra: Any) -> OffloadingConfig:
    groups = tuple(OffloadingGroupConfig(16, (f"full {at}", f"window {at}"), at) for at in (0, 1))
    named = {
        "spec_name": "KvrailOffloadingSpec",
        "spec_module_path": "kvrail.vllm",
        "socket": str(host.socket),
    }
    return OffloadingConfig(
        groups=groups,
        worker_kv_bytes_per_block=3 * PAGE,
        enable_kv_cache_events=events,
        extra_config=named | {"staging_bytes": 4 << 20} | extra,
        engine_id="kvrail",
        model=OffloadingModelConfig("model", "fp8"),
        cache=OffloadingCacheConfig(16, chunk),
        parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True),
    )


class Engine:
    """A scheduler's and a worker's half of one engine; group 0 has two layers, group 1 has one."""

    def __init__(self, host: Any, **more: Any) -> None:
        self.tensors = [
            torch.randint(-128, 128, (BLOCKS, PADDED), dtype=torch.int8, device=DEVICE)
            for _ in range(3)
        ]
        refs = [[CanonicalKVCacheRef(at, PAGE) for at in its] for its in ((0, 1), (2,))]
        # The page of a layer may be shorter than its tensor's row.
        rows = [CanonicalKVCacheTensor(rows[:, :PAGE], PADDED) for rows in self.tensors]
        made = config(host, **more)
        self.chunk = made.cache.blocks_per_chunk
        self.manager = KvrailOffloadingSpec(made).get_manager()
        self.worker = KvrailOffloadingSpec(made).get_worker(CanonicalKVCaches(rows, refs))
        self._last = 0

    def request(self, prompt: Sequence = ()) -> ReqContext:
        self._last += 1
        request = ReqContext(f"request {self._last}")
        for at, key in enumerate(prompt if KNOWS_PROMPTS else ()):
            request.set_offload_key_position(key, 16 * (at + 1))
        return request

    def job(self) -> int:
        self._last += 1
        return self._last

    def done(self, job: int) -> Any:
        """The end of a job, which is reported once."""
        until, results = time.monotonic() + 20, []
        while not results and time.monotonic() < until:
            results = self.worker.get_finished()
        assert [it.job_id for it in results] == [job]
        return results[0]

    def store(
        self, keys: list, blocks: list[int], sizes: tuple[int, int], prompt: Sequence = ()
    ) -> Any:
        request = self.request(prompt)
        out = self.manager.prepare_store(keys, request)
        self.placed = pickle.loads(pickle.dumps(out.store_spec)).places
        assert out.keys_to_store == keys and not out.evicted_keys
        number = self.job()
        source = GPULoadStoreSpec(blocks, group_sizes=sizes, block_indices=(0, 0))
        assert self.worker.submit_store(number, source, out.store_spec)
        end = self.done(number)
        self.manager.complete_store(keys, request)
        return end

    def load(
        self, keys: list, blocks: list[int], sizes: tuple[int, int], first: tuple = (0, 0)
    ) -> Any:
        target = GPULoadStoreSpec(blocks, group_sizes=sizes, block_indices=first)
        number, source = self.job(), self.manager.prepare_load(keys, self.request())
        assert self.worker.submit_load(number, source, target, expedited=True)
        self.worker.wait({number})
        return self.done(number)

    def look(self, keys: list) -> set[LookupResult]:
        found = {self.manager.lookup(key, ReqContext("looks")) for key in keys}
        self.manager.on_schedule_end(ScheduleEndContext([], []))
        return found

    def pages(self, group: int, blocks: list[int]) -> list:
        layers = self.tensors[:2] if group == 0 else self.tensors[2:]
        return [[it[block].cpu().clone() for it in layers] for block in blocks]

    def clear(self) -> None:
        for tensor in self.tensors:
            tensor[:] = 0x5A

    def close(self) -> None:
        self.worker.shutdown()
        self.manager.shutdown()


@pytest.fixture
def engine(host):
    made = []

    def make(**more: Any) -> Engine:
        made.append(Engine(host, **more))
        return made[-1]

    make.forget = made.remove
    yield make
    for it in made:
        it.close()


def keys_of(group: int, count: int) -> list:
    return [make_offload_key(bytes([group, at]) * 16, group) for at in range(count)]


def same(pages: list, wanted: list) -> bool:
    """All bytes of the pages, and none of the padding behind them."""
    pairs = [pair for mine, must in zip(pages, wanted, strict=True) for pair in zip(mine, must)]
    return all(
        torch.equal(mine[:PAGE], must[:PAGE]) and bool((mine[PAGE:] == 0x5A).all())
        for mine, must in pairs
    )


def test_blocks_of_two_groups_come_back_into_other_pages_of_another_engine(engine):
    one, keys = engine(), keys_of(0, 8) + keys_of(1, 4)
    wanted = one.pages(0, list(range(1, 9))), one.pages(1, list(range(20, 24)))
    assert one.look(keys) == {LookupResult.MISS}
    end = one.store(keys, [*range(1, 9), *range(20, 24)], (8, 4))
    assert end.success and end.transfer_size == 8 * 2 * PAGE + 4 * PAGE
    assert one.manager.prepare_store(keys, one.request()).keys_to_store == []
    two = engine()
    two.clear()
    assert two.look(keys) == {LookupResult.HIT}
    assert two.load(keys, [*range(40, 32, -1), *range(10, 14)], (8, 4)).success
    assert same(two.pages(0, list(range(40, 32, -1))), wanted[0])
    assert same(two.pages(1, list(range(10, 14))), wanted[1])
    others = [at for at in range(BLOCKS) if at not in (*range(33, 41), *range(10, 14))]
    assert all(bool((it == 0x5A).all()) for row in two.pages(0, others) for it in row)
    checks = two.worker.status()["check"]
    assert checks == ["gpu", "gpu"] and two.worker.status()["is_healthy"]


def in_memory(space: Any, keys: list) -> bool:
    return all(space.view(bytes(key)) is not None for key in keys)


@pytest.mark.memory_tier("64MiB")
def test_hot_chunks_come_from_the_memory_tier(engine, monkeypatch):
    its, keys = engine(chunk=2), keys_of(0, 8)
    wanted = its.pages(0, list(range(16)))
    assert its.store(keys, list(range(16)), (16, 0)).success
    space, cache = its.worker._session.space, its.worker._caches[0]
    assert its.worker.status()["route"] == ["memory tier"] * 2
    until("all are in memory", lambda: space.lookup(keys, fetch=True) and in_memory(space, keys))
    its.clear()
    monkeypatch.setattr(cache, "_from_drive", lambda wave: pytest.fail("no drive is read"))
    assert its.load(keys, list(range(47, 31, -1)), (16, 0)).success
    assert same(its.pages(0, list(range(47, 31, -1))), wanted)


@pytest.mark.memory_tier("64MiB")
@pytest.mark.skipif(not KNOWS_PROMPTS, reason="vLLM 0.30 does not pass a request's blocks")
@pytest.mark.parametrize("waits", [True, False])
def test_blocks_of_a_request_that_waits_for_pages_come_into_memory(engine, waits):
    its, keys = engine(), keys_of(0, 8)
    assert its.store(keys, list(range(8)), (8, 0)).success
    space, request = its.manager._links[0].session.space, its.request(keys)
    # The first two are in the GPU's cache.
    assert its.manager.lookup(keys[2], request) is LookupResult.HIT
    if not waits:
        its.manager.prepare_load(keys[2:], request)
    for _ in range(20):
        its.manager.on_schedule_end(ScheduleEndContext([], []))
        time.sleep(0.01)
    if waits:
        until("they are in memory", lambda: in_memory(space, keys[2:]))
        assert its.manager.lookup(keys[2], request) is LookupResult.HIT
        its.manager.on_schedule_end(ScheduleEndContext([], []))
        assert not its.manager._marks._expected, "once"
    there = keys[:2] if waits else keys
    assert not any(in_memory(space, [key]) for key in there)


def test_a_store_without_a_memory_tier_is_sent_no_fetch(engine):
    its, keys = engine(), keys_of(0, 8)
    assert its.store(keys, list(range(8)), (8, 0)).success
    (lane,) = its.manager._marks._lanes
    assert lane.fetch([bytes(key) for key in keys]) and lane._touch is None
    assert its.worker.status()["route"] == ["staged: the test has no memory tier"] * 2


def test_chunks_are_stored_with_their_place_in_their_prompt(engine):
    its, keys = engine(), keys_of(0, 8)
    for first, last, word in ((0, 3, "begins"), (3, 5, "begins"), (5, 8, "extends")):
        count = last - first
        assert its.store(keys[first:last], list(range(first, last)), (count, 0), keys).success
        known = ([word] * count, list(range(first, last)))
        wanted = known if KNOWS_PROMPTS else (["extends"] * count, [0] * count)
        assert (its.placed.chains, its.placed.depths) == wanted
    space = its.manager._links[0].session.space
    depths = {block.metadata: block.depth for block in space.list()}
    assert depths == {bytes(key): at if KNOWS_PROMPTS else 0 for at, key in enumerate(keys)}


def test_chunks_of_four_blocks_and_loads_that_begin_and_end_within_one(engine):
    its, keys = engine(chunk=4), keys_of(0, 3)
    wanted = its.pages(0, list(range(1, 13)))
    assert its.store(keys, list(range(1, 13)), (12, 0)).success
    its.clear()
    # Blocks 2 to 9 of the request: without the chunks' first two and last two.
    assert its.load(keys, list(range(30, 38)), (8, 0), first=(2, 0)).success
    assert same(its.pages(0, list(range(30, 38))), wanted[2:10])
    rest = [at for at in range(BLOCKS) if not 30 <= at < 38]
    assert all(bool((it == 0x5A).all()) for row in its.pages(0, rest) for it in row)


def spoil(host: Any, begin: bytes) -> None:
    """Changes a byte of the block that begins so on the drive."""
    image = Path(str(host.socket)).parent / "kv.img"
    at = image.read_bytes().find(begin)
    assert at > 0
    with image.open("r+b") as file:
        file.seek(at + 5000)
        was = file.read(1)[0]
        file.seek(at + 5000)
        file.write(bytes([was ^ 4]))


@pytest.mark.parametrize("reports", [True, False])
def test_a_wrong_block_is_no_hit_and_only_its_pages_fail(engine, host, reports):
    its, keys = engine(), keys_of(0, 4)
    its.worker.reports_pages = reports
    wanted = its.pages(0, [1, 2, 3, 4])
    its.store(keys, [1, 2, 3, 4], (4, 0))
    spoil(host, wanted[2][0][:64].numpy().tobytes())
    its.clear()
    end = its.load(keys, [10, 11, 12, 13], (4, 0))
    assert end.success is reports
    assert its.worker.take_failed_pages() == ({12} if reports else set())
    assert its.worker.take_failed_pages() == set(), "reported once"
    assert same(its.pages(0, [10, 11, 13]), [wanted[0], wanted[1], wanted[3]])
    until = time.monotonic() + 5
    while its.look(keys[2:3]) == {LookupResult.HIT} and time.monotonic() < until:
        assert its.worker.get_finished() == []  # as in each step
        time.sleep(0.05)
    assert its.look(keys[2:3]) == {LookupResult.MISS}, "it is computed and stored again"


@pytest.mark.parametrize(
    ("chunk_bytes", "given", "staged"),
    [
        (640 << 10, None, 32 << 20),
        (8 << 20, None, 128 << 20),
        (32 << 20, None, 512 << 20),
        (256 << 20, None, 512 << 20),
        (32 << 20, "33554432", 32 << 20),
    ],
)
def test_pinned_memory_has_room_for_sixteen_chunks(chunk_bytes, given, staged):
    pages = gpu.Pages(BLOCKS, [gpu.Span(0, chunk_bytes // 16, chunk_bytes // 16)])
    assert _vllm_spec._staging_bytes(pages, 16, given) == staged


def test_without_a_given_size_it_is_what_the_worker_takes(engine, monkeypatch):
    monkeypatch.setattr(_vllm_spec, "STAGING_BYTES_MAX", 8 * PAGE)
    monkeypatch.setattr(paged, "STAGING_BYTES", 8 * PAGE)
    its, keys = engine(staging_bytes=None), keys_of(0, 4)
    assert [cache._window_most for cache in its.worker._caches] == [4, 6], "chunks of 2 pages and 1"
    its.store(keys, list(range(4)), (4, 0))


def test_what_was_computed_over_damage_is_stored_anew(engine, host, monkeypatch):
    """All chunks are wrong; those behind the first ones are not read, and stay found."""
    monkeypatch.setattr(_vllm_spec, "STALL_S", 10.0)  # a busy machine is no drive that hangs
    its, keys = engine(staging_bytes=8 * PAGE), keys_of(0, 12)
    its.worker.reports_pages = True
    wanted = its.pages(0, list(range(12)))
    its.store(keys, list(range(12)), (12, 0))
    for block in wanted:
        spoil(host, block[0][:64].numpy().tobytes())
    request = its.request(keys)
    number, source = its.job(), its.manager.prepare_load(keys, request)
    target = GPULoadStoreSpec(list(range(20, 32)), (12, 0), (0, 0))
    assert its.worker.submit_load(number, source, target, expedited=True)
    its.worker.wait({number})
    assert its.done(number).success and its.worker.take_failed_pages() == set(range(20, 32))
    its.manager.failing.add(request.req_id)
    its.manager.complete_load(keys, request)
    # Its first step begins at once; its pages are stored when they are computed.
    out = its.manager.prepare_store(keys, request)
    assert out.keys_to_store == keys
    number, pages = its.job(), GPULoadStoreSpec(list(range(12)), (12, 0), (0, 0))
    assert its.worker.submit_store(number, pages, out.store_spec)
    assert its.done(number).success
    for _ in range(2):
        its.clear()
        assert its.look(keys) == {LookupResult.HIT}
        assert its.load(keys, list(range(20, 32)), (12, 0)).success
        assert its.worker.take_failed_pages() == set()
        assert same(its.pages(0, list(range(20, 32))), wanted)
        time.sleep(0.3)  # reports of what was there before are looked at


def test_loads_and_stores_go_on_while_the_engine_computes(engine):
    """vLLM calls the worker once a step, and memory for four chunks is less than a prompt."""
    its, keys = engine(staging_bytes=4 * PAGE), keys_of(1, 24)
    wanted = its.pages(1, list(range(24)))
    out, store, load = its.manager.prepare_store(keys, its.request()), its.job(), its.job()
    pages = GPULoadStoreSpec(range(24), group_sizes=(0, 24), block_indices=(0, 0))
    assert its.worker.submit_store(store, pages, out.store_spec)
    until = time.monotonic() + 20
    while its.look(keys) != {LookupResult.HIT}:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert its.done(store).success
    its.clear()
    source, pages = its.manager.prepare_load(keys, its.request()), list(range(47, 23, -1))
    target = GPULoadStoreSpec(pages, group_sizes=(0, 24), block_indices=(0, 0))
    assert its.worker.submit_load(load, source, target)
    while not same(its.pages(1, pages), wanted):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert its.done(load).success


def test_pages_that_were_not_filled_are_reported_with_their_job(engine):
    """A load ends between two calls; vLLM gets its pages with its end, and not a step before."""
    its, keys = engine(), keys_of(0, 2)
    its.worker.reports_pages = True
    number, source = its.job(), its.manager.prepare_load(keys, its.request())
    target = GPULoadStoreSpec([30, 31], group_sizes=(2, 0), block_indices=(0, 0))
    assert its.worker.submit_load(number, source, target)
    until = time.monotonic() + 20
    while its.worker._jobs:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert its.worker.take_failed_pages() == set()
    assert [it.job_id for it in its.worker.get_finished()] == [number]
    assert its.worker.take_failed_pages() == {30, 31}


def test_a_load_from_a_sidecar_that_is_stopped_is_computed_instead(engine, host):
    its, keys = engine(), keys_of(0, 8)
    its.worker.reports_pages = True
    wanted = its.pages(0, range(8))
    its.store(keys, list(range(8)), (8, 0))
    its.clear()
    host.freeze()
    try:
        for first in (10, 20):
            pages = list(range(first, first + 8))
            assert its.load(keys, pages, (8, 0)).success
            assert its.worker.take_failed_pages() == set(pages)
    finally:
        host.thaw()
    until = time.monotonic() + 20
    while its.look(keys) != {LookupResult.HIT} and time.monotonic() < until:
        time.sleep(0.05)
    assert its.load(keys, list(range(30, 38)), (8, 0)).success
    assert its.worker.take_failed_pages() == set()
    assert same(its.pages(0, range(30, 38)), wanted)


def test_a_sidecar_that_is_killed_and_started_again(engine, host):
    its, keys = engine(), keys_of(0, 4)
    its.worker.reports_pages = True
    wanted = its.pages(0, [1, 2, 3, 4])
    its.store(keys, [1, 2, 3, 4], (4, 0))
    host.write_records()
    host.kill()
    assert its.look(keys) == {LookupResult.MISS}
    assert its.load(keys, [10, 11, 12, 13], (4, 0)).success
    assert its.worker.take_failed_pages() == {10, 11, 12, 13}
    new = keys_of(1, 2)
    source = GPULoadStoreSpec([20, 21], group_sizes=(0, 2), block_indices=(0, 0))
    out = its.manager.prepare_store(new, its.request())
    number = its.job()
    assert its.worker.submit_store(number, source, out.store_spec)
    assert its.done(number).success, "what is not stored is no failure"
    host.start()
    its.clear()
    until = time.monotonic() + 10
    while its.look(keys) != {LookupResult.HIT} and time.monotonic() < until:
        time.sleep(0.1)
    while its.worker.take_failed_pages() or not same(its.pages(0, [10]), wanted[:1]):
        assert time.monotonic() < until
        its.load(keys, [10, 11, 12, 13], (4, 0))
    assert same(its.pages(0, [10, 11, 12, 13]), wanted)


def test_events_have_stored_and_gone_blocks(engine):
    its, keys = engine(events=True, locality="LOCAL"), keys_of(0, 2)
    its.store(keys, [1, 2], (2, 0))
    (told,) = its.manager.take_events()
    assert told.keys == keys and not told.removed and told.removal_expected
    assert (told.medium.value, told.locality.value, told.ownership) == ("STORAGE", "LOCAL", None)


def test_a_reset_of_one_engine_leaves_the_blocks_of_all(engine):
    """vLLM resets to sleep, to wake and for new weights; tiers that last keep what they have."""
    one, other, keys = engine(), engine(), keys_of(0, 2)
    one.store(keys, [1, 2], (2, 0))
    one.manager.reset_cache()
    for its in (one, other):
        its.clear()
        assert its.look(keys) == {LookupResult.HIT}


def test_errors_are_raised_at_the_start(host, tmp_path):
    with pytest.raises(ValueError, match="needs socket"):
        made = config(host)
        del made.extra_config["socket"]
        KvrailOffloadingSpec(made).get_manager()
    with pytest.raises(kvrail.NoSidecarError):
        KvrailOffloadingSpec(config(host, socket=str(tmp_path / "none"))).get_manager()


def test_vllm_finds_the_spec_and_the_connector(engine, host):
    factory = pytest.importorskip("vllm.v1.kv_offload.factory")
    spec = factory.OffloadingSpecFactory.create_spec(config(host))
    assert isinstance(spec, KvrailOffloadingSpec)
    its = pytest.importorskip("kvrail.vllm_connector").KvrailOffloadingConnector
    connector = object.__new__(its)
    connector.connector_worker = None
    assert connector.get_block_ids_with_load_errors() == set()

    class Half:
        worker = engine().worker

        def register_kv_caches(self, caches: dict) -> None:
            self.caches = caches

    connector.connector_worker = Half()
    connector.register_kv_caches({})
    assert Half.worker.reports_pages
    Half.worker._failed = {7}
    assert connector.get_block_ids_with_load_errors() == {7}


def test_found_chunks_are_offered_again(engine):
    """One that is wrong is computed, and must be stored; vLLM's default skips it as found."""
    assert engine().manager.on_new_request(ReqContext("any")).policy.value == "request_level"


def test_pages_of_a_store_are_let_go_without_a_wait_for_the_drive(engine):
    """vLLM waits for stores whose pages a request gets, also if it gets them as they are."""
    its, keys = engine(staging_bytes=4 * PAGE), keys_of(1, 40)
    out = its.manager.prepare_store(keys, its.request())
    source = GPULoadStoreSpec(range(40), group_sizes=(0, 40), block_indices=(0, 0))
    first, second = its.job(), its.job()
    assert its.worker.submit_store(first, source, out.store_spec)
    its.worker.wait({first})
    left_out = its.worker.status()["left_out"]
    assert 0 < left_out < 40
    its.tensors[2][:] = 0
    assert its.done(first).success, "what is not stored is no failure"
    assert [its.look([key]) for key in keys] == [{LookupResult.HIT}] * (40 - left_out) + [
        {LookupResult.MISS}
    ] * left_out, "the front of the chain is stored"
    again = its.manager.prepare_store(keys, its.request())
    assert again.keys_to_store == keys[40 - left_out :], "the next request offers the rest"
    source = GPULoadStoreSpec(range(40 - left_out, 40), (0, left_out), (0, 0))
    assert its.worker.submit_store(second, source, again.store_spec)
    assert its.done(second).success
    assert its.look(keys) == {LookupResult.HIT}


def begin_load(its: Engine, keys: list, pages: list[int], request: Any = None) -> int:
    """A load of chunks of the first group that is on its way."""
    number, source = its.job(), its.manager.prepare_load(keys, request or its.request(keys))
    target = GPULoadStoreSpec(pages, group_sizes=(len(pages), 0), block_indices=(0, 0))
    assert its.worker.submit_load(number, source, target)
    return number


def right_or_failed(its: Engine, pages: list[int], wanted: list) -> bool:
    """Whether each page has its bytes, or is reported to be computed."""
    failed = its.worker.take_failed_pages()
    pairs = zip(pages, wanted, strict=True)
    return all(same(its.pages(0, [page]), [must]) for page, must in pairs if page not in failed)


def test_a_request_that_is_aborted_in_mid_load(engine):
    """vLLM keeps its pages until the worker has reported the load."""
    its, keys = engine(staging_bytes=4 * PAGE), keys_of(0, 20)
    wanted = its.pages(0, list(range(20)))
    assert its.store(keys, list(range(20)), (20, 0)).success
    its.clear()
    request, pages = its.request(keys), list(range(47, 27, -1))
    its.manager.on_new_request(request)
    job = begin_load(its, keys, pages, request)
    its.manager.on_request_finished(request)
    its.manager.on_schedule_end(ScheduleEndContext([], []))
    assert its.done(job).success
    its.manager.complete_load(keys, request)
    assert same(its.pages(0, pages), wanted)
    assert not its.manager._loads._begun and not its.manager._found_now
    assert its.look(keys) == {LookupResult.HIT}


def test_a_request_that_is_preempted_while_it_is_stored_and_loaded_again(engine):
    """Its pages are another request's at once; what was stored of them is what they had."""
    its, keys = engine(staging_bytes=4 * PAGE), keys_of(0, 20)
    wanted, request = its.pages(0, list(range(20))), its.request(keys)
    out, store = its.manager.prepare_store(keys, request), its.job()
    source = GPULoadStoreSpec(range(20), group_sizes=(20, 0), block_indices=(0, 0))
    assert its.worker.submit_store(store, source, out.store_spec)
    its.worker.wait({store})
    its.clear()
    assert its.done(store).success
    its.manager.complete_store(keys, request)
    there = [its.manager.lookup(key, request) for key in keys].count(LookupResult.HIT)
    its.manager.on_schedule_end(ScheduleEndContext([], []))
    if there:
        pages = list(range(47, 47 - there, -1))
        assert its.done(begin_load(its, keys[:there], pages, request)).success
        assert same(its.pages(0, pages), wanted[:there])
    # It is preempted in its load, too: vLLM waits for that before it uses the pages.
    job = begin_load(its, keys[:there], list(range(there)), request)
    its.worker.wait({job})
    its.tensors[0][:] = 0
    assert its.done(job).success
    time.sleep(0.05)
    assert not its.tensors[0].any(), "nothing is written behind the wait"


def test_a_store_that_is_cleared_under_a_load(engine, host):
    its, keys = engine(staging_bytes=2 * PAGE), keys_of(0, 24)
    its.worker.reports_pages = True
    wanted = its.pages(0, list(range(24)))
    assert its.store(keys, list(range(24)), (24, 0)).success
    pages = list(range(47, 23, -1))
    for _ in range(3):
        its.clear()
        job = begin_load(its, keys, pages)
        host.clear(its.manager.status()[0]["namespace"])
        assert its.done(job).success
        assert right_or_failed(its, pages, wanted)
        assert its.look(keys) == {LookupResult.MISS}
        for tensor, rows in zip(its.tensors[:2], zip(*wanted, strict=True), strict=True):
            tensor[:24] = torch.stack(rows).to(DEVICE)
        assert its.store(keys, list(range(24)), (24, 0)).success, "what is computed is stored anew"


def test_a_prompt_that_is_longer_than_the_store(engine, tmp_path):
    small = Host(tmp_path / "small", "48MiB", block_mean="16KiB")
    small.start()
    its = engine(socket=str(small.socket))
    its.worker.reports_pages = True
    keys = [make_offload_key(at.to_bytes(32, "big"), 0) for at in range(40 * 120)]
    request, wanted = its.request(keys), its.pages(0, list(range(40)))
    for at in range(0, len(keys), 40):
        some = keys[at : at + 40]
        out, job = its.manager.prepare_store(some, request), its.job()
        pages = [some.index(key) for key in out.keys_to_store]
        source = GPULoadStoreSpec(pages, group_sizes=(len(pages), 0), block_indices=(0, 0))
        assert its.worker.submit_store(job, source, out.store_spec)
        assert its.done(job).success
        its.manager.complete_store(some, request)
    found = [at for at in range(0, len(keys), 40) if its.look(keys[at : at + 40]) == HITS]
    assert found and len(found) < 120, "some of it is there"
    its.clear()
    for at in (found[0], found[-1]):
        assert its.done(begin_load(its, keys[at : at + 40], list(range(40)))).success
        assert right_or_failed(its, list(range(40)), wanted)
    its.close()
    engine.forget(its)
    small.kill()


@pytest.mark.parametrize("byte", [0x7F, 0xFF, 0xFE])
def test_blocks_whose_bytes_are_no_numbers(engine, byte):
    """NaN in 8, 16 and 32 bits: bytes are moved and compared, and no value is looked at."""
    its, keys = engine(), keys_of(0, 4)
    for tensor in its.tensors:
        tensor[:8] = byte - 256 if byte > 127 else byte
    wanted = its.pages(0, [0, 1, 2, 3])
    assert its.store(keys, [0, 1, 2, 3], (4, 0)).success
    its.clear()
    assert its.look(keys) == {LookupResult.HIT}
    assert its.load(keys, [10, 11, 12, 13], (4, 0)).success
    assert same(its.pages(0, [10, 11, 12, 13]), wanted)


def test_a_drive_that_answers_now_and_then(engine, host):
    """As one of 1 IOPS: it gets a moment each 0.3 s. What it does not bring is computed, and no
    load takes as long as the drive would."""
    its, keys = engine(staging_bytes=2 * PAGE), keys_of(0, 24)
    its.worker.reports_pages = True
    wanted = its.pages(0, list(range(24)))
    assert its.store(keys, list(range(24)), (24, 0)).success
    its.clear()
    assert its.load(keys[:1], [47], (1, 0)).success
    stop = threading.Event()

    def now_and_then() -> None:
        while not stop.is_set():
            host.freeze()
            stop.wait(0.3)
            host.thaw()
            time.sleep(0.001)

    slow = threading.Thread(target=now_and_then)
    slow.start()
    try:
        pages = list(range(46, 22, -1))
        begun = time.monotonic()
        assert its.done(begin_load(its, keys, pages)).success
        assert time.monotonic() - begun < 5
        assert right_or_failed(its, pages, wanted)
    finally:
        stop.set()
        slow.join()
    until("all is found", lambda: its.look(keys) == HITS)
    its.worker.take_failed_pages()
    assert its.load(keys, list(range(24)), (24, 0)).success
    assert its.worker.take_failed_pages() == set() and same(its.pages(0, list(range(24))), wanted)
