"""V9: loads that would take longer than computing: vLLM's own objects, and a sidecar."""

import dataclasses
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import kvrail  # noqa: E402
import numpy  # noqa: E402
from kvrail import _vllm_loads  # noqa: E402
from kvrail._load_choice import Front, LoadChoice, Speed  # noqa: E402
from kvrail._vllm_loads import Steps  # noqa: E402
from kvrail._vllm_tiers import Tiers, config, keys_of  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (  # noqa: E402
    OffloadingWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (  # noqa: E402
    TransferJobStatus,
)
from vllm.v1.core.sched.output import (  # noqa: E402
    CachedRequestData,
    NewRequestData,
    SchedulerOutput,
)
from vllm.v1.kv_offload.base import (  # noqa: E402
    LookupResult,
    ReqContext,
    ScheduleEndContext,
)
from vllm.v1.outputs import KVConnectorOutput  # noqa: E402

if not hasattr(ReqContext, "set_offload_key_position"):
    pytest.skip("this vLLM does not pass the chunks of a request", allow_module_level=True)

CHUNK_BYTES = 1 << 20
KEYS = keys_of(range(6))
FAST, SLOW = 1e9, 1.0
CHOICES = [
    ({"prefill_tokens_per_second": FAST}, 0),
    ({"prefill_tokens_per_second": FAST, "prefer": "throughput"}, len(KEYS)),
    ({"prefill_tokens_per_second": SLOW}, len(KEYS)),
    ({}, len(KEYS)),
]


@pytest.fixture
def measured(host):
    """A sidecar that has read enough to know how fast its drive is."""
    with kvrail.Client(str(host.socket)) as client:
        space = client.store("kv").namespace("measured", {"model": "none"})
        keys = [b"%d" % at for at in range(24)]
        assert space.put_many(keys, [bytes(8 << 20)] * len(keys)).all_ok
        into, until = [bytearray(8 << 20) for _ in keys], time.monotonic() + 20
        while space.lookup(keys).load_seconds is None and time.monotonic() < until:
            assert space.get_many(keys, into).all_ok
        assert space.lookup(keys).load_seconds is not None
        space.drop(keys)


@pytest.mark.parametrize(("more", "hits"), CHOICES)
def test_the_tier_declines_what_is_computed_sooner(host, measured, more, hits):
    tier = {"type": "Tier", "module_path": "kvrail.vllm", "socket": str(host.socket)}
    tiers = Tiers(tier | more, chunks=16, chunk_bytes=CHUNK_BYTES)
    try:
        content = numpy.random.default_rng(1).integers(
            0, 256, (len(KEYS), CHUNK_BYTES), dtype=numpy.uint8
        )
        tiers.store(KEYS, content)
        tiers.settle()
        tiers.forget()
        found = tiers.load(KEYS)
        assert len(found) == hits
        assert all((found[key] == its).all() for key, its in zip(KEYS, content) if key in found)
        declined = tiers.tier.status()
        assert declined["declined_blocks"] == len(KEYS) - hits
        assert declined["declined_prompts"] == (0 if hits else 1)
    finally:
        tiers.close()


def test_a_prompt_that_waits_is_declined_once(host, measured):
    """Its chunks are looked up in each step, for as long as those of another one come."""
    tier = {"type": "Tier", "module_path": "kvrail.vllm", "socket": str(host.socket)}
    tiers = Tiers(tier, chunks=len(KEYS), chunk_bytes=CHUNK_BYTES)
    others = keys_of(range(900, 900 + len(KEYS)))
    try:
        for keys in (KEYS, others):
            tiers.store(keys, numpy.zeros((len(keys), CHUNK_BYTES), numpy.uint8))
            tiers.settle()
            tiers.forget()
        first, second = tiers.request(KEYS), tiers.request(others)
        assert set(tiers.look(KEYS, first)) == {LookupResult.HIT_PENDING}
        tiers.tier._loads._choice._speed.give(1e9)
        for _ in range(5):
            assert LookupResult.HIT_PENDING not in tiers.look(others, second)
            tiers.step()
        assert tiers.tier.status()["declined_prompts"] == 1
    finally:
        tiers.close()


def spec_manager(host: Any, **more: Any) -> Any:
    from kvrail._vllm_spec import KvrailOffloadingSpec

    extra = {"spec_name": "KvrailOffloadingSpec", "spec_module_path": "kvrail.vllm"}
    made = config({}, chunks=1, chunk_bytes=CHUNK_BYTES)
    made = dataclasses.replace(made, extra_config=extra | {"socket": str(host.socket)} | more)
    return KvrailOffloadingSpec(made).get_manager()


def prompt_of(name: str, keys: list) -> ReqContext:
    """A request with these chunks."""
    request = ReqContext(name)
    for at, key in enumerate(keys):
        request.set_offload_key_position(key, 16 * (at + 1))
    return request


@pytest.mark.parametrize(("more", "hits"), CHOICES)
def test_the_spec_declines_what_is_computed_sooner(host, measured, more, hits):
    manager = spec_manager(host, **more)
    try:
        link = manager._links[0]
        space = link.session.space
        # The request has two chunks in the GPU's cache, and one that is nowhere.
        for key in KEYS:
            space.put(bytes(key), bytes(CHUNK_BYTES))
        prompt = [*keys_of([100, 101]), *KEYS, *keys_of([102])]
        request = prompt_of("request", prompt)
        manager.on_new_request(request)
        answers = [manager.lookup(key, request) for key in prompt[2:]]
        assert answers == [LookupResult.HIT] * hits + [LookupResult.MISS] * (7 - hits)
        status = manager.status()[0]
        assert status["declined_blocks"] == len(KEYS) - hits
        if hits:
            manager.prepare_load(KEYS, request)
            manager.complete_load(KEYS, request)
            assert manager._loads.expected(request, hits) > 0
    finally:
        manager.shutdown()


@pytest.mark.parametrize("chunks", [1, 6])
def test_loads_of_one_step_are_behind_each_other(host, measured, chunks):
    """No drive has them yet when their requests are scheduled."""
    manager = spec_manager(host, prefill_tokens_per_second=SLOW)
    hits = [LookupResult.HIT] * chunks
    try:
        space = manager._links[0].session.space
        expected = []
        for number in range(6):
            keys = keys_of(range(10 * number, 10 * number + chunks))
            for key in keys:
                space.put(bytes(key), bytes(CHUNK_BYTES))
            request = prompt_of(f"request {number}", keys)
            assert [manager.lookup(key, request) for key in keys] == hits
            expected.append(manager._loads.expected(request, chunks))
        # A drive that still writes has a queue.
        assert expected == sorted(expected) and 3 < expected[5] / expected[0] < 20
        manager.on_schedule_end(ScheduleEndContext([], []))
        assert [manager.lookup(key, request) for key in keys] == hits
        assert manager._loads.expected(request, chunks) < expected[5] / 2
    finally:
        manager.shutdown()


@pytest.mark.parametrize("of", ["spec", "tier"])
def test_declines_are_among_vllm_s_own_metrics(host, measured, of):
    """Its frontend has them from its scheduler, by the names that spec and tier define."""
    metrics = pytest.importorskip("prometheus_client")
    its = pytest.importorskip("vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics")
    tier = {"type": "Tier", "module_path": "kvrail.vllm", "socket": str(host.socket)}
    tier["prefill_tokens_per_second"] = FAST
    if of == "spec":
        made: Any = SimpleNamespace(manager=spec_manager(host, prefill_tokens_per_second=FAST))
        made.close = made.manager.shutdown
        space = made.manager._links[0].session.space
        extra: dict[str, Any] = {"spec_name": "KvrailOffloadingSpec"}
        extra["spec_module_path"] = "kvrail.vllm"
    else:
        made = Tiers(tier, chunks=16, chunk_bytes=CHUNK_BYTES)
        space = made.tier._link.session.space
        extra = config(tier, 16, CHUNK_BYTES).extra_config
    registry = metrics.CollectorRegistry()

    def kind(of: Any) -> Any:
        return lambda name, documentation, labelnames=(), **more: of(
            name, documentation, labelnames, registry=registry, **more
        )

    named = {
        it: kind(it) for it in (metrics.Counter, metrics.Gauge, metrics.Histogram)
    }
    transfer = SimpleNamespace(kv_connector_extra_config=extra)
    shown = its.OffloadPromMetrics(
        SimpleNamespace(kv_transfer_config=transfer), named, ["model"], {0: ["m"]}
    )
    try:
        assert space.put_many([bytes(it) for it in KEYS], [bytes(CHUNK_BYTES)] * 6).all_ok
        for number in range(2):
            request = prompt_of(f"request {number}", KEYS)
            made.manager.on_new_request(request)
            with getattr(made.manager, "lock", nullcontext()):
                assert made.manager.lookup(KEYS[0], request) is LookupResult.MISS
                made.manager.on_schedule_end(ScheduleEndContext([], []))
                stats = made.manager.get_stats()
            shown.observe(stats.data, 0)
        stats = made.manager.get_stats()
        assert stats is None or "kvrail" not in str(stats.data), "each is counted once"
    finally:
        made.close()
    for name, value in (("prompts", 2), ("chunks", 12)):
        name = f"vllm:kv_offload_kvrail_declined_{name}_total"
        assert registry.get_sample_value(name, {"model": "m"}) == value


USERS = [keys_of(range(10 * at, 10 * at + 6)) for at in range(16)]


@pytest.fixture
def returning(host, measured):
    """A manager whose store has the chunks of users, and what sets how many times as long as loads
    of one user computing takes."""
    manager = spec_manager(host, prefill_tokens_per_second=1.0)
    space = manager._links[0].session.space
    for keys in USERS:
        assert space.put_many([bytes(it) for it in keys], [bytes(CHUNK_BYTES)] * len(keys)).all_ok

    def alone_s() -> float:
        return space.lookup([bytes(it) for it in USERS[0]]).load_seconds

    def computes(times: float) -> float:
        seconds, until = min(alone_s() for _ in range(9)), time.monotonic() + 20
        while alone_s() > 1.2 * seconds:  # the drive still writes
            assert time.monotonic() < until
        manager._loads._choice._speed.give(16 * len(USERS[0]) / (times * seconds))
        return times * seconds

    yield manager, computes
    manager.shutdown()


def found(manager: Any, number: int) -> tuple[ReqContext, int]:
    """A user that returns, and the number of chunks that are loaded for the request."""
    request, keys = prompt_of(f"user {number}", USERS[number]), USERS[number]
    return request, [manager.lookup(key, request) for key in keys].count(LookupResult.HIT)


def test_of_users_that_return_at_once_none_is_computed_where_drives_are_fast(returning):
    """Each alone is loaded; a prompt that is computed delays all others of the engine."""
    manager, computes = returning
    computes(3.0)
    assert [found(manager, number)[1] for number in range(16)] == [6] * 16


def test_no_load_ends_later_than_an_engine_without_a_store_computes(returning):
    manager, computes = returning
    each_s, hits = computes(0.45), []
    for number in range(16):
        request, count = found(manager, number)
        hits.append(count)
        if count:
            ends_s = manager._loads.expected(request, count)
            assert ends_s < 1.2 * (number + 1) * each_s
    assert hits[0] == 0 and sum(map(bool, hits)) in range(2, 12)


def test_loads_of_earlier_steps_are_ahead_until_they_end(returning):
    """The worker's memory has a window of them: a drive's queue does not show the rest."""
    manager, computes = returning
    alone_s = computes(10.0) / 10
    begun = []
    for number in range(8):
        request, count = found(manager, number)
        assert count == 6
        manager.prepare_load(USERS[number], request)
        manager.on_schedule_end(ScheduleEndContext([], []))
        begun.append(request)
    # Of the oldest one some may be over, by the time that it should take.
    behind, _ = found(manager, 8)
    assert 7 * alone_s < manager._loads.expected(behind, 6) < 10 * alone_s
    for number, request in enumerate(begun[:6]):
        manager.complete_load(USERS[number], request)
    behind, _ = found(manager, 9)
    assert manager._loads.expected(behind, 6) < 5 * alone_s
    manager.reset_cache()  # vLLM forgets jobs without a word
    behind, _ = found(manager, 10)
    assert manager._loads.expected(behind, 6) < 2 * alone_s


def test_loads_that_began_before_the_speed_was_known_count_on_both_sides(returning):
    """After a start all that is found is loaded; the next prompt is not computed for that."""
    manager, computes = returning
    manager._loads._choice._speed.give(None)
    for number in range(8):
        request, count = found(manager, number)
        assert count == 6
        manager.prepare_load(USERS[number], request)
        manager.on_schedule_end(ScheduleEndContext([], []))
    computes(3.0)
    assert found(manager, 8)[1] == 6


def test_what_an_earlier_step_expected_of_a_request_is_over(returning):
    """A request that got no pages is asked for again: by then other loads are ahead of it."""
    manager, _ = returning
    request, count = found(manager, 0)
    assert count == 6 and manager._loads.expected(request, 6) > 0
    manager.on_schedule_end(ScheduleEndContext([], []))
    # All of its blocks are answered for another request of the step.
    other = prompt_of("other", USERS[0])
    for its in (other, request):
        assert [manager.lookup(key, its) for key in USERS[0]] == [LookupResult.HIT] * 6
    assert manager._loads.expected(other, 6) > 0
    assert manager._loads.expected(request, 6) is None
    manager.prepare_load(USERS[0], request)
    assert manager._loads._begun[request.req_id].front is None
    manager.on_schedule_end(ScheduleEndContext([], []))
    # Nothing is there now: no front is weighed.
    manager._links[0].session.space.drop([bytes(key) for key in USERS[0]])
    assert {manager.lookup(key, other) for key in USERS[0]} == {LookupResult.MISS}
    assert manager._loads.expected(other, 6) is None


@pytest.mark.parametrize("blocks", [1, 2, 6])
@pytest.mark.parametrize("users", [2, 8])
@pytest.mark.parametrize("window", [2, 100])
def test_loads_at_the_drive_count_once(monkeypatch, blocks, users, window):
    """What a drive has of them, as far as the worker has begun it, is in its queue too."""
    each_s, queue = 0.01, 0
    monkeypatch.setattr(_vllm_loads.time, "monotonic", lambda: 100.0)
    monkeypatch.setattr(
        _vllm_loads, "_seconds", lambda found, count: each_s * (min(queue, window) + count)
    )
    loads = _vllm_loads.Loads(LoadChoice(Speed()))
    for number in range(users + 1):
        keys = keys_of(range(10 * number, 10 * number + blocks))
        request, there = prompt_of(f"user {number}", keys), [True] * blocks
        assert loads.answers(request, keys, [there]) == there
        right_s = each_s * blocks * (number + 1)
        assert right_s / 1.3 < loads.expected(request, blocks) < 1.3 * right_s
        loads.begin(request, blocks)
        loads.step()
        queue += blocks


def test_a_reset_forgets_loads_that_were_failing(returning):
    """vLLM drops their jobs: the next load of a request of that name is whole."""
    manager, _ = returning
    manager.failing.add("user 0")
    manager.reset_cache()
    request, count = found(manager, 0)
    assert count == 6
    manager.prepare_load(USERS[0], request)
    manager.complete_load(USERS[0], request)
    manager.on_schedule_end(ScheduleEndContext([], []))
    assert [manager.lookup(key, request) for key in USERS[0]] == [LookupResult.HIT] * 6


def test_loads_of_the_tier_are_ahead_until_they_end(host, measured, monkeypatch):
    tier = {"type": "Tier", "module_path": "kvrail.vllm", "socket": str(host.socket)}
    tier["prefill_tokens_per_second"] = SLOW
    tiers = Tiers(tier, chunks=48, chunk_bytes=CHUNK_BYTES)

    def ahead_s(keys: list) -> float:
        request = tiers.request(keys)
        assert set(tiers.look(keys, request)) == {LookupResult.HIT_PENDING}
        tiers.step()
        return request.get_state(_vllm_loads._Chosen).ahead_s

    try:
        for keys in USERS[:6]:
            tiers.store(keys, numpy.zeros((len(keys), CHUNK_BYTES), numpy.uint8))
        tiers.settle()
        tiers.forget()
        with monkeypatch.context() as patched:
            patched.setattr(tiers.tier._lane, "poll", list)
            first, *others = [ahead_s(keys) for keys in USERS[:5]]
        # Of the oldest one all may be over, by the time that it should take.
        assert first == 0 and 0 < others[1] < others[2] < others[3]
        tiers.settle()
        assert ahead_s(USERS[5]) == 0
        assert tiers.tier.status()["declined_prompts"] == 0
    finally:
        tiers.close()


def load_job(request: ReqContext, keys: list) -> TransferJobStatus:
    return TransferJobStatus(request.req_id, 2, set(keys), is_store=False)


def ended(job: int) -> OffloadingWorkerMetadata:
    """What a worker reports of a job."""
    meta = OffloadingWorkerMetadata()
    meta.mark_completed(job)
    return meta


def test_a_failed_load_is_given_up_and_is_no_slow_drive(host, measured, monkeypatch):
    """Whole, it would be corrected to four times the time, and the next requests computed."""
    its = pytest.importorskip("kvrail.vllm_connector")
    manager = spec_manager(host, prefill_tokens_per_second=SLOW)
    try:
        space = manager._links[0].session.space
        for key in KEYS:
            space.put(bytes(key), bytes(CHUNK_BYTES))
        request, other = prompt_of("fails", KEYS), prompt_of("other", KEYS)
        assert [manager.lookup(key, request) for key in KEYS] == [LookupResult.HIT] * 6
        manager.prepare_load(KEYS, request)
        time.sleep(0.2)
        connector = object.__new__(its.KvrailOffloadingConnector)
        jobs = {1: load_job(request, KEYS), 2: load_job(other, KEYS)}
        connector.connector_scheduler = SimpleNamespace(manager=manager, _jobs=jobs)
        base = its.OffloadingConnector
        # One of two ranks fails at once; the other has read its part a step later.
        monkeypatch.setattr(base, "update_connector_output", lambda self, output: None)
        connector.update_connector_output(
            KVConnectorOutput(invalid_block_ids={7}, kv_connector_worker_meta=ended(1))
        )
        ends = lambda self, output: manager.complete_load(KEYS, request)  # noqa: E731
        monkeypatch.setattr(base, "update_connector_output", ends)
        connector.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=ended(1)))
        manager.on_schedule_end(ScheduleEndContext([], []))
        assert manager.status()[0]["load_correction"] == 1.0
        assert [manager.lookup(key, request) for key in KEYS] == [LookupResult.MISS] * 6
        assert [manager.lookup(key, other) for key in KEYS] == [LookupResult.HIT] * 6
        assert not manager.failing
    finally:
        manager.shutdown()


