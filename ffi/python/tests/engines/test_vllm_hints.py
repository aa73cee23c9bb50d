"""V8: hints of an orchestrator, in vLLM's own envelopes, through its own tiering manager, and
through the manager and worker of the spec without a CPU tier."""

import math
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
protocol = pytest.importorskip("vllm.v1.kv_hints", reason="this vLLM has no hints")
msgspec = pytest.importorskip("msgspec")

from kvrail import _vllm_marks, paged  # noqa: E402
from kvrail._load_choice import Speed  # noqa: E402
from kvrail._vllm_hints import ENDING, Hinted, Hints, Ranges  # noqa: E402
from kvrail._vllm_loads import Steps  # noqa: E402
from kvrail._vllm_marks import AWAKE_S, TOUCHED, Marks  # noqa: E402
from kvrail._vllm_tiers import Tiers, keys_of  # noqa: E402
from host import until  # noqa: E402
from standin_mover import StandIn  # noqa: E402
from test_vllm_spec import DEVICE, Engine  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (  # noqa: E402
    OffloadingConnectorScheduler,
)
from vllm.v1.kv_offload.base import ReqContext, ScheduleEndContext  # noqa: E402

CHUNK, TOKENS = 1 << 20, 16


def action(kind: str, payload: dict[str, Any] | None = None, version: str = "1.0") -> Any:
    return protocol.KvHintAction(f"the {kind}", kind, version, payload or {})


def retain(*directives: Any, version: str = "1.0") -> Any:
    payload = {"scope": None, "directives": list(directives)}
    return action("kv.retain", payload, version)


def envelope(*actions: Any) -> Any:
    """As the engine's core gets it: over the wire."""
    sent = protocol.KvHintsEnvelope("0.1", "message", list(actions))
    coded = msgspec.msgpack.encode(sent)
    return msgspec.msgpack.decode(coded, type=protocol.KvHintsEnvelope)


def read(*actions: Any) -> Hints:
    return Hints.read(envelope(*actions))


def request_of(keys: Sequence[Any], hints: Any, name: str = "request") -> ReqContext:
    request = ReqContext(name, kv_hints=hints)
    for at, key in enumerate(keys):
        request.set_offload_key_position(key, TOKENS * (at + 1))
    return request


@pytest.fixture
def tiers(host) -> Iterator[Tiers]:
    tier = {"type": "Tier", "module_path": "kvrail.vllm", "socket": str(host.socket)}
    made = Tiers(tier, chunks=32, chunk_bytes=CHUNK)
    yield made
    made.close()


def run(tiers: Tiers, keys: list[Any], hints: Any, stored: Sequence[Any] | None = None) -> None:
    """A request with hints from its first step to its last: these of its chunks are stored."""
    request, stored = request_of(keys, hints, f"{time.monotonic_ns()}"), stored or keys
    manager = tiers.manager
    with tiers._held():
        manager.on_new_request(request)
        out = manager.prepare_store(stored, request)
        for at, row in enumerate(out.store_spec.block_ids):
            tiers.rows[int(row)] = at
        manager.complete_store(out.keys_to_store, request)
        manager.on_request_finished(request)
    tiers.settle()
    for _ in range(4):
        tiers.step()
        time.sleep(0.01)


def space(tiers: Tiers) -> Any:
    return tiers.tier._link.session.space


def worths(space: Any, keys: Sequence[Any]) -> list[str]:
    return [space.explain(bytes(key))["state"]["there"]["worth"] for key in keys]


def wait_for_worths(space: Any, keys: Sequence[Any], wanted: list[str]) -> None:
    until = time.monotonic() + 10
    while (found := worths(space, keys)) != wanted:
        assert time.monotonic() < until, found
        time.sleep(0.02)


def demoted(space: Any, keys: Sequence[Any]) -> list[bool]:
    """Whether each counts as used a turn of the store before the coldest blocks."""
    blocks = [space.explain(bytes(key))["state"]["there"] for key in keys]
    lives = (it["coldest_age_percent"] for it in blocks)
    least = (90 + (100 if life is None else life) for life in lives)
    return [it["age_percent"] >= age for it, age in zip(blocks, least, strict=True)]


