"""S1, S3: pages go from SGLang's own host pools to the store and back, as its controller moves
them, and every call returns in time."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("sglang", reason="SGLang is not installed")

import torch  # noqa: E402
from host import BUSY, Busy, Host, until  # noqa: E402
from kvrail import _lane, _tier  # noqa: E402
from kvrail._lane import Lane  # noqa: E402
from kvrail._sglang_hosts import (  # noqa: E402
    EXTRA,
    backend,
    config,
    content,
    fill,
    keys_of,
    mamba,
    mha,
    mla,
    places,
    same,
)
from sglang.srt.environ import envs  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool  # noqa: E402
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory  # noqa: E402

PAGE = 256 << 10

Make = Callable[..., Any]


@pytest.fixture
def make(host) -> Iterator[Make]:
    made: list[Any] = []

    def storage(pool: Any, extra: dict[str, Any] | None = None, **more: Any) -> Any:
        whole = EXTRA | {"socket": str(host.socket)} | (extra or {})
        made.append(backend("dynamic", whole, pool, **more))
        return made[-1]

    yield storage
    for it in made:
        it.close()


@pytest.fixture
def brisk(monkeypatch) -> None:
    monkeypatch.setattr(_tier, "RETRY_S", 0.05)
    monkeypatch.setattr(_lane, "QUARANTINE_S", 0.2)


def put(storage: Any, pool: Any, first: int, count: int, seed: int = 1) -> tuple[Any, Any]:
    """Pages with random bytes, put; their hashes and bytes."""
    keys, where = keys_of(range(first, first + count)), places(0, count, pool.page_size)
    fill(pool, where, seed)
    assert storage.batch_set_v1(keys, where) == [True] * count
    return keys, content(pool, where)


def got(storage: Any, pool: Any, keys: list[str], wanted: list[Any], at: int = 40) -> bool:
    """Whether pages come back, into other places of the pool."""
    where = places(at, len(keys), pool.page_size)
    fill(pool, where, None)
    return storage.batch_get_v1(keys, where) == [True] * len(keys) and same(pool, where, wanted)


@pytest.mark.parametrize("layout", ["page_first", "page_first_direct", "page_head", "layer_first"])
def test_pages_of_k_and_v_come_back_without_a_copy(make, layout):
    pool = mha(64, PAGE, layout=layout)
    storage = make(pool)
    keys, wanted = put(storage, pool, 0, 16)
    assert storage.batch_exists(keys) == 16
    assert got(storage, pool, keys, wanted)
    assert storage.status()["copied_bytes"] == 0


def test_pages_are_stored_with_their_place_in_their_prompt(make, placed):
    pool = mha(64, PAGE)
    storage = make(pool)
    keys = keys_of(range(12))
    for first, last in ((0, 3), (3, 8), (8, 10)):
        before = HiCacheStorageExtraInfo(prefix_keys=keys[:first])
        where = places(first, last - first, pool.page_size)
        assert all(storage.batch_set_v1(keys[first:last], where, before))
    assert all(storage.batch_set_v1(keys[10:], places(10, 2, pool.page_size)))
    assert placed == [
        (["begins"] * 6, [0, 0, 1, 1, 2, 2]),
        (["begins"] * 10, [it // 2 for it in range(6, 16)]),
        (["extends"] * 4, [8, 8, 9, 9]),
        ([], []),
    ]


def test_new_pages_that_a_busy_store_declines_are_no_failure(tmp_path):
    host = Host(tmp_path / "busy", "48MiB", block_mean="64KiB")
    host.start()
    busy, pool = Busy(host), mha(64, 2 * BUSY)
    storage = backend("dynamic", EXTRA | {"socket": str(host.socket)}, pool)
    where, first = places(0, 16, pool.page_size), HiCacheStorageExtraInfo(prefix_keys=[])
    fill(pool, where, 1)
    for number in range(100):
        keys = keys_of(range(16 * number, 16 * number + 16))
        assert storage.batch_set_v1(keys, where, first) == [True] * 16
        if not storage.batch_exists(keys):
            break
        busy.read()
    else:
        raise AssertionError("new chains are always taken")
    storage.close()
    host.kill()


def test_pages_that_are_put_again_are_what_was_put_last(make):
    pool = mha(64, PAGE)
    storage = make(pool)
    for seed in (1, 2):
        keys, wanted = put(storage, pool, 0, 8, seed)
        assert got(storage, pool, keys, wanted)


def test_pages_of_mla_come_back_to_each_rank(make):
    pool, other = mla(64, PAGE), mla(64, PAGE)
    storage = make(pool, is_mla_model=True, tp_size=2, tp_rank=0)
    keys, wanted = put(storage, pool, 0, 16)
    assert got(make(other, is_mla_model=True, tp_size=2, tp_rank=1), other, keys, wanted)
    assert storage.status()["copied_bytes"] == 0


def test_memory_that_is_not_shared_is_copied_and_counted(make):
    pool = mha(64, PAGE, allocator="default")
    storage = make(pool)
    keys, wanted = put(storage, pool, 0, 8)
    assert got(storage, pool, keys, wanted)
    status = storage.status()
    assert status["copied_bytes"] == 2 * 8 * PAGE and status["copies"]


def test_as_many_pages_as_a_call_has(make):
    pool = mha(256, PAGE // 4)
    storage = make(pool)
    keys, wanted = put(storage, pool, 0, 128)
    assert storage.batch_exists(keys) == 128
    assert got(storage, pool, keys, wanted, at=128)


def test_what_is_not_there_ends_the_prefix(make):
    pool = mha(64, PAGE)
    storage = make(pool)
    keys, _ = put(storage, pool, 0, 4)
    more = keys_of(range(8))
    assert storage.batch_exists(more) == 4
    assert storage.batch_exists(keys_of(range(100, 104))) == 0
    assert storage.batch_get_v1(more, places(40, 8)) == [True] * 4 + [False] * 4
    assert storage.exists(keys[0]) and not storage.exists(more[5])
    assert storage.batch_exists([]) == 0 and storage.batch_get_v1([], places(0, 0)) == []


def test_a_page_that_has_lost_one_half_is_a_miss(make):
    pool = mha(64, PAGE)
    storage = make(pool)
    keys, _ = put(storage, pool, 0, 4)
    half = storage._pools[PoolName.KV].names(keys)[3]
    assert storage._link.session.space.drop([half]).all_ok
    assert storage.batch_exists(keys) == 1
    assert storage.batch_get_v1(keys, places(40, 4)) == [True, False, True, True]


@pytest.mark.parametrize(
    "other",
    [
        {"model_name": "other"},
        {"tp_size": 2},
        {"tp_size": 2, "tp_rank": 1},
        {"pp_size": 2},
        {"attn_cp_size": 2, "attn_cp_rank": 1},
    ],
)
def test_another_shard_finds_nothing(make, other):
    pool = mha(64, PAGE)
    keys, _ = put(make(pool), pool, 0, 4)
    assert make(pool, **other).batch_exists(keys) == 0
    assert make(pool).batch_exists(keys) == 4


def test_another_dtype_or_layout_finds_nothing(make):
    pool = mha(64, PAGE)
    keys, _ = put(make(pool), pool, 0, 4)
    for other in (
        mha(64, PAGE, dtype=torch.float16),
        mha(64, PAGE, dtype=torch.float8_e4m3fn),
        mha(64, PAGE, layout="page_first_direct"),
        mha(64, 2 * PAGE),
        mla(64, PAGE),
    ):
        storage = make(other)
        assert storage.batch_exists(keys) == 0
        assert storage.batch_get_v1(keys, places(40, 4)) == [False] * 4
    assert make(pool).batch_exists(keys) == 4


@pytest.fixture
def hybrid(make) -> tuple[Any, Any, Any]:
    """K and V, and the states of Mamba layers, which have two files."""
    pool, states = mha(64, PAGE), mamba(64, PAGE)
    storage = make(pool)
    storage.register_mem_host_pool_v2(pool, PoolName.KV)
    storage.register_mem_host_pool_v2(states, PoolName.MAMBA)
    storage.on_host_pools_registered()
    return storage, pool, states


def of_mamba(keys: list[str], where: torch.Tensor | None = None) -> PoolTransfer:
    policy = PoolHitPolicy.TRAILING_PAGES
    return PoolTransfer(PoolName.MAMBA, host_indices=where, keys=keys, hit_policy=policy)


def test_states_come_back_without_a_copy(hybrid):
    storage, _, states = hybrid
    keys, where = keys_of(range(6)), places(0, 6, 1)
    fill(states, where, 7)
    wanted = content(states, where)
    assert storage.batch_set_v2([of_mamba(keys, where)]) == {PoolName.MAMBA: [True] * 6}
    fill(states, where, None)
    asked = of_mamba([*keys, "missing"], places(20, 7, 1))
    assert storage.batch_get_v2([asked]) == {PoolName.MAMBA: [True] * 6 + [False]}
    assert same(states, places(20, 6, 1), wanted)
    assert storage.status()["copied_bytes"] == 0


def test_pools_of_one_call_each_have_their_answers(hybrid):
    storage, pool, states = hybrid
    keys = keys_of(range(4))
    fill(pool, places(0, 4), 1)
    fill(states, places(0, 4, 1), 2)
    wanted = content(pool, places(0, 4)), content(states, places(0, 4, 1))

    def both(at: int) -> list[PoolTransfer]:
        kv = PoolTransfer(PoolName.KV, host_indices=places(at, 4), keys=keys)
        return [kv, of_mamba(keys, places(at, 4, 1))]

    all_ = {PoolName.KV: [True] * 4, PoolName.MAMBA: [True] * 4}
    assert storage.batch_set_v2(both(0)) == all_
    assert storage.batch_get_v2(both(20)) == all_
    assert same(pool, places(20, 4), wanted[0]) and same(states, places(20, 4, 1), wanted[1])


def test_each_legal_length_of_a_trailing_pool_is_returned(hybrid):
    """K and V of eight pages, states behind the second, fifth and sixth."""
    storage, pool, states = hybrid
    keys, _ = put(storage, pool, 0, 8)
    storage.batch_set_v2([of_mamba([keys[1], keys[4], keys[5]], places(0, 3, 1))])
    told = storage.batch_exists_v2(keys, [of_mamba(["last"])])
    assert told.restorable_prefix_pages == [2, 5, 6] and told.kv_hit_pages == 6
    assert told.extra_pool_hit_pages == {PoolName.KV: 8, PoolName.MAMBA: 6}
    told = storage.batch_exists_v2(keys, [of_mamba(["last", "but one"])])
    assert told.restorable_prefix_pages == [6]
    assert storage.batch_exists_v2(keys_of(range(90, 92)), [of_mamba(["last"])]).kv_hit_pages == 0
    assert storage.batch_exists_v2(keys).kv_hit_pages == 8


def test_every_page_of_a_pool_that_needs_all(hybrid):
    storage, pool, states = hybrid
    keys, _ = put(storage, pool, 0, 8)
    storage.batch_set_v2([of_mamba(keys[:5], places(0, 5, 1))])
    asked = of_mamba(keys)
    asked.hit_policy = PoolHitPolicy.ALL_PAGES
    told = storage.batch_exists_v2(keys, [asked])
    assert told.kv_hit_pages == 5 and told.restorable_prefix_pages == [1, 2, 3, 4, 5]


def test_whole_groups_are_returned_and_set_no_limit(hybrid):
    """Three groups of two, of which the second has a gap; each stands for four pages."""
    storage, pool, states = hybrid
    keys, groups = put(storage, pool, 0, 8)[0], keys_of(range(50, 56))
    storage.batch_set_v2([of_mamba([*groups[:3], *groups[4:]], places(0, 5, 1))])
    asked = of_mamba(groups)
    asked.hit_policy = PoolHitPolicy.BLOCK_GROUPS
    asked.block_pages, asked.group_pages = 4, 2
    told = storage.batch_exists_v2(keys, [asked])
    assert told.kv_hit_pages == 8 and told.extra_pool_hit_pages[PoolName.MAMBA] == 4


def test_a_pool_that_only_counts_is_there_as_far_as_the_others(make):
    anchor, states = LogicalHostPool(64, 1), mamba(64, PAGE)
    storage, keys = make(anchor), keys_of(range(6))
    storage.register_mem_host_pool_v2(states, PoolName.SWA)
    whole = PoolTransfer(PoolName.SWA, host_indices=places(0, 4, 1), keys=keys[:4])
    assert storage.batch_set_v2([whole]) == {PoolName.SWA: [True] * 4}
    assert storage.batch_set_v1(keys, places(0, 6, 1)) == [True] * 6
    assert storage.batch_exists_v2(keys, [PoolTransfer(PoolName.SWA)]).kv_hit_pages == 4
    assert storage.batch_exists(keys) == 0, "without the others nothing is there"
    last = PoolTransfer(PoolName.SWA, hit_policy=PoolHitPolicy.TRAILING_PAGES)
    assert storage.batch_exists_v2(keys, [last]).kv_hit_pages == 0


def test_states_are_each_ranks_own(make):
    """K and V of MLA are shared by ranks; the states of Mamba layers are not."""
    keys, found = keys_of(range(2)), []
    for rank in range(2):
        pool, states = mla(64, PAGE), mamba(64, PAGE)
        storage = make(pool, is_mla_model=True, tp_size=2, tp_rank=rank)
        storage.register_mem_host_pool_v2(states, PoolName.MAMBA)
        found.append(storage.batch_exists_v2(keys, [of_mamba(["last"])]).extra_pool_hit_pages)
        if rank == 0:
            put(storage, pool, 0, 2)
            storage.batch_set_v2([of_mamba(keys, places(0, 2, 1))])
    assert found == [{}, {PoolName.KV: 2}]


def test_wrong_configurations_are_refused_by_name(host):
    pool = mha(8, PAGE)
    good = EXTRA | {"socket": str(host.socket)}
    with pytest.raises(ValueError, match="sockett.*socket"):
        backend("dynamic", good | {"sockett": "x"}, pool)
    with pytest.raises(ValueError, match='"interface_v1": 1'):
        backend("dynamic", good | {"interface_v1": 0}, pool)
    with pytest.raises(Exception, match="no sidecar"):
        backend("dynamic", good | {"socket": "/nowhere/s"}, pool)
    with pytest.raises(Exception, match="other"):
        backend("dynamic", good | {"store": "other"}, pool)
    pool.layout = "page_unified"
    with pytest.raises(ValueError, match="page_unified.*page_first"):
        backend("dynamic", good, pool)


def test_wrong_indices_are_refused(make):
    pool = mha(64, PAGE)
    storage = make(pool)
    with pytest.raises(ValueError, match="4 pages of 16 tokens with 48 indices"):
        storage.batch_get_v1(keys_of(range(4)), places(0, 3))


def test_clear_forgets_all(make):
    pool = mha(64, PAGE)
    storage = make(pool)
    keys, _ = put(storage, pool, 0, 4)
    assert storage.clear() and storage.batch_exists(keys) == 0
    put(storage, pool, 0, 4)


def test_injected_failures_give_no_other_bytes(make):
    pool = mha(64, PAGE)
    storage, keys, wanted = make(pool), [], []
    for first in range(0, 32, 8):
        some, pages = put(storage, pool, first, 8, seed=first)
        keys, wanted = keys + some, wanted + pages
    with envs.SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE.override(0.5):
        failing = make(pool)
    answers = set()
    for turn in range(64):
        at = turn % 32
        fill(pool, places(40, 1), None)
        (ok,) = failing.batch_get_v1([keys[at]], places(40, 1))
        answers.add(ok)
        assert not ok or same(pool, places(40, 1), [wanted[at]])
    assert answers == {True, False}


def test_a_store_that_takes_nothing_more_costs_hits_and_nothing_else(make, tmp_path):
    # With an index for its pages, two blocks each: one that is full declines some at any time.
    full = Host(tmp_path / "full", "64MiB", budget="0.001dwpd", block_mean="128KiB")
    full.start()
    pool = mha(64, PAGE)
    storage, where = make(pool, {"socket": str(full.socket)}), places(0, 32)
    fill(pool, where, 1)
    wanted = content(pool, where)
    keys = [keys_of(range(at, at + 32)) for at in range(0, 512, 32)]
    answers = [storage.batch_set_v1(some, where) for some in keys]
    assert all(answers[0]) and not all(answers[-1]), "everything is taken until it was full once"
    for some in keys:
        fill(pool, places(32, 32), None)
        came = storage.batch_get_v1(some, places(32, 32))
        there = [at for at, ok in enumerate(came) if ok]
        assert all(same(pool, places(32 + at, 1), [wanted[at]]) for at in there)
    full.kill()


def test_the_engine_goes_on_without_a_sidecar_and_has_its_pages_again(make, host, brisk):
    pool = mha(64, PAGE)
    storage = make(pool)
    keys, wanted = put(storage, pool, 0, 16)
    host.write_records()
    host.kill()
    begun = time.monotonic()
    assert storage.batch_get_v1(keys, places(40, 16)) == [False] * 16
    assert storage.batch_exists(keys) == 0
    assert storage.batch_set_v1(keys_of([99]), places(0, 1)) == [False]
    assert time.monotonic() - begun < 5 and not storage.status()["is_healthy"]
    host.start()
    deadline = time.monotonic() + 30
    while storage.batch_exists(keys) < 16:
        assert time.monotonic() < deadline, "never attached again"
        time.sleep(0.05)
    assert got(storage, pool, keys, wanted)
    assert storage.status()["copied_bytes"] == 0


def test_a_drive_that_hangs_keeps_its_pages_and_nothing_else(make, host):
    """The sidecar stops in the middle of a load: calls return by their deadline, and the pages are
    not used again until it goes on."""
    pool = mha(64, PAGE)
    storage = make(pool, {"timeout": 0.3})
    keys, wanted = put(storage, pool, 0, 8)
    assert got(storage, pool, keys, wanted)
    mine = pool.alloc(8 * 16)
    other = pool.alloc(16)
    fill(pool, other, 2)
    (late,) = content(pool, other)
    host.freeze()
    try:
        for call in (
            lambda: storage.batch_get_v1(keys, mine),
            lambda: storage.batch_get_v1(keys, other.repeat(8)),
            lambda: storage.batch_set_v1(keys[:1], other),
        ):
            begun = time.monotonic()
            assert not any(call())
            assert time.monotonic() - begun < 2
        pool.free(mine)
        assert pool.available_size() == 64 * 16 - 9 * 16, "a drive may still write there"
        pool.clear()
        assert pool.available_size() == 64 * 16 - 9 * 16
        assert not set(mine.tolist()) & set(pool.alloc(pool.available_size()).tolist())
    finally:
        host.thaw()
    deadline = time.monotonic() + 10
    while pool.available_size() != 9 * 16:
        assert time.monotonic() < deadline, "never given back"
        storage.batch_exists(keys)
        time.sleep(0.02)
    assert "free" not in vars(pool), "nothing of the pool's is replaced any more"
    assert got(storage, pool, keys, [late, *wanted[1:]]), "the put that was late has replaced one"


@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_a_sidecar_that_ends_in_a_load_costs_the_call_a_moment_and_its_pages_longer(
    make, host, brisk, monkeypatch, fault
):
    """SGLang gets its answer; the pages are not used again while a drive may write there."""
    monkeypatch.setattr(_lane, "QUARANTINE_S", 1.5)
    # As with a sidecar of an earlier release.
    monkeypatch.setattr(_lane.Transfers, "are_seen", False)
    monkeypatch.setattr(_lane.Transfers, "have_ended", lambda _, within=0.0: time.sleep(within))
    pool = mha(64, PAGE)
    storage = make(pool)
    keys, wanted = put(storage, pool, 0, 8)
    assert got(storage, pool, keys, wanted)
    host.write_records()
    mine = pool.alloc(8 * 16)
    begin = Lane.begin

    def faulty(self: Any, work: str, *rest: Any) -> None:
        host.freeze()
        begin(self, work, *rest)
        if fault == "killed":
            host.kill()

    with monkeypatch.context() as patched:
        patched.setattr(Lane, "begin", faulty)
        begun = time.monotonic()
        assert storage.batch_get_v1(keys, mine) == [False] * 8
        assert time.monotonic() - begun < 1.0
    pool.free(mine)
    assert pool.available_size() == 64 * 16 - 8 * 16, "a drive may still write there"
    host.start() if fault == "killed" else host.thaw()
    until("its pages are there again", lambda: storage.batch_exists(keys) == 8)
    whole = 64 * 16
    until("they are free", lambda: storage.batch_exists(keys) and pool.available_size() == whole)
    if fault == "killed":
        assert time.monotonic() - begun > 1.5
    assert got(storage, pool, keys, wanted)


def test_storing_goes_on_behind_a_load_that_a_killed_sidecar_has_cut(
    make, host, brisk, monkeypatch
):
    """SGLang looks nothing up meanwhile. A load that has not ended for long stops all calls."""
    monkeypatch.setattr(_tier, "HUNG_S", 0.5)
    pool = mha(64, PAGE)
    storage = make(pool)
    keys, _ = put(storage, pool, 0, 8)
    begin = Lane.begin

    def faulty(self: Any, work: str, *rest: Any) -> None:
        host.freeze()
        begin(self, work, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(Lane, "begin", faulty)
        assert storage.batch_get_v1(keys, places(40, 8)) == [False] * 8
    host.kill()
    host.start()
    time.sleep(1)
    stored = keys_of(range(100, 108))
    until("pages are stored", lambda: all(storage.batch_set_v1(stored, places(0, 8))), 10)


def test_the_factory_makes_it_as_sglang_does(host):
    extra = EXTRA | {"socket": str(host.socket)}
    storage = StorageBackendFactory.create_backend("dynamic", config(extra), None)
    assert type(storage).__module__ == "kvrail.sglang"
    storage.close()
