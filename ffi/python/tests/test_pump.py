"""A thread that goes on with an engine's blocks between its calls."""

import os
import threading
import time

import pytest
from kvrail._pump import Pump
from kvrail.paged import Rest


class Work:
    """Slices of work that are counted, and the pauses behind them."""

    def __init__(self, *rests: Rest) -> None:
        self.rests, self.slices, self.more = list(rests), 0, threading.Event()

    def __call__(self) -> Rest:
        self.slices += 1
        self.more.set()
        return self.rests.pop(0) if self.rests else Rest([], None)

    def done(self, slices: int) -> None:
        until = time.monotonic() + 10
        while self.slices < slices:
            assert time.monotonic() < until, f"{self.slices} of {slices} slices"
            self.more.wait(0.1)
            self.more.clear()


@pytest.fixture
def pump():
    made = []

    def make(work) -> Pump:
        made.append(Pump("kvrail under test", work))
        return made[-1]

    yield make
    for it in made:
        it.close()
    assert not [it for it in threading.enumerate() if it.name == "kvrail under test"]


def test_it_goes_on_at_a_ring_an_input_and_a_time_and_else_rests(pump):
    reads, writes = os.pipe()
    work = Work(Rest([reads], None), Rest([], 0.02))
    its = pump(work)
    names = [it.name for it in threading.enumerate()]
    assert work.slices == 0 and "kvrail under test" not in names, "no thread before there is work"
    its.ring()
    work.done(1)
    before = time.process_time()
    time.sleep(0.3)
    assert work.slices == 1
    assert time.process_time() - before < 0.1, "a pause takes no time of a processor"
    os.write(writes, b"x")
    work.done(3)
    seen = work.slices
    its.ring()
    work.done(seen + 1)
    os.close(reads), os.close(writes)


def test_what_a_slice_raises_ends_the_thread_and_is_logged(pump, caplog):
    def breaks() -> Rest:
        raise ZeroDivisionError("a slice")

    its = pump(breaks)
    its.ring()
    its._thread.join(10)
    assert "goes on only in the engine's steps" in caplog.text and "a slice" in caplog.text
    its.ring()
    assert not its._thread.is_alive()


def test_without_a_thread_work_goes_on_in_the_engines_steps(pump, monkeypatch, caplog):
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    work = Work()
    its = pump(work)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        its.ring()
        its.ring()
    assert caplog.text.count("can't start new thread") == 1 and work.slices == 0


def test_a_fork_before_the_first_ring_has_a_bell_of_its_own(pump):
    work = Work()
    its = pump(work)
    child = os.fork()
    if child == 0:
        for seen in range(3):
            its.ring()
            work.done(seen + 1)
        os._exit(0)
    for seen in range(3):
        its.ring()
        work.done(seen + 1)
        time.sleep(0.02)
    assert os.waitpid(child, 0)[1] == 0 and work.slices == 3


def test_a_forked_child_has_a_thread_and_a_bell_of_its_own(pump):
    work = Work()
    its = pump(work)
    its.ring()
    work.done(1)
    time.sleep(0.05)
    seen = work.slices
    child = os.fork()
    if child == 0:
        its.ring()
        work.done(seen + 1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert work.slices == seen
    its.ring()
    work.done(seen + 1)