@pytest.mark.parametrize(
    ("steps_s", "expected_s", "correction"),
    [
        ([0.25] * 2, 0.03, 1.0),
        ([0.25] * 2, 0.9, 0.556),
        ([0.25] * 6, 0.5, 1.5),
        ([0.001] * 90, 0.03, 2.9),
    ],
)
def test_a_load_that_ends_within_a_step_is_no_slow_drive(
    monkeypatch, steps_s, expected_s, correction
):
    """An engine that computes looks for a load's end once a step."""
    now = 100.0
    monkeypatch.setattr(_vllm_loads.time, "monotonic", lambda: now)
    loads = _vllm_loads.Loads(LoadChoice(Speed()))
    request = ReqContext("request")
    front = Front(0, [16, 32, 48, 64], 64, lambda count: expected_s)
    loads.step()
    request.set_state(_vllm_loads._Chosen(front, 0.0, loads._step, None))
    loads.begin(request, 4)
    for step_s in steps_s:
        loads.step()
        now += step_s
    loads.end(request.req_id, whole=True)
    assert loads.status()["load_correction"] == pytest.approx(correction, abs=0.1)


def cached(ids: list[str], computed: list[int]) -> CachedRequestData:
    named = {field.name for field in dataclasses.fields(CachedRequestData)}
    values: dict[str, Any] = {
        "req_ids": ids,
        "resumed_req_ids": set(),
        "new_token_ids": [],
        "all_token_ids": {},
        "new_block_ids": [None] * len(ids),
        "num_computed_tokens": computed,
        "num_output_tokens": [0] * len(ids),
    }
    return CachedRequestData(**{name: values[name] for name in named})