def test_retained_tokens_are_worth_more_and_released_ones_less(tiers):
    keys = keys_of(range(6))
    hints = envelope(
        retain({"start": 0, "end": 33, "priority": 80, "duration": 60.0}),
        retain({"start": 48, "end": 90, "priority": 0}),
    )
    run(tiers, keys, hints)
    # The third chunk has one retained token; of the last one not all are released.
    wanted = ["high", "high", "high", "low", "low", "normal"]
    assert worths(space(tiers), keys) == wanted
    assert tiers.tier.status()["hints"] == {"retained": 2}
    run(tiers, (others := keys_of(range(10, 14))), None)
    assert worths(space(tiers), others) == ["normal"] * 4, "hints are of one request"


def test_a_prompt_without_an_end_is_retained_with_what_is_generated(tiers):
    keys = keys_of(range(4))
    run(tiers, keys, envelope(retain({"start": 16, "priority": 100})))
    assert worths(space(tiers), keys) == ["normal", "high", "high", "high"]


def test_a_session_that_ends_is_demoted_and_what_it_retains_is_not(tiers):
    keys = keys_of(range(4))
    run(tiers, keys, envelope(retain({"start": 0, "end": 32, "priority": 50})))
    assert worths(space(tiers), keys) == ["high", "high", "normal", "normal"]
    more = keys_of(range(6))
    last = envelope(retain({"start": 0, "end": 16, "priority": 50}), action("kv.deref"))
    run(tiers, more, last, more[4:])
    wait_for_worths(space(tiers), more, ["high", "normal", "normal", "normal", "low", "low"])
    # The last chunks were on their way when it ended: they were put for less.
    assert demoted(space(tiers), more[:4]) == [False, True, True, True]
    assert tiers.tier.status()["hints"] == {"retained": 2, "ended": 1}
    # Another session uses the front: it is as others again.
    tiers.manager.touch(more[1:2], tiers.request(more))
    tiers.step()
    until = time.monotonic() + 10
    while demoted(space(tiers), more[1:3]) != [False, True]:
        assert time.monotonic() < until
        tiers.step()
        time.sleep(0.02)


def test_actions_that_move_blocks_elsewhere_and_unknown_ones_change_nothing(tiers):
    keys = keys_of(range(2))
    named = ["kv.fetch", "kv.prefetch", "kv.demote", "kv.source_locations", "kv.evict", "é" * 999]
    run(tiers, keys, envelope(*map(action, named), action("kv.deref", version="2.0")))
    assert worths(space(tiers), keys) == ["normal", "normal"]
    assert demoted(space(tiers), keys) == [False, False]
    elsewhere = {f"elsewhere: {kind}": 1 for kind in named[:4]}
    assert tiers.tier.status()["hints"] == elsewhere | {"unknown": 2, "version": 1}


ABSURD = [
    *({"start": 0, "end": 16, "priority": it} for it in (-1, 101, 2**63, 1.5, math.nan, True, "9")),
    *({"start": it, "priority": 50} for it in (-1, 0.5, None, "0", [])),
    *({"end": it, "priority": 50} for it in (0, -(2**60), math.inf, "end")),
    *({"priority": 50, "duration": it} for it in (-1, -math.inf, math.nan, "an hour", True)),
    {"start": 0, "end": 16},
    "a directive",
    None,
]


@pytest.mark.parametrize("directive", ABSURD, ids=str)
def test_an_absurd_directive_drops_its_action_and_no_other(directive):
    good = retain({"end": 16, "priority": 1})
    hints = read(retain({"end": 64, "priority": 9}, directive), good)
    assert hints.counts == {"malformed": 1, "retained": 1}
    keys = keys_of(range(2))
    assert hints.worths(request_of(keys, None), keys) == ["high", "normal"]


@pytest.mark.parametrize("payload", [{}, {"directives": None}, {"directives": {"start": 0}}])
def test_a_payload_without_directives_is_malformed(payload):
    assert read(action("kv.retain", payload)).counts == {"malformed": 1}


@pytest.mark.parametrize("duration", [1e300, 1e-9, 2**63, None, math.inf])
def test_any_duration_from_now_on_retains(duration):
    keys = keys_of(range(2))
    hints = read(retain({"end": 2**64 - 1, "priority": 1, "duration": duration}))
    assert hints.worths(request_of(keys, None), keys) == ["high", "high"]


def test_a_retention_that_is_over_at_once_is_none():
    hints = read(retain({"priority": 90, "duration": 0}))
    assert hints.worths(request_of([], None), []) is None


