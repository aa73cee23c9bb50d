"""How arms of `bench/model` take turns: it needs neither an engine nor a GPU for that."""

import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import pytest

TURNS = Path(__file__).parents[3] / "bench" / "model" / "turns.py"

ARM = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from turns import take_part

def begin(phase, lengths):
    for turn in range(lengths[0] if name == "a" else 2):
        with open(seen, "a") as file:
            file.write(f"{phase} {name}{turn}\\n")
        if name == "b" and phase == "fails":
            raise ValueError("as it should")
        if name == "b" and phase == "dies":
            os._exit(1)
        if name == "b" and phase == "hangs":
            time.sleep(60)
        yield

name, seen = sys.argv[2:4]
take_part(begin, os.fdopen(int(sys.argv[4]), "w"))
"""


@pytest.fixture
def turns() -> Any:
    spec = importlib.util.spec_from_file_location("bench_turns", TURNS)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def arms(turns: Any, tmp_path: Path) -> Any:
    script = tmp_path / "arm.py"
    script.write_text(ARM)
    words = [sys.executable, str(script), str(TURNS.parent)]
    seen = str(tmp_path / "seen")
    made = [turns.Arm(name, [*words, name, seen], tmp_path / f"{name}.log") for name in "abc"]
    assert all(arm.is_ready(time.monotonic() + 30) for arm in made)
    yield made
    for arm in made:
        arm.end()


def took(turns: Any, arms: Any, tmp_path: Path, phase: str, seconds: float = 30) -> list[str]:
    """The turns of a phase in the order in which they were taken."""
    (tmp_path / "seen").unlink(missing_ok=True)
    turns.take_turns(arms, f"begin {phase} 3", time.monotonic() + seconds)
    return [line.split()[1] for line in (tmp_path / "seen").read_text().splitlines()]


def test_arms_go_on_one_after_the_other(turns, arms, tmp_path):
    assert took(turns, arms, tmp_path, "works") == ["a0", "b0", "c0", "a1", "b1", "c1", "a2"]


def test_what_is_between_turns_comes_before_each_of_them(turns, arms):
    rounds: list[int] = []
    turns.take_turns(arms, "begin works 3", time.monotonic() + 30, lambda: rounds.append(1))
    assert len(rounds) == 4  # the last one finds that nothing is left


def test_a_phase_that_fails_ends_for_its_arm_alone(turns, arms, tmp_path):
    assert took(turns, arms, tmp_path, "fails") == ["a0", "b0", "c0", "a1", "c1", "a2"]
    assert "as it should" in (tmp_path / "b.log").read_text()
    assert "b1" in took(turns, arms, tmp_path, "works")


def test_an_arm_that_dies_is_left_out(turns, arms, tmp_path):
    assert took(turns, arms, tmp_path, "dies") == ["a0", "b0", "c0", "a1", "c1", "a2"]
    assert [arm.alive for arm in arms] == [True, False, True]
    assert took(turns, arms, tmp_path, "works") == ["a0", "c0", "a1", "c1", "a2"]


def test_an_arm_that_is_late_is_ended_and_no_other_begins(turns, arms, tmp_path):
    began = time.monotonic()
    assert took(turns, arms, tmp_path, "hangs", seconds=2) == ["a0", "b0"]
    assert time.monotonic() - began < 20
    assert [arm.alive for arm in arms] == [True, False, True]