def output(
    new: list[tuple[str, int, int]],
    going_on: dict[str, int],
    scheduled: dict[str, int],
    finished: set[str] = frozenset(),
) -> SchedulerOutput:
    """A step: new requests with their prompts' tokens and those that were loaded, and others with
    those that are computed."""
    made = SchedulerOutput.make_empty()
    made.scheduled_new_reqs = [
        NewRequestData(name, list(range(prompt)), [], None, None, ([],), loaded, None)
        for name, prompt, loaded in new
    ]
    made.scheduled_cached_reqs = cached(list(going_on), list(going_on.values()))
    made.num_scheduled_tokens = scheduled
    made.total_num_scheduled_tokens = sum(scheduled.values())
    made.finished_req_ids = set(finished)
    return made


def test_steps_are_timed_from_their_schedule_or_the_end_before(monkeypatch):
    """Two steps are under way at once; the second begins when the first has ended."""
    now = 100.0
    monkeypatch.setattr(_vllm_loads.time, "monotonic", lambda: now)
    seen: list[tuple[list[tuple[int, int]], float]] = []

    class Seen(Speed):
        def measured(self, parts, seconds):
            seen.append((list(parts), seconds))

    speed = Seen()
    steps = Steps(speed)
    steps.end()  # a worker's half, or an output of before
    steps.begin(output([("a", 10_000, 2_000)], {}, {"a": 4_000}))
    assert speed.backlog == 4_000
    steps.begin(output([("b", 500, 0)], {"a": 6_000}, {"a": 4_000, "b": 500}))
    assert speed.backlog == 0
    now = 101.0
    steps.end()
    # Tokens of the answer are no prompt's.
    steps.begin(output([], {"a": 10_000, "b": 500}, {"a": 1, "b": 1}))
    now = 101.5
    steps.end()
    now = 101.6
    steps.end()
    now = 200.0
    steps.begin(output([("c", 9_000, 0)], {}, {"c": 3_000}, {"a", "b"}))
    assert speed.backlog == 6_000
    now = 200.25
    steps.end()
    assert [parts for parts, _ in seen] == [
        [(2_000, 6_000)],
        [(0, 500), (6_000, 10_000)],
        [],
        [(0, 3_000)],
    ]
    assert [seconds for _, seconds in seen] == pytest.approx([1.0, 0.5, 0.1, 0.25])
    steps.begin(output([], {}, {}, {"c"}))
    assert speed.backlog == 0


