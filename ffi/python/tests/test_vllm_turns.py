"""Whose chunks come into vLLM's primary tier."""

import time

from kvrail._vllm_turns import Turns


def asked(turns: Turns, *requests: tuple[str, int]) -> list[bool]:
    """Which of these requests have a turn behind a step that asks for all."""
    for name, rows in requests:
        turns.ask(name, rows)
    return [turns.has(name) for name, _ in requests]


def test_as_many_as_there_are_rows_for_and_none_before_one_that_waits():
    turns = Turns(10)
    assert asked(turns, ("a", 6), ("b", 4), ("c", 3), ("d", 0)) == [True, True, False, False]
    turns.begin("a"), turns.begin("b"), turns.step()
    turns.end("b")
    while turns.has("b"):
        # "d" would fit beside "a", and "c" came first.
        assert asked(turns, ("c", 6), ("d", 1)) == [False, False]
        turns.step()
        time.sleep(0.001)
        turns.ask("other", 10)
    turns.step()
    assert asked(turns, ("c", 4), ("d", 1)) == [True, False]


def test_a_turn_is_over_when_the_gpu_has_its_chunks():
    turns = Turns(4)
    turns.ask("a", 4)
    turns.begin("a")
    time.sleep(0.05)
    turns.end("a"), turns.step()
    assert asked(turns, ("b", 1)) == [False], "the GPU takes them"
    turns.step()
    time.sleep(0.06)
    assert asked(turns, ("b", 1)) == [True]


def test_a_turn_in_which_nothing_is_loaded_is_over_behind_its_step():
    turns = Turns(4)
    assert asked(turns, ("a", 4), ("b", 4)) == [True, False]
    turns.step()
    assert asked(turns, ("b", 4)) == [True]


def test_a_request_that_needs_more_than_all_rows_has_its_turn_alone():
    turns = Turns(4)
    assert asked(turns, ("a", 9), ("b", 1)) == [True, False]
    turns.begin("a"), turns.step()
    assert asked(turns, ("a", 5), ("b", 1)) == [True, False]


def test_others_do_not_wait_for_a_drive_that_does_not_answer():
    turns = Turns(4)
    turns.ask("a", 4)
    turns.begin("a"), turns.step()
    turns.give_up("a")
    turns.end("a")
    assert asked(turns, ("b", 4)) == [True]
