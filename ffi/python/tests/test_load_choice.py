"""Whether blocks are loaded or computed."""

import dataclasses
import logging

import pytest
from kvrail import _load_choice
from kvrail._load_choice import DECLINES, Front, LoadChoice, Speed

CHUNK = 256


def front(count: int, load_s: float, *, first: int = 0, total: int | None = None) -> Front:
    """Blocks whose loads take this long together."""
    ends = [first + CHUNK * (at + 1) for at in range(count)]
    whole = ends[-1] if total is None else total
    return Front(first, ends, whole, lambda some: load_s * some / count)


def speed(tokens_per_second: float) -> Speed:
    """An engine for which only the number of tokens counts."""
    made = Speed()
    made.measured([(0, 4096)], 4096 / tokens_per_second)
    return made


def chosen_alone(choice: LoadChoice, load_s: float) -> int:
    """Of 32 blocks, in a step of their own."""
    choice.step()
    return choice.blocks(front(32, load_s))


def test_blocks_are_loaded_where_that_is_sooner():
    choice = LoadChoice(speed(8192))
    assert choice.blocks(front(32, 0.9)) == 32
    assert choice.blocks(front(32, 1.1)) == 0
    assert choice.status()["declined_prompts"] == 1
    assert choice.status()["declined_blocks"] == 32
    # What is behind the blocks is computed anyway.
    assert choice.blocks(front(32, 0.9, total=100_000)) == 32


def test_a_front_may_pay_where_the_whole_does_not():
    # The first 8 blocks lie on a fast drive, the others on one that hangs.
    ends = [CHUNK * (at + 1) for at in range(32)]
    uneven = Front(0, ends, ends[-1], lambda some: 0.1 * some / 8 + max(0, some - 8))
    assert LoadChoice(speed(8192)).blocks(uneven) == 8


def test_throughput_loads_all():
    choice = LoadChoice(speed(8192), "throughput")
    assert choice.blocks(front(32, 100.0)) == 32
    assert choice.status()["declined_prompts"] == 0


def test_an_unknown_speed_or_time_loads_all():
    assert LoadChoice(Speed()).blocks(front(32, 100.0)) == 32
    unknown = Front(0, [256], 256, lambda _: None)
    assert LoadChoice(speed(1e9)).blocks(unknown) == 1
    assert LoadChoice(speed(1e9)).blocks(Front(0, [], 0, lambda _: None)) == 0


def test_a_given_speed_counts_until_it_is_measured():
    slow = Speed()
    choice = LoadChoice(slow, "latency", 100.0)
    assert choice.blocks(front(32, 10.0)) == 32
    slow.measured([(0, 8192)], 0.1)
    assert choice.blocks(front(32, 10.0)) == 0


def test_prompts_that_the_engine_computes_first_leave_time_for_loads():
    busy = speed(8192)
    assert LoadChoice(busy).blocks(front(32, 3.0)) == 0
    busy.backlog = 4 * 8192
    assert LoadChoice(busy).blocks(front(32, 3.0)) == 32


def test_a_prompt_that_waits_counts_once_and_a_try_stays_one():
    """It is asked for in each step. One that pays first, and later does not, counts then."""
    choice = LoadChoice(speed(8192))

    def asked(its: Front, load_s: float) -> int:
        choice.step()
        return choice.blocks(dataclasses.replace(its, load_seconds=front(32, load_s).load_seconds))

    its = front(32, 0.9)
    assert [asked(its, it) for it in (0.9, 1.1, 1.1)] == [32, 0, 0]
    assert choice.declined_prompts == 1
    tried = next(its for its in (front(32, 1.1) for _ in range(100)) if asked(its, 1.1) == 32)
    declined = choice.declined_prompts
    assert [asked(tried, 1.1) for _ in range(5)] == [32] * 5
    assert choice.declined_prompts == declined


def test_prompts_of_one_step_are_computed_one_after_the_other():
    """Each alone would be computed sooner; behind the first of them all others are loaded."""
    choice = LoadChoice(speed(8192))
    assert [choice.blocks(front(32, 1.2)) for _ in range(4)] == [0, 32, 32, 32]
    choice.step()
    assert choice.blocks(front(32, 1.2)) == 0, "what was computed then is the engine's backlog"


def test_computing_is_behind_what_is_loaded_for_others():
    """As it would be in an engine that loads nothing."""
    choice = LoadChoice(speed(8192))
    behind = Front(0, [8192], 8192, lambda _: 3 * 0.9 + 0.9, spared_s=3 * 1.0)
    assert choice.blocks(behind) == 1
    choice.step()
    slow = Front(0, [8192], 8192, lambda _: 3 * 1.1 + 1.1, spared_s=3 * 1.0)
    assert choice.blocks(slow) == 0
    assert choice.spared_seconds(slow, 1) == pytest.approx(1.0)
    assert choice.spared_seconds(slow, 0) == LoadChoice(Speed()).spared_seconds(slow, 1) == 0.0