def test_requests_wait_from_their_arrival_to_their_first_step_or_end():
    steps = Steps(speed := Speed())
    for name in "abc":
        steps.add(name)
    steps.begin(output([("a", 500, 0)], {}, {"a": 500}))
    assert speed.waiting == {"b", "c"}
    steps.begin(output([], {}, {}, {"a", "c"}))
    assert speed.waiting == {"b"}


def test_the_connector_times_its_steps(monkeypatch):
    its = pytest.importorskip("kvrail.vllm_connector")
    connector = object.__new__(its.KvrailOffloadingConnector)
    base = its.OffloadingConnector
    monkeypatch.setattr(base, "build_connector_meta", lambda self, output: "meta")
    monkeypatch.setattr(base, "get_kv_connector_stats", lambda self: "stats")
    connector._steps = Steps(speed := Speed())
    step = output([("a", 8_192, 0)], {}, {"a": 8_192})
    assert connector.build_connector_meta(step) == "meta"
    assert speed.seconds(0, 8_192) is None
    monkeypatch.setattr(base, "on_new_request", lambda self, request: None, raising=False)
    connector.connector_scheduler = None
    connector.on_new_request(SimpleNamespace(request_id="waits"))
    assert speed.waiting == {"waits"}
    assert connector.get_kv_connector_stats() == "stats"
    assert speed.seconds(0, 8_192) > 0