def test_more_actions_and_directives_than_there_may_be_are_left():
    assert read(*[action("kv.deref")] * 1000).counts == {"ended": 64}
    assert read(retain(*[{"priority": 1}] * 129)).counts == {"malformed": 1}


def test_absurd_hints_cost_a_request_nothing(tiers):
    """All at once, through vLLM's manager: its chunks are stored, and found."""
    keys = keys_of(range(4))
    run(tiers, keys, envelope(*(retain(it) for it in ABSURD), action("kv.retain", {"x": 1})))
    assert worths(space(tiers), keys) == ["normal"] * 4
    assert tiers.tier.status()["hints"] == {"malformed": len(ABSURD) + 1}
    tiers.forget()
    assert len(tiers.load(keys)) == 4


def test_ranges_meet_and_cover_as_their_tokens_do():
    random = numpy.random.default_rng(5)
    for _ in range(300):
        pairs = [sorted(map(int, random.integers(0, 20, 2))) for _ in range(4)]
        some = [(start, end) for start, end in pairs if end > start]
        ranges, tokens = Ranges.of(some), {it for pair in some for it in range(*pair)}
        for start in range(20):
            for end in range(start + 1, 21):
                asked = set(range(start, end))
                assert ranges.meet(start, end) == bool(tokens & asked)
                assert ranges.cover(start, end) == (asked <= tokens)


def test_demotions_that_cannot_be_sent_are_left_out_beyond_a_limit():
    hinted, keys = Hinted(), keys_of(range(ENDING + 5))
    request = request_of(keys, envelope(action("kv.deref")))
    hinted.begin(request)
    assert hinted.end(request) == keys
    assert hinted.status() == {"hints": {"ended": 1, "unsent": 5}}
    while some := hinted.take(1024):
        hinted.sent(some)
    hinted.end(request_of(keys[:1], envelope(action("kv.deref")), "next"))
    assert hinted.take(1024) == keys[:1]


def test_what_is_used_after_a_session_s_end_is_not_demoted():
    hinted, keys = Hinted(), keys_of(range(6))
    hinted.end(request_of(keys, envelope(action("kv.deref"))))
    hinted.used(keys[:2])
    assert hinted.take(1024) == keys[2:]


@pytest.mark.parametrize("of", ["spec", "tier"])
def test_a_session_s_end_is_demoted_beside_touches_of_each_step(host, tiers, of, monkeypatch):
    """An engine at work always has chunks to touch."""
    if DEVICE == "cpu":
        monkeypatch.setattr(paged, "Mover", StandIn)
    its = Engine(host) if of == "spec" else tiers
    manager = its.manager
    link = manager._links[0] if of == "spec" else tiers.tier._link
    step = lambda: manager.on_schedule_end(ScheduleEndContext([], []))  # noqa: E731
    store, keys, hot = link.session.space, keys_of(range(4)), keys_of(range(20, 24))
    for key in [*keys, *hot]:
        store.put(bytes(key), bytes(64), metadata=bytes(key))
    ending = request_of(keys, envelope(action("kv.deref")))
    manager.on_new_request(ending)
    manager.on_request_finished(ending)
    others, until = request_of(hot, None, "others"), time.monotonic() + 10
    manager.on_new_request(others)
    while demoted(store, keys) != [True] * 4:
        manager.touch(hot, others)
        step() if of == "spec" else tiers.step()
        assert time.monotonic() < until
    assert demoted(store, hot) == [False] * 4
    if of == "spec":
        its.close()


