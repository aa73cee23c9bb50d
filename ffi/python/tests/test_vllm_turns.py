"""Whose chunks come into vLLM's primary tier, and how many rows they need."""

import time
from typing import Any

from kvrail._vllm_needs import Needs
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


def test_a_turn_is_over_when_the_gpu_computes_its_request_or_it_has_ended():
    turns = Turns(4)
    for leave in (lambda: turns.step(["a"]), lambda: turns.leave("a")):
        turns.ask("a", 4)
        turns.begin("a")
        time.sleep(0.05)
        turns.step()
        turns.end("a"), leave(), turns.step()
        assert asked(turns, ("b", 4)) == [True], "at once, however long its loads took"
        turns.step()


def test_a_request_that_ends_amid_its_loads_has_its_rows_until_those_end():
    turns = Turns(4)
    turns.ask("a", 4)
    turns.begin("a"), turns.leave("a"), turns.step()
    assert asked(turns, ("b", 4)) == [False]
    turns.step()
    turns.end("a")
    assert asked(turns, ("b", 4)) == [True]


def test_a_request_that_lacks_chunks_again_keeps_its_turn():
    """Else two of them push each other out for ever."""
    turns = Turns(4)
    turns.ask("a", 4)
    turns.begin("a"), turns.step(), turns.end("a")
    time.sleep(0.01)
    assert asked(turns, ("a", 2), ("b", 4)) == [True, False]


def test_a_request_waits_again_only_behind_one_that_waits():
    turns = Turns(4)
    assert asked(turns, ("a", 4), ("b", 4), ("c", 1)) == [True, False, False]
    turns.begin("a"), turns.step()
    assert not turns.waits("b"), "the first is looked up: it may have its turn"
    assert asked(turns, ("a", 4), ("b", 4)) == [True, False] and turns.waits("c")
    assert not turns.waits("d"), "a new one is looked up"
    turns.end("a"), turns.step(["a"])
    assert asked(turns, ("b", 3)) == [True]
    assert not turns.waits("c") and asked(turns, ("c", 1)) == [True]


class Request:
    """One of vLLM's, with this number of chunks in each group of layers."""

    def __init__(self, chunks: int, groups: int = 1) -> None:
        self.keys = [
            bytes([at]) * 32 + group.to_bytes(4, "big")
            for group in range(groups)
            for at in range(chunks)
        ]
        places = [16 * (at + 1) for _ in range(groups) for at in range(chunks)]
        self._offload_key_positions = dict(zip(self.keys, places, strict=True))
        self._states: dict[type, Any] = {}

    def get_state(self, kind: type) -> Any:
        return self._states.get(kind)

    def set_state(self, state: Any) -> None:
        self._states[type(state)] = state


def test_only_chunks_before_the_first_that_is_missing_need_rows():
    request = Request(8)
    asked_for = request.keys[2:] + request.keys[:2]
    there = [True, True, False, True, True, True, True, True]
    assert Needs(8, {0: None}).rows(request, asked_for, there) == 2


def test_chunks_behind_the_last_row_do_not_fit_and_those_of_the_gpu_need_none():
    request, needs = Request(12), Needs(4, {0: None})
    assert needs.rows(request, request.keys[9:], [True] * 3) == 3
    assert needs.fits(request, request.keys[11]), "the GPU has the first nine"
    assert needs.rows(request, request.keys[2:], [True] * 10) == 4
    fit = [needs.fits(request, key) for key in request.keys[2:]]
    assert fit == [True] * 4 + [False] * 6
    # Its front has come.
    assert needs.rows(request, request.keys[6:], [True] * 6) == 0
    assert not needs.fits(request, request.keys[6])


def test_a_group_of_layers_with_a_window_needs_rows_for_its_window():
    request, needs = Request(10, groups=3), Needs(20, {0: None, 1: 3, 2: 3})
    assert needs.rows(request, request.keys, [True] * 30) == 16
    assert all(needs.fits(request, key) for key in request.keys)
    assert [needs.has_window(key) for key in request.keys[::10]] == [False, True, True]


def test_of_a_window_the_chunks_before_the_last_one_need_rows_too():
    request, needs = Request(10), Needs(20, {0: 5})
    asked_for = request.keys[9:] + request.keys[:9]
    assert needs.rows(request, asked_for, [False, *[True] * 9]) == 5
