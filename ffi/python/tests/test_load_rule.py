"""No mix of prompts that are loaded and computed is slower than loading all or nothing: a quick
form of `bench/engines/load_rule.py`."""

import statistics
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "engines"))

from load_rule import Clock, Drive, Engine, Point, Request, figures, made_up

MOST = 1.1
RATIOS = (0.3, 0.7, 1.0, 1.2, 1.5, 2.0, 3.0)


@pytest.mark.parametrize("users", [1, 4, 16, 32])
@pytest.mark.parametrize("context", [2_048, 16_384])
@pytest.mark.parametrize("new", [0.0, 0.5])
def test_users_that_come_at_once(context, users, new):
    points = [Point(ratio, users, context=context, new=new, requests=64) for ratio in RATIOS]
    means = {point.ratio: figures(point.times())[0] for point in points}
    assert max(means.values()) < MOST, means


@pytest.mark.parametrize("context", [2_048, 16_384])
@pytest.mark.parametrize("new", [0.0, 0.5])
def test_users_that_come_each_for_itself(context, new):
    points = [Point(ratio, 1, "alone", context, new=new, requests=64) for ratio in RATIOS]
    means = {point.ratio: figures(point.times())[0] for point in points}
    assert max(means.values()) < MOST, means


@pytest.mark.parametrize("error", [0.75, 1.3])
def test_a_drive_that_is_slower_or_faster_than_it_was(error):
    points = [Point(ratio, 4, error=error, requests=64) for ratio in RATIOS]
    means = {point.ratio: figures(point.times())[0] for point in points}
    assert max(means.values()) < MOST, means


def test_the_simulated_engine_computes_and_loads_as_it_should():
    """One prompt of each arm, by hand: else all ratios might be of nothing."""
    times = Point(0.5, 1, context=8_192, requests=2).times()
    computes_s = 2.5e-5 * 8_704 + 8e-10 * 8_704**2 / 2
    assert times["computed"][0] == pytest.approx(computes_s, rel=0.05)
    loads_s = 0.5 * (2.5e-5 * 8_192 + 8e-10 * 8_192**2 / 2)
    rest_s = 2.5e-5 * 512 + 8e-10 * (8_704**2 - 8_192**2) / 2
    assert times["loaded"][0] == pytest.approx(loads_s + rest_s, rel=0.1)
    assert statistics.mean(times["latency"]) < 1.01 * statistics.mean(times["loaded"])


def test_requests_of_the_same_step_are_loaded_one_after_the_other():
    clock = Clock()
    drive = Drive(clock, each_s=0.01, error=1.0)
    engine = Engine(clock, drive, "loaded")
    requests = [Request(f"{at}", clock.now, 2_560, 2_048) for at in range(4)]
    with made_up(clock, drive):
        times = engine.run(requests)
    assert times == sorted(times) and times[3] == pytest.approx(4 * 8 * 0.01, rel=0.2)
