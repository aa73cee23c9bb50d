"""V1: chunks go from vLLM's primary tier to the store and back, stepped as its scheduler does."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from host import Host, until  # noqa: E402
from kvrail import _lane, _tier, _vllm_marks  # noqa: E402
from kvrail._vllm_pages import lose_patience  # noqa: E402
from kvrail._vllm_tiers import Tiers, keys_of  # noqa: E402
from vllm.v1.kv_offload.base import (  # noqa: E402
    LookupResult,
    ReqContext,
    make_offload_key,
)
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager  # noqa: E402
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory  # noqa: E402

CHUNK = 1 << 20
of_prompts = pytest.mark.skipif(
    not hasattr(ReqContext, "set_offload_key_position"),
    reason="vLLM 0.30 names no chunks of a prompt, so none waits for its turn",
)
HAS_BACKPRESSURE = hasattr(SecondaryTierManager, "bp_detector")

Make = Callable[..., Tiers]


@pytest.fixture
def make(host) -> Iterator[Make]:
    made: list[Tiers] = []

    def tiers(tier: dict[str, Any] | None = None, **more: Any) -> Tiers:
        whole = {"type": "Tier", "module_path": "kvrail.vllm", "socket": str(host.socket)}
        sizes = {"chunks": 32, "chunk_bytes": CHUNK}
        made.append(Tiers(whole | (tier or {}), **sizes | more))
        return made[-1]

    yield tiers
    for it in made:
        it.close()


def contents(count: int, seed: int = 1) -> numpy.ndarray:
    return numpy.random.default_rng(seed).integers(0, 256, (count, CHUNK), dtype=numpy.uint8)


def put_down(tiers: Tiers, keys: list[Any], content: numpy.ndarray) -> None:
    tiers.store(keys, content)
    tiers.settle()
    tiers.forget()


def same(came: dict[Any, numpy.ndarray], keys: list[Any], content: numpy.ndarray) -> bool:
    return len(came) == len(keys) and all(
        (came[key] == wanted).all() for key, wanted in zip(keys, content, strict=True)
    )


def test_chunks_survive_the_primary_tier_without_a_copy(make):
    tiers, keys, content = make(), keys_of(range(16)), contents(16)
    put_down(tiers, keys, content)
    assert same(tiers.load(keys), keys, content)
    assert tiers.tier.status()["copied_bytes"] == 0


def test_the_short_name_comes_from_the_entry_point(make):
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    assert "kvrail" in SecondaryTierFactory._registry
    tiers, keys, content = make({"type": "kvrail", "module_path": None}), keys_of([1]), contents(1)
    put_down(tiers, keys, content)
    assert same(tiers.load(keys), keys, content)


def test_what_is_not_there_is_a_miss_at_once_and_ends_the_prefix(make):
    tiers, keys, content = make(), keys_of(range(8)), contents(4)
    put_down(tiers, keys[:4], content)
    request, hits, _ = tiers.find(keys)
    assert hits == keys[:4]
    asked = [tiers.tier.lookup(key, request) for key in keys]
    assert asked == [LookupResult.HIT] * 4 + [LookupResult.MISS] * 4
    _, hits, waits = tiers.find(keys_of(range(100, 110)))
    assert (hits, waits) == ([], 0), "nothing is put off to find out that nothing is there"


def test_a_chunk_that_went_meanwhile_is_left_out_and_computed(make):
    """Looked up, then dropped by another client: the others come, the request does not hang."""
    tiers, keys, content = make(), keys_of(range(8)), contents(8)
    put_down(tiers, keys, content)
    request = tiers.request(keys)
    assert set(tiers.look(keys, request)) == {LookupResult.HIT_PENDING}
    assert tiers.tier._link.session.space.drop([keys[3], keys[5]]).all_ok
    tiers.step()
    tiers.settle()
    hit, miss = LookupResult.HIT, LookupResult.MISS
    assert tiers.look(keys, request) == [miss if at in (3, 5) else hit for at in range(8)]


def test_chunks_are_stored_with_their_place_in_their_prompt(make, placed):
    tiers, content = make(), contents(8)
    prompt = keys_of(range(8))
    window = [make_offload_key(key[:-4], 1) for key in prompt]
    for some in (prompt[:3], prompt[3:5], window[-1:], prompt[5:]):
        tiers.store(some, content[: len(some)], [*prompt, *window])
        tiers.settle()
    depths = [[0, 1, 2], [3, 4], [7], [5, 6, 7]]
    if hasattr(ReqContext, "set_offload_key_position"):
        words = ["begins", "begins", "extends", "extends"]
    else:
        words, depths = ["extends"] * 4, [[0] * len(its) for its in depths]
    assert placed == [([word] * len(its), its) for word, its in zip(words, depths, strict=True)]


def test_another_model_or_dtype_finds_nothing(make):
    keys, content = keys_of(range(4)), contents(4)
    put_down(make(), keys, content)
    assert make(dtype="float16").load(keys) == {}
    assert make(model="other").load(keys) == {}
    assert make(chunk_bytes=2 * CHUNK).load(keys) == {}
    assert same(make().load(keys), keys, content), "and the same one finds all"


def test_a_chunk_that_is_stored_again_is_what_was_stored_last(make):
    """Bytes of a request that computes again, as after an update of the weights."""
    tiers, keys = make(), keys_of(range(8))
    for seed in (1, 2):
        put_down(tiers, keys, contents(8, seed))
        assert same(tiers.load(keys), keys, contents(8, seed))
        tiers.forget()


def test_chunks_of_old_weights_are_found_until_the_weights_have_a_name(make, host):
    """A reset does not mean new weights: vLLM sleeps and wakes with it, too. A name keeps chunks of
    old and new ones apart; after an update of weights in place the namespace is cleared."""
    keys, old, new = keys_of(range(4)), contents(4), contents(4, seed=2)
    tiers = make()
    put_down(tiers, keys, old)
    assert same(tiers.load(keys), keys, old), "a reset keeps what tiers that last have"
    named = make({"identity": {"revision": "2"}})
    assert named.load(keys) == {}
    put_down(named, keys, new)
    assert same(named.load(keys), keys, new)
    tiers.forget()
    host.clear(tiers.tier.status()["namespace"])
    assert tiers.load(keys) == {}, "cleared"
    put_down(tiers, keys, new)
    assert same(tiers.load(keys), keys, new)


def test_chunks_that_are_hot_in_faster_tiers_do_not_age(make, tmp_path):
    host = Host(tmp_path / "small", "128MiB")
    host.start()
    tiers = make({"socket": str(host.socket)})
    hot, cold = keys_of(range(8)), keys_of(range(8, 16))
    put_down(tiers, [*hot, *cold], contents(16))
    for first in range(100, 740, 16):
        tiers.manager.touch(hot, tiers.request(hot))
        put_down(tiers, keys_of(range(first, first + 16)), contents(16, first))
    found = tiers.tier._link.lookup([bytes(key) for key in [*hot, *cold]])
    assert list(found) == [True] * 8 + [False] * 8
    host.freeze()
    try:
        for turn in range(50):
            tiers.manager.touch(keys_of(range(100 * turn, 100 * turn + 100)), tiers.request())
            tiers.step()
        assert tiers.tier._lane._touch is not None, "no call has waited for its answer"
        touched = len(tiers.tier._marks._touched)
        assert touched == _vllm_marks.TOUCHED, "and touches beyond the limit are dropped"
    finally:
        host.thaw()
    tiers.settle()
    host.kill()


def test_locality_and_backpressure_may_be_configured(make):
    tiers = make({"locality": "LOCAL"})
    assert tiers.tier.locality.value == "LOCAL"
    if HAS_BACKPRESSURE:
        pressure = {"backpressure_cls": "EMABackpressureDetector"}
        tiers = make({"backpressure": pressure})
        assert tiers.tier.bp_detector is not None
        put_down(tiers, keys_of(range(4)), contents(4))
        assert not tiers.tier.bp_detector.is_under_pressure()


def test_stored_chunks_are_announced(make):
    tiers = make({"enable_kv_events": True, "locality": "LOCAL"}, events=True)
    keys = keys_of(range(6))
    put_down(tiers, keys, contents(6))
    told = [it for it in tiers.events() if it.medium.value == "STORAGE"]
    assert {key for it in told for key in it.keys} == set(keys)
    assert all(it.locality.value == "LOCAL" and it.ownership is None for it in told)
    assert not any(it.removed for it in told)


def test_what_is_announced_is_what_is_there(make):
    """More than fits is stored: announced and not removed is what lookups find."""
    tiers, told, count = make({"enable_kv_events": True}, events=True), set(), 1024
    for first in range(0, count, 16):
        tiers.store(keys_of(range(first, first + 16)), contents(16, seed=first))
        tiers.settle()
        tiers.forget()
        told = applied(told, tiers.events())
    time.sleep(2 * _tier.FEED_S)
    for _ in range(8):
        time.sleep(1.1 * _tier.FEED_S)
        told = applied(told, tiers.events())
    keys = keys_of(range(count))
    found = tiers.tier._link.lookup(keys)
    there = {key for key, is_there in zip(keys, found, strict=True) if is_there}
    assert told == there and 0 < len(there) < count


def applied(told: set[Any], events: list[Any]) -> set[Any]:
    for it in events:
        if it.medium.value == "STORAGE":
            told = told - set(it.keys) if it.removed else told | set(it.keys)
    return told


def test_the_engine_goes_on_without_a_sidecar_and_has_its_chunks_again(make, host, monkeypatch):
    monkeypatch.setattr(_tier, "RETRY_S", 0.05)
    monkeypatch.setattr(_lane, "QUARANTINE_S", 0.2)
    tiers, keys, content = make(), keys_of(range(16)), contents(16)
    put_down(tiers, keys[:8], content[:8])
    host.write_records()
    host.kill()
    begun = time.monotonic()
    assert tiers.load(keys[:8]) == {}
    tiers.store(keys[8:], content[8:])
    tiers.settle()
    assert time.monotonic() - begun < 5
    tiers.forget()
    host.start()
    tiers.until(lambda: tiers.tier._link.session is not None)
    tiers.until(lambda: tiers.tier._link.lookup(keys[:1])[0])
    assert same(tiers.load(keys[:8]), keys[:8], content[:8])
    tiers.store(keys[8:], content[8:])
    tiers.settle()
    tiers.forget()
    assert same(tiers.load(keys), keys, content)
    assert tiers.tier.status()["copied_bytes"] == 0


def test_a_kill_in_the_middle_of_stores_leaves_whole_chunks_or_none(make, host, monkeypatch):
    monkeypatch.setattr(_tier, "RETRY_S", 0.05)
    monkeypatch.setattr(_lane, "QUARANTINE_S", 0.2)
    tiers = make()
    keys, content = keys_of(range(96)), contents(96)
    for turn in range(6):
        some = slice(16 * turn, 16 * turn + 16)
        tiers.store(keys[some], content[some])
        tiers.step()
        time.sleep(0.01 * turn)
        host.kill()
        tiers.settle()
        tiers.forget()
        host.start()
        tiers.until(lambda: tiers.tier._link.session is not None)
        for key, came in tiers.load(keys[some]).items():
            assert (came == content[keys.index(key)]).all()
        tiers.forget()


@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_a_sidecar_that_ends_in_a_load_costs_a_request_a_moment_and_its_rows_longer(
    make, host, monkeypatch, fault
):
    """With kvrail's connector the request is computed; no row is used again while a drive may
    write there."""
    monkeypatch.setattr(_tier, "RETRY_S", 0.05)
    monkeypatch.setattr(_lane, "QUARANTINE_S", 1.5)
    # As with a sidecar of an earlier release.
    monkeypatch.setattr(_lane.Transfers, "are_seen", False)
    monkeypatch.setattr(_lane.Transfers, "have_ended", lambda _, within=0.0: time.sleep(within))
    tiers, keys, content = make(chunks=8), keys_of(range(8)), contents(8)
    put_down(tiers, keys, content)
    assert same(tiers.load(keys[:1]), keys[:1], content[:1])
    tiers.forget()
    host.write_records()
    lose_patience(tiers.manager)
    request = tiers.request(keys)
    assert tiers.tier._link.lookup(keys[:1]) and tiers.look(keys, request)
    host.freeze()
    tiers.step()  # the load begins
    if fault == "killed":
        host.kill()
    begun = time.monotonic()

    def is_over() -> bool:
        tiers.step()
        return LookupResult.HIT_PENDING not in tiers.look(keys, request)

    until("the request waits no more", is_over)
    assert time.monotonic() - begun < 1.0
    assert set(tiers.look(keys, request)) == {LookupResult.MISS}
    assert tiers.manager.has_pending_work()
    # Other chunks get no row of these: all eight are reserved.
    other = tiers.request(keys_of(range(50, 52)))
    with tiers._held():
        assert tiers.manager.prepare_store(keys_of(range(50, 52)), other) is None
    host.start() if fault == "killed" else host.thaw()
    tiers.settle()
    if fault == "killed":
        assert time.monotonic() - begun > 1.5
        until("it is attached again", lambda: tiers.tier.status()["is_healthy"])
    until("they are found again", lambda: same(tiers.load(keys), keys, content))


def test_more_than_the_store_has_room_for(make):
    """Four times its size: newest chunks are there, none has other bytes."""
    tiers, count = make(), 2048
    for first in range(0, count, 16):
        keys = keys_of(range(first, first + 16))
        tiers.store(keys, contents(16, seed=first))
        tiers.settle()
        tiers.forget()
    newest = keys_of(range(count - 16, count))
    assert same(tiers.load(newest), newest, contents(16, seed=count - 16))
    tiers.forget()
    oldest = tiers.load(keys_of(range(16)))
    assert not oldest


def test_wrong_configurations_are_refused_by_name(make, host):
    with pytest.raises(Exception, match="other"):
        make({"store": "other"})
    with pytest.raises(Exception, match="no sidecar"):
        make({"socket": "/nowhere/s"})


def test_a_namespace_of_the_users_keeps_apart_what_is_incompatible(make):
    keys, content = keys_of(range(4)), contents(4)
    put_down(make({"namespace": "shared"}), keys, content)
    assert make({"namespace": "shared"}, dtype="float16").load(keys) == {}
    assert make({"namespace": "another"}).load(keys) == {}
    assert same(make({"namespace": "shared"}).load(keys), keys, content)


def test_rows_that_the_sidecar_may_not_map_are_copied_and_counted(make, tmp_path):
    other = Host(tmp_path / "other", unsealed="refuse")
    other.start()
    tiers, keys, content = make({"socket": str(other.socket)}), keys_of(range(4)), contents(4)
    put_down(tiers, keys, content)
    assert same(tiers.load(keys), keys, content)
    status = tiers.tier.status()
    assert status["copied_bytes"] == 2 * 4 * CHUNK and "unsealed" in status["copies"]
    other.kill()


def test_a_store_that_takes_nothing_more_costs_hits_and_nothing_else(make, tmp_path):
    full = Host(tmp_path / "full", "64MiB", budget="0.001dwpd")
    full.start()
    tiers, content = make({"socket": str(full.socket)}), contents(16)
    for first in range(0, 128, 16):
        put_down(tiers, keys_of(range(first, first + 16)), content)
    last = keys_of(range(112, 128))
    came = tiers.load(last)
    assert len(came) < 16 and same(came, list(came), content[[last.index(it) for it in came]])
    full.kill()


class Waiting:
    """Requests whose chunks were stored, which wait for pages of the GPU in vLLM's order: in each
    step all are looked up down to the first that has no pages."""

    def __init__(self, tiers: Tiers, prompts: list[list[Any]], at_once: int = 2) -> None:
        self._tiers, self._at_once = tiers, at_once
        self._waiting = [(keys, tiers.request(keys)) for keys in prompts]
        self._running: list[tuple[int, list[Any], Any]] = []
        self.hits: list[int] = []
        self.steps = 0

    def go_on(self) -> bool:
        """A step, which takes a model some milliseconds; whether there are more."""
        self.steps += 1
        with self._tiers._held():
            for begun, keys, request in list(self._running):
                if self.steps == begun + 1:  # a GPU takes chunks sooner than a drive brings them
                    self._tiers.manager.complete_load(keys, request)
                if self.steps == begun + 30:
                    self._running.remove((begun, keys, request))
                    self._tiers.manager.on_request_finished(request)
            for keys, request in list(self._waiting):
                if (hits := self._found(keys, request)) is None:
                    continue
                if len(self._running) >= self._at_once:
                    break
                self._waiting.remove((keys, request))
                self._tiers.manager.prepare_load(keys[:hits], request)
                self._running.append((self.steps, keys[:hits], request))
                self.hits.append(hits)
        self._tiers.step()
        time.sleep(0.003)
        return bool(self._waiting or self._running)

    def end(self) -> None:
        """Steps until all have ended."""
        while self.go_on():
            assert self.steps < 2000, "a request waits for ever"

    def _found(self, keys: list[Any], request: ReqContext) -> int | None:
        """Chunks before the first that is not there; none where some are still to come."""
        found = []
        for key in keys:
            found.append(self._tiers.manager.lookup(key, request))
            if found[-1] is LookupResult.MISS:
                break
        if {LookupResult.RETRY, LookupResult.HIT_PENDING}.intersection(found):
            return None
        return found.count(LookupResult.HIT)


def waiting(tiers: Tiers, monkeypatch: Any, count: int, chunks: int) -> tuple[Waiting, list[int]]:
    """Requests with chunks of their own, and the number of chunks of each load."""
    prompts = [keys_of(range(1000 * at, 1000 * at + chunks)) for at in range(count)]
    for keys in prompts:
        for at in range(0, chunks, 8):
            tiers.store(keys[at : at + 8], contents(8), keys)
            tiers.settle()
            tiers.forget()
    loads, begin = list[int](), tiers.tier.submit_load

    def counted(job: Any) -> None:
        loads.append(len(job.keys))
        begin(job)

    monkeypatch.setattr(tiers.tier, "submit_load", counted)
    return Waiting(tiers, prompts), loads


@of_prompts
@pytest.mark.parametrize("rows", [32, 64])
def test_prompts_that_wait_together_come_one_after_the_other(make, monkeypatch, rows):
    """The primary tier has room for one of them, or for two. All at once would push each other out,
    be read again and again, and count as misses."""
    tiers = make({"prefer": "throughput"}, chunks=rows)
    requests, loads = waiting(tiers, monkeypatch, 6, 24)
    requests.end()
    assert requests.hits == [24] * 6
    assert sum(loads) <= 1.25 * 6 * 24, "four times as many, all at once"


@of_prompts
def test_of_a_prompt_longer_than_the_primary_tier_the_front_comes(make, monkeypatch):
    """The tail would push it out."""
    tiers = make({"prefer": "throughput"}, chunks=16)
    requests, loads = waiting(tiers, monkeypatch, 3, 24)
    requests.end()
    assert requests.hits == [16] * 3 and sum(loads) <= 1.25 * 3 * 16


@of_prompts
def test_chunks_behind_those_that_the_gpu_has_are_loaded_of_a_long_prompt(make, monkeypatch):
    tiers = make({"prefer": "throughput"}, chunks=16)
    waiting(tiers, monkeypatch, 1, 40)
    keys = keys_of(range(40))
    request = tiers.request(keys)

    def has_come() -> bool:
        found = tiers.look(keys[30:], request)
        assert LookupResult.MISS not in found
        tiers.step()
        return set(found) == {LookupResult.HIT}

    until("all have come", has_come, 20)


@of_prompts
def test_chunks_that_are_looked_up_from_the_last_one_come_where_that_is_missing(make, monkeypatch):
    """As of a group of layers with a window."""
    tiers = make({"prefer": "throughput"}, chunks=32)
    waiting(tiers, monkeypatch, 1, 8)
    keys = keys_of(range(10))
    request = tiers.request(keys)

    def have_come() -> bool:
        found = tiers.look(keys[::-1], request)
        tiers.step()
        return found == [LookupResult.MISS] * 2 + [LookupResult.HIT] * 8

    until("they have come", have_come, 10)


@of_prompts
def test_of_prompts_that_wait_few_chunks_are_looked_up(make, monkeypatch):
    """Each of all chunks would cost vLLM 3 us, in every step."""
    tiers = make({"prefer": "throughput"}, chunks=32)
    requests, _ = waiting(tiers, monkeypatch, 6, 24)
    looked, lookup = [0], tiers.tier.lookup

    def counted(key: Any, request: Any) -> Any:
        looked[0] += 1
        return lookup(key, request)

    monkeypatch.setattr(tiers.tier, "lookup", counted)
    requests.go_on()
    assert looked[0] <= 24 + 5 * 2
    requests.end()
    assert requests.hits == [24] * 6


@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_prompts_that_wait_for_a_sidecar_that_ends_are_computed(make, host, monkeypatch, fault):
    tiers = make({"prefer": "throughput"})
    lose_patience(tiers.manager)
    requests, _ = waiting(tiers, monkeypatch, 6, 24)
    host.freeze()
    requests.go_on()
    if fault == "killed":
        host.kill()
    until("all have begun", lambda: not requests.go_on(), 20)
    assert sum(requests.hits) == 0
    if fault == "stopped":
        host.thaw()


def test_a_drive_that_hangs_keeps_its_rows_and_no_call_waits_for_it(make, host, monkeypatch):
    monkeypatch.setattr(_tier, "HUNG_S", 0.3)
    tiers, keys, content = make(), keys_of(range(8)), contents(8)
    put_down(tiers, keys, content)
    assert same(tiers.load(keys), keys, content)
    tiers.forget()
    request, slowest = tiers.request(keys), 0.0
    assert set(tiers.look(keys, request)) == {LookupResult.HIT_PENDING}
    host.freeze()
    try:
        for turn in range(40):
            begun = time.monotonic()
            tiers.step()
            tiers.look(keys_of(range(100 + turn, 104 + turn)), tiers.request())
            slowest = max(slowest, time.monotonic() - begun)
            time.sleep(0.02)
        assert slowest < 4 * 2 * _tier.LOOKUP_S and tiers.tier.status()["drive_hangs"]
        assert set(tiers.look(keys, request)) == {LookupResult.HIT_PENDING}, "its rows are kept"
        begun = time.monotonic()
        assert tiers.find(keys_of(range(300, 310)))[1] == []
        assert time.monotonic() - begun < 1, "while it hangs it gets no request"
    finally:
        host.thaw()
    tiers.settle()
    assert set(tiers.look(keys, request)) == {LookupResult.HIT}
    assert tiers.same(keys, content) and not tiers.tier.status()["drive_hangs"]