class Idle:
    """An engine without requests, which goes on as long as vLLM's own classes ask it to."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._scheduler = object.__new__(OffloadingConnectorScheduler)
        self._scheduler.manager = manager
        self._scheduler._jobs = self._scheduler._reset_fence = {}
        self._scheduler._manager_locked = lambda: getattr(manager, "lock", nullcontext())

    def run(self) -> float:
        """Until it sleeps; the seconds for which it has not."""
        begun = time.monotonic()
        while self._scheduler.has_pending_push_work():
            assert time.monotonic() < begun + 20, "it never sleeps"
            with self._scheduler._manager_locked():
                self._manager.on_schedule_end(ScheduleEndContext([], []))
            time.sleep(0.001)
        return time.monotonic() - begun


@pytest.mark.parametrize("of", ["spec", "tier"])
@pytest.mark.parametrize("fault", [None, "stopped", "killed"])
def test_demotions_are_sent_while_the_engine_has_no_requests(host, of, fault, monkeypatch):
    """Of a long session several batches; without a sidecar the engine sleeps all the same."""
    if DEVICE == "cpu":
        monkeypatch.setattr(paged, "Mover", StandIn)
    tier = {"type": "Tier", "module_path": "kvrail.vllm", "socket": str(host.socket)}
    its: Any = Engine(host)
    if of == "tier":
        its.close()
        # vLLM's thread would send them.
        its = Tiers(tier | {"poll_between_steps": False}, chunks=4, chunk_bytes=CHUNK)
    link = its.tier._link if of == "tier" else its.manager._links[0]
    store, keys = link.session.space, keys_of(range(3 * TOUCHED))
    assert store.put_many([bytes(it) for it in keys], [bytes(64)] * len(keys)).all_ok
    idle = Idle(its.manager)
    idle.run()
    ending = request_of(keys, envelope(action("kv.deref")))
    its.manager.on_new_request(ending)
    if fault == "killed":
        host.kill()
        until("the session has ended", lambda: not any(link.lookup(keys[:1])))
    elif fault == "stopped":
        host.freeze()
    its.manager.on_request_finished(ending)
    its.manager.on_schedule_end(ScheduleEndContext([], []))
    took_s = idle.run()
    if fault is not None:
        assert took_s < 1.0
        if fault == "stopped":
            host.thaw()
    else:
        some = [keys[at] for at in (0, TOUCHED, 2 * TOUCHED, -1)]
        until("all are demoted", lambda: demoted(store, some) == [True] * 4)
    its.close()


class Scheduler:
    """vLLM's half of its scheduler that makes the state of a new request."""

    def __init__(self, manager: Any, keys: Sequence[Any], hints: Any) -> None:
        self.manager, self._keys, self._hints = manager, keys, hints
        self._req_status: dict[str, Any] = {}

    def on_new_request(self, request: Any) -> None:
        context = ReqContext(request.request_id, kv_hints=self._hints)
        self.manager.on_new_request(context)

        def update_offload_keys() -> None:
            for at, key in enumerate(self._keys):
                context.set_offload_key_position(key, TOKENS * (at + 1))

        state = SimpleNamespace(req_context=context, update_offload_keys=update_offload_keys)
        self._req_status[request.request_id] = state


@pytest.mark.memory_tier("64MiB")
@pytest.mark.parametrize("kind", ["kv.prefetch", "kv.fetch", "kv.demote"])
def test_blocks_that_are_expected_come_into_memory_while_their_request_waits(
    host, monkeypatch, kind
):
    if DEVICE == "cpu":
        monkeypatch.setattr(paged, "Mover", StandIn)
    from kvrail.vllm_connector import KvrailOffloadingConnector

    engine, keys = Engine(host), keys_of(range(6))
    space = engine.manager._links[0].session.space
    for key in keys:
        space.put(bytes(key), bytes(4096), metadata=bytes(key))
    connector = object.__new__(KvrailOffloadingConnector)
    connector.connector_worker = None
    connector._steps = Steps(Speed())
    connector.connector_scheduler = Scheduler(engine.manager, keys, envelope(action(kind)))
    connector.on_new_request(SimpleNamespace(request_id="request"))

    def in_memory() -> list[bool]:
        engine.manager.on_schedule_end(ScheduleEndContext([], []))
        return [space.view(bytes(key)) is not None for key in keys]

    if kind == "kv.demote":
        assert not any(any(in_memory()) for _ in range(20))
    else:
        until("all are in memory", lambda: all(in_memory()))
    engine.close()


def test_actions_of_another_version_expect_nothing():
    assert read(action("kv.prefetch")).expects
    assert not read(action("kv.prefetch", version="2.0"), action("kv.demote")).expects


class Rank:
    """The lane of a rank, which is busy for some turns."""

    def __init__(self, busy: int = 0) -> None:
        self.busy, self.sent = busy, list[tuple[str, list[bytes]]]()

    works, looks = True, False

    def touch(self, keys: list[bytes], *, demote: bool = False) -> bool:
        return self._take("demote" if demote else "touch", keys)

    def fetch(self, keys: list[bytes]) -> bool:
        return self._take("fetch", keys)

    def _take(self, kind: str, keys: list[bytes]) -> bool:
        self.busy -= 1
        if self.busy < 0:
            self.sent.append((kind, keys))
        return self.busy < 0