def delayed(choice: LoadChoice, load_s: float, waiting: int, computed: float) -> int:
    """Of 32 blocks, computed in a second, with requests that wait behind them."""
    choice.step()
    choice._speed.waiting = {f"{at}" for at in range(waiting)}
    its = dataclasses.replace(front(32, load_s), waiting=choice.waiting({"0"}))
    delays = choice.delays(its, lambda count: load_s * count / 32, computed)
    return choice.blocks(dataclasses.replace(its, delays=delays))


def test_what_is_computed_delays_all_that_wait_and_what_is_loaded_those_that_are_loaded():
    assert delayed(LoadChoice(speed(8192)), 1.2, waiting=1, computed=1.0) == 0, "it is loading"
    assert delayed(LoadChoice(speed(8192)), 1.2, waiting=9, computed=1.0) == 32
    assert delayed(LoadChoice(speed(8192)), 1.2, waiting=9, computed=0.5) == 32
    assert delayed(LoadChoice(speed(8192)), 1.2, waiting=9, computed=0.0) == 0
    assert delayed(LoadChoice(speed(8192)), 3.0, waiting=9, computed=0.5) == 0


def test_tokens_behind_many_others_take_longer():
    engine = Speed()

    def takes(first: int, end: int) -> float:
        return 1e-5 * (end - first) + 1e-9 * (end**2 - first**2) / 2

    for first in (0, 4096, 8192, 65_536):
        engine.measured([(first, first + 4096)], takes(first, first + 4096))
    engine.measured([(100, 120)], 60.0)  # its time is not for its tokens
    for part in ((0, 4096), (0, 131_072), (100_000, 131_072)):
        assert engine.seconds(*part) == pytest.approx(takes(*part), rel=0.01)


def test_an_engine_that_has_become_slow_is_followed():
    engine = speed(8192)
    for _ in range(200):
        engine.measured([(0, 4096)], 2.0)
    assert engine.seconds(0, 4096) == pytest.approx(2.0, rel=0.05)


def test_loads_that_take_longer_than_expected_correct_the_next_ones():
    choice = LoadChoice(speed(8192))
    assert choice.blocks(front(32, 0.6)) == 32
    for _ in range(20):
        choice.loaded(0.6, 1.5)
    assert choice.blocks(front(32, 0.6)) == 0
    for _ in range(20):
        choice.loaded(0.6, 0.5)
    assert choice.blocks(front(32, 0.6)) == 32
    choice.loaded(None, 9.0)
    choice.loaded(0.0001, 9.0)  # too short to count
    assert choice.blocks(front(32, 0.6)) == 32
    choice.loaded(0.6, 60.0), choice.loaded(0.6, 60.0)  # a sidecar was killed
    assert choice.blocks(front(32, 0.6)) == 32


def test_old_loads_correct_nothing(monkeypatch):
    choice, now = LoadChoice(speed(8192)), 100.0
    monkeypatch.setattr(_load_choice.time, "monotonic", lambda: now)
    for _ in range(5):
        choice.loaded(0.6, 60.0)
    assert choice.blocks(front(32, 0.6)) == 0
    now += _load_choice.NOTICED_FOR_S + 1
    assert choice.blocks(front(32, 0.6)) == 32


def test_one_prompt_in_many_is_loaded_all_the_same(caplog):
    choice = LoadChoice(speed(8192))
    with caplog.at_level(logging.INFO, logger="kvrail"):
        chosen = [chosen_alone(choice, 2.0) for _ in range(2 * (DECLINES + 1))]
    assert chosen == [*[0] * DECLINES, 32] * 2
    assert choice.declined_prompts == 2 * DECLINES
    assert len(caplog.records) == 7, "at 1, 2, 4, ... 64"
    assert "prefer=throughput" in caplog.text


@pytest.mark.parametrize(
    ("load_s", "declines"), [(1.25, 8), (1.03125, 1), (3.0, 64), (1000.0, 128)]
)
def test_what_costs_little_is_tried_soon(load_s, declines):
    """An estimate that is wrong by a little would stay so: nothing is read that corrects it."""
    choice = LoadChoice(speed(8192))
    chosen = [chosen_alone(choice, load_s) for _ in range(declines + 1)]
    assert chosen == [*[0] * declines, 32]


def test_a_try_costs_a_part_of_the_prompts_own_computing(caplog):
    """Seven prompts whose loads are ahead would be computed in seven seconds, this one in one."""
    choice = LoadChoice(speed(8192))
    chosen = []
    with caplog.at_level(logging.INFO, logger="kvrail"):
        for _ in range(2 * DECLINES + 1):
            choice.step()
            chosen.append(choice.blocks(dataclasses.replace(front(32, 10.0), spared_s=7.0)))
    assert chosen == [*[0] * (2 * DECLINES), 32]
    assert "32 of 32 blocks are computed, in 1000 ms" in caplog.text


@pytest.mark.parametrize("prefer", ["Latency", "", None, 1])
def test_a_preference_that_is_not_known_is_refused(prefer):
    with pytest.raises(ValueError, match="prefer is .*'latency', 'throughput'"):
        LoadChoice(Speed(), prefer)


@pytest.mark.parametrize("rate", [0, -1.0, float("nan")])
def test_a_speed_that_is_none_is_refused(rate):
    with pytest.raises(ValueError, match=r"prefill_tokens_per_second is .*above 0"):
        LoadChoice(Speed(), "latency", rate)