def test_a_rank_that_is_busy_gets_demotions_fetches_and_touches_later():
    hinted, ranks, keys = Hinted(), [Rank(), Rank(busy=3)], keys_of(range(9))
    marks = Marks(hinted, ranks)
    marks.end(request_of(keys[:3], envelope(action("kv.deref"))))
    marks.send()
    marks.touch(keys[3:6])
    marks.expect(keys[6:])
    marks.used([*keys[:1], keys[8]])
    for _ in range(8):
        marks.send()
    rest = [("touch", keys[3:6]), ("fetch", keys[6:8])]
    assert ranks[0].sent == [("demote", keys[:3]), *rest], "once"
    assert ranks[1].sent == [("demote", keys[1:3]), *rest], "not what was used meanwhile"


def test_an_engine_stays_awake_for_demotions_that_are_taken(monkeypatch):
    now = 100.0
    monkeypatch.setattr(_vllm_marks.time, "monotonic", lambda: now)
    hinted, ranks, keys = Hinted(), [Rank(busy=1), Rank(busy=5)], keys_of(range(3 * TOUCHED))
    marks = Marks(hinted, ranks)
    marks.touch(keys[:3])
    marks.expect(keys[3:6])
    assert not marks.pending, "touches and fetches are of requests"
    marks.end(request_of(keys, envelope(action("kv.deref"))))
    turns = 0
    while marks.pending:
        now, turns = now + 0.01, turns + 1
        marks.send()
        assert turns < 100
    for rank in ranks:
        sent = [keys for kind, keys in rank.sent if kind == "demote"]
        assert sum(sent, []) == keys
    marks.end(request_of(keys[:1], envelope(action("kv.deref")), "next"))
    marks.send()
    ranks[1].busy = 1 << 60
    marks.end(request_of(keys[:1], envelope(action("kv.deref")), "last"))
    marks.send()
    assert marks.pending
    ranks[0].works = False
    assert not marks.pending
    ranks[0].works = True
    now += AWAKE_S + 0.01
    assert not marks.pending


def test_what_is_no_envelope_costs_a_request_nothing():
    """Within one process nothing checks the types."""
    strange = protocol.KvHintsEnvelope("0.1", "message", 7)
    assert Hints.read(strange).counts == {"malformed": 1}
    strange = protocol.KvHintsEnvelope("0.1", "message", [action(["kv.deref"]), None])
    assert Hints.read(strange).counts == {"malformed": 2}


def test_a_worker_puts_what_a_request_retains_and_its_end_is_demoted(host, monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setattr(paged, "Mover", StandIn)
    engine, keys = Engine(host), keys_of(range(6))
    hints = envelope(retain({"start": 16, "end": 48, "priority": 70, "duration": 300}))
    request = request_of(keys, hints)
    engine.manager.on_new_request(request)
    out = engine.manager.prepare_store(keys, request)
    assert pickle.loads(pickle.dumps(out.store_spec)).worths == out.store_spec.worths

    def store(store_spec: Any, pages: list[int]) -> None:
        from vllm.v1.kv_offload.base import GPULoadStoreSpec

        number = engine.job()
        source = GPULoadStoreSpec(pages, group_sizes=(len(pages), 0), block_indices=(0, 0))
        assert engine.worker.submit_store(number, source, store_spec)
        assert engine.done(number).success

    store(out.store_spec, list(range(6)))
    space = engine.manager._links[0].session.space
    assert worths(space, keys) == ["normal", "high", "high", "normal", "normal", "normal"]
    # What a request offers and the store has was in the GPU's cache: it counts as used.
    again = request_of(keys, None, "again")
    engine.manager.on_new_request(again)
    assert not engine.manager.prepare_store(keys, again).keys_to_store
    assert list(engine.manager._marks._touched) == keys
    last = request_of(keys, envelope(action("kv.deref")), "last")
    engine.manager.on_new_request(last)
    engine.manager.touch(keys, last)
    engine.manager.on_request_finished(last)
    for _ in range(4):
        engine.manager.on_schedule_end(ScheduleEndContext([], []))
        time.sleep(0.02)
    assert demoted(space, keys) == [True] * 6, "also what was touched in its last step"
    assert engine.manager.status()[0]["hints"] == {"retained": 1, "ended": 1}
    engine.close()
