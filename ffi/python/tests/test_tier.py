"""The shared part of adapters: memory of an engine, groups, and a sidecar that is killed and comes
back."""

import mmap
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kvrail
import numpy
import pytest
from host import Busy, Host, until
from kvrail import _lane, _mapping, _tier
from kvrail._chains import ASKED, LookedUp, Places
from kvrail._lane import Blocks, Ended, Lane
from kvrail._relay import Relay
from kvrail._tier import Link

BLOCK = 64 << 10
IDENTITY = {"model_name": "org/model", "dtype": "bfloat16", "layers": ["layer"] * 100}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    host.start()
    yield host
    host.kill()


@pytest.fixture
def rows() -> Iterator[numpy.ndarray]:
    """Memory of an engine: a file below /dev/shm that is mapped, and whose descriptor is closed."""
    name = f"/dev/shm/kvrail-test-{os.getpid()}"
    with open(name, "x+b") as file:
        os.posix_fallocate(file.fileno(), 0, 64 * BLOCK)
        memory = mmap.mmap(file.fileno(), 64 * BLOCK)
    try:
        yield numpy.frombuffer(memory, numpy.uint8).reshape(64, BLOCK)
    finally:
        os.unlink(name)


def link(host: Host, **more: Any) -> Link:
    return Link("test", **{"socket": str(host.socket), "store": "kv", "identity": IDENTITY} | more)


def blocks(rows: numpy.ndarray, numbers: range, first: int = 0) -> Blocks:
    keys = [number.to_bytes(36, "big") for number in numbers]
    addresses = [rows.ctypes.data + (first + at) * rows.strides[0] for at in range(len(keys))]
    return Blocks(keys, addresses, [rows.shape[1]] * len(keys), metadata=keys)


def end_of(lane: Lane[Any]) -> Ended[Any]:
    deadline = time.monotonic() + 30
    while not (ended := lane.poll()):
        assert time.monotonic() < deadline, "never"
        lane.wait(0.1)
    (only,) = ended
    return only


def with_stored(host: Host, rows: numpy.ndarray) -> tuple[Link, Lane[Any]]:
    """A lane, and a store that has the first eight rows."""
    tie = link(host)
    lane = Lane[Any](tie)
    lane.begin("put", "down", blocks(rows, range(8)))
    assert all(end_of(lane).ok)
    return tie, lane


def fill(rows: numpy.ndarray) -> None:
    rows[:] = numpy.random.default_rng(1).integers(0, 256, rows.shape, dtype=numpy.uint8)


def test_blocks_of_a_shared_file_are_moved_without_a_copy(host, rows):
    fill(rows)
    wanted = rows[:16].copy()
    tie = link(host)
    lane = tie.lane()
    lane.begin("put", "down", blocks(rows, range(16)))
    down = end_of(lane)
    assert (down.tag, set(down.words), all(down.ok)) == ("down", {"OK"}, True)
    rows[:] = 0
    found = tie.lookup(blocks(rows, range(20)).keys)
    assert list(found) == [True] * 16 + [False] * 4
    lane.begin("get", "up", blocks(rows, range(20), first=30))
    up = end_of(lane)
    assert list(up.ok) == [True] * 16 + [False] * 4 and up.went_well
    assert (rows[30:46] == wanted).all() and not rows[46:].any()
    assert tie.status()["copied_bytes"] == 0 and tie.status()["copies"] is None
    tie.close()


def test_a_block_that_is_put_again_is_what_was_put_last(host, rows):
    """Of other bytes, and of another length: whatever adapter puts it."""
    tie = link(host)
    lane = Lane(tie)
    for turn, length in enumerate((BLOCK, BLOCK, 1000, BLOCK // 2)):
        rows[:8] = numpy.random.default_rng(turn).integers(0, 256, (8, BLOCK), dtype=numpy.uint8)
        put = blocks(rows[:, :length], range(8))
        lane.begin("put", "down", put)
        down = end_of(lane)
        before = [(BLOCK, BLOCK, 1000)[turn - 1]] * 8 if turn else [0] * 8
        assert (set(down.words), list(down.replaced)) == ({"OK"}, before)
        lane.begin("get", "up", blocks(rows[:, :length], range(8), first=30))
        assert all(end_of(lane).ok) and (rows[30:38, :length] == rows[:8, :length]).all()
    lane.begin("put", "same", put)
    assert set(end_of(lane).words) == {"PRESENT"}
    tie.close()


def test_new_chains_of_a_busy_store_are_declined_and_settled(tmp_path, rows):
    host = Host(tmp_path, "48MiB", block_mean="64KiB")
    host.start()
    busy, tie = Busy(host), link(host)
    lane = Lane(tie)
    for chain in range(100):
        put = blocks(rows, range(32 * chain, 32 * chain + 32))
        places = Places(["begins"] * 32, range(32))
        lane.begin("put", chain, replace(put, places=places))
        end = end_of(lane)
        assert end.went_well and end.was_settled and set(end.words) <= {"OK", "DECLINED"}
        if end.declines == {"colder": 32}:
            break
        busy.read()
    else:
        raise AssertionError("new chains are always taken")
    lane.begin("put", "more", blocks(rows, range(9000, 9032)))
    end = end_of(lane)
    assert set(end.words) == {"OK"}, "without a word they are taken"
    tie.close()
    host.kill()


def test_a_chain_is_known_by_what_is_there_of_its_front(host, rows):
    tie = link(host)
    lane, keys = Lane(tie), blocks(rows, range(9)).keys
    told = []
    until("the store has recovered", lambda: tie.chain(keys) != "extends")
    for at in range(9):
        told.append(tie.chain(keys))
        lane.begin("put", at, blocks(rows, range(at, at + 1)))
        assert all(end_of(lane).ok)
    assert told == ["begins"] * 5 + ["extends"] * 4
    tie.call(lambda space: space.drop(keys[:1]), None)
    assert tie.chain(keys) == "begins", "what is behind a hole is not there"
    assert tie.chain([]) == "extends"
    host.kill()
    assert tie.chain(keys) == "extends", "the chain is unknown"
    tie.close()


def test_what_was_looked_up_last_is_remembered():
    asked, seen = LookedUp[int](), []
    asked.note([1, 2, 3])
    asked.note([1, 2, 4])

    def word(chain):
        seen.append(list(chain))
        return "begins" if chain else "extends"

    places = asked.places([4, 3, 2, 9], word)
    assert list(places.chains) == ["begins"] * 3 + ["extends"]
    assert list(places.depths) == [2, 2, 1, 0]
    assert sorted(seen) == [[], [1, 2, 3], [1, 2, 4]], "each is looked up once"
    asked.note(range(10, 10 + ASKED - 1))
    assert list(asked.places([4, 2, 10], word).depths) == [2, 0, 0], "the oldest are forgotten"
    assert list(asked.places([2], word).chains) == ["extends"]


def test_a_touch_blocks_no_call_and_one_is_in_flight(host, rows):
    tie = link(host)
    lane, keys = Lane(tie), blocks(rows, range(8)).keys
    assert lane.touch(keys), "which opens its queue"
    while lane._touch is not None:
        lane.poll()
    host.freeze()
    try:
        assert [lane.touch(keys), lane.touch(keys)] == [True, False]
        assert lane.poll() == [] and lane.pending == 0
    finally:
        host.thaw()
    until("the touch has ended", lambda: lane.touch(keys))
    host.kill()
    while tie.session is not None:
        lane.touch(keys)
    assert not lane.touch(keys) and lane.poll() == []
    tie.close()


def test_other_memory_is_copied_and_logged(host, caplog):
    tie, rows = link(host), numpy.zeros((8, BLOCK), numpy.uint8)
    fill(rows)
    wanted, lane = rows.copy(), Lane(tie)
    lane.begin("put", 1, blocks(rows, range(8)))
    assert all(end_of(lane).ok)
    rows[:] = 0
    lane.begin("get", 2, blocks(rows, range(8)))
    assert all(end_of(lane).ok) and (rows == wanted).all()
    assert tie.status()["copied_bytes"] == 2 * rows.nbytes
    assert tie.status()["copies"] == "the engine's memory is no shared file"
    assert [it.message for it in caplog.records if "copies each block once" in it.message]
    tie.close()


def test_a_file_whose_pages_wait_for_their_use_is_taken_without_a_copy(host):
    """As LMCache's server leaves its L1: its content stays, the rest is reserved."""
    fd = os.memfd_create("sparse")
    os.ftruncate(fd, 64 * BLOCK)
    rows = numpy.frombuffer(mmap.mmap(fd, 64 * BLOCK), numpy.uint8).reshape(64, BLOCK)
    fill(rows[:2])
    wanted, tie = rows[:2].copy(), link(host)
    lane = Lane(tie)
    lane.begin("put", 1, blocks(rows, range(2)))
    assert all(end_of(lane).ok)
    lane.begin("get", 2, blocks(rows, range(2), first=60))
    assert all(end_of(lane).ok) and (rows[60:62] == wanted).all() and (rows[:2] == wanted).all()
    assert tie.status()["copied_bytes"] == 0 and not rows[2:60].any()
    tie.close()
    os.close(fd)


def test_a_sidecar_that_refuses_the_file_gets_copies(tmp_path, rows):
    host = Host(tmp_path, unsealed="refuse")
    host.start()
    fill(rows)
    tie = link(host)
    lane = Lane(tie)
    lane.begin("put", 1, blocks(rows, range(4)))
    assert all(end_of(lane).ok)
    assert "unsealed" in tie.status()["copies"]
    tie.close()
    host.kill()


def test_a_block_of_another_length_is_a_miss(host, rows):
    tie = link(host)
    lane = Lane(tie)
    lane.begin("put", 1, Blocks([b"a", b"b"], [rows.ctypes.data] * 2, [BLOCK, BLOCK // 2]))
    assert all(end_of(lane).ok)
    lane.begin("get", 2, blocks_named(rows, [b"a", b"b"], BLOCK))
    assert list(end_of(lane).ok) == [True, False]
    lane.begin("get", 3, blocks_named(rows, [b"a", b"b"], BLOCK // 2))
    assert list(end_of(lane).ok) == [False, True]
    tie.close()


def blocks_named(rows: numpy.ndarray, keys: list[bytes], length: int) -> Blocks:
    places = [rows.ctypes.data + at * BLOCK for at in range(len(keys))]
    return Blocks(keys, places, [length] * len(keys))


def test_another_identity_finds_nothing_also_under_the_same_name(host, rows):
    one, other = link(host), link(host, identity=IDENTITY | {"dtype": "float16"})
    lane = Lane(one)
    lane.begin("put", 1, blocks(rows, range(1)))
    assert all(end_of(lane).ok)
    assert list(one.lookup(blocks(rows, range(1)).keys)) == [True]
    assert list(other.lookup(blocks(rows, range(1)).keys)) == [False]
    named = link(host, namespace="mine")
    apart = link(host, namespace="mine", identity=IDENTITY | {"dtype": "float16"})
    lane = Lane(named)
    lane.begin("put", 1, blocks(rows, range(1)))
    assert all(end_of(lane).ok)
    assert list(named.lookup(blocks(rows, range(1)).keys)) == [True]
    assert list(apart.lookup(blocks(rows, range(1)).keys)) == [False]
    for each in (one, other, named, apart):
        each.close()


def test_two_of_one_identity_share_blocks_and_the_feed(host, rows):
    one, other, stranger = link(host), link(host), link(host, identity={"model_name": "other"})
    lane, keys = Lane(one), blocks(rows, range(4)).keys
    lane.begin("put", 1, blocks(rows, range(4)))
    assert all(end_of(lane).ok)
    assert list(other.lookup(keys)) == [True] * 4 and list(stranger.lookup(keys)) == [False] * 4
    told: list[set[bytes]] = [set(), set(), set()]
    for first in range(64, 6400, 64):  # more than fits
        lane.begin("put", first, blocks(rows, range(first, first + 64)))
        assert end_of(lane).went_well
    deadline = time.monotonic() + 10
    while not told[0] or told[0] != told[1]:
        assert time.monotonic() < deadline, [len(it) for it in told]
        time.sleep(1.1 * _tier.FEED_S)
        for heard, it in zip(told, (one, other, stranger), strict=True):
            heard |= {gone.metadata for gone in it.gone()}
    assert told[0].issuperset(keys) and not told[2]
    assert not any(other.lookup(keys))
    for it in (one, other, stranger):
        it.close()


def test_a_sidecar_that_hangs_blocks_no_engine(host, rows):
    tie, keys = link(host), blocks(rows, range(4)).keys
    assert list(tie.lookup(keys)) == [False] * 4 and tie.gone() == []
    host.freeze()
    try:
        time.sleep(1.1 * _tier.FEED_S)
        begun = time.monotonic()
        assert tie.gone() == []
        assert time.monotonic() - begun < 0.5
        # One request waits, and then none until the sidecar is back.
        begun = time.monotonic()
        for _ in range(1000):
            assert list(tie.lookup(keys)) == [False] * 4 and tie.gone() == []
        assert time.monotonic() - begun < 3 * _tier.LOOKUP_S
    finally:
        host.thaw()
    lane = Lane(tie)
    lane.begin("put", 1, blocks(rows, range(4)))
    assert all(end_of(lane).ok)
    until("it is tried again", lambda: list(tie.lookup(keys)) == [True] * 4)
    tie.close()


def test_errors_of_the_configuration_are_raised_at_once(host, tmp_path):
    with pytest.raises(kvrail.NoSidecarError):
        link(host, socket=str(tmp_path / "nowhere"))
    with pytest.raises(kvrail.UnknownVolumeError, match="kv"):
        link(host, store="other")


def test_a_sidecar_that_is_killed_costs_blocks_and_nothing_else(host, rows, monkeypatch):
    """The engine goes on while there is none, and has its blocks again when it is back."""
    monkeypatch.setattr(_tier, "RETRY_S", 0.05)
    monkeypatch.setattr(_lane, "QUARANTINE_S", 0.3)
    fill(rows)
    wanted, tie = rows[:8].copy(), link(host)
    lane = Lane(tie)
    lane.begin("put", 1, blocks(rows, range(8)))
    assert all(end_of(lane).ok)
    host.write_records()
    lane.begin("get", "cut", blocks(rows, range(8), first=16))
    host.kill()
    cut = end_of(lane)
    assert cut.tag == "cut"
    assert all((rows[16 + at] == wanted[at]).all() for at in range(8) if cut.ok[at])
    begun = time.monotonic()
    assert list(tie.lookup(blocks(rows, range(8)).keys)) == [False] * 8
    lane.begin("put", "lost", blocks(rows, range(8, 16)))
    assert end_of(lane).words == [] and not tie.status()["is_healthy"]
    assert time.monotonic() - begun < 1
    host.start()
    until("it is attached again", lambda: all(tie.lookup(blocks(rows, range(8)).keys)))
    assert tie.session.memory.addresses, "the engine's memory is imported before its first block"
    rows[:] = 0
    lane.begin("get", "again", blocks(rows, range(8)))
    assert all(end_of(lane).ok) and (rows[:8] == wanted).all()
    assert tie.status()["is_healthy"] and tie.status()["copied_bytes"] == 0
    tie.close()


def test_a_session_that_has_ended_is_made_again_at_once(host, rows, monkeypatch):
    """A worker learns from its next load that its sidecar has ended, long after the new one is
    there."""
    tie, keys = link(host), blocks(rows, range(1)).keys
    monkeypatch.setattr(_tier, "RETRY_S", 3600.0)
    host.kill()
    host.start()
    assert list(tie.lookup(keys)) == [False]
    until("it is attached again", lambda: tie.status()["is_healthy"])
    tie.close()


@pytest.fixture
def cut(host, monkeypatch) -> Link:
    """A link whose sidecar was started again, and answers nothing until it is thawed."""
    monkeypatch.setattr(_tier, "RETRY_S", 0.0)
    tie = link(host)
    host.kill()
    host.start()
    host.freeze()
    return tie


def test_no_request_waits_while_a_session_is_made_again(host, rows, cut):
    keys = blocks(rows, range(4)).keys
    try:
        begun = time.monotonic()
        for _ in range(100):
            assert list(cut.lookup(keys)) == [False] * 4
            time.sleep(0.002)
        assert time.monotonic() - begun < 2
    finally:
        host.thaw()
    until("it is attached again", lambda: cut.status()["is_healthy"])
    cut.close()


def test_a_link_that_is_closed_while_it_attaches_stays_closed(host, rows, cut, monkeypatch):
    keys = blocks(rows, range(4)).keys
    until("a thread attaches", lambda: not any(cut.lookup(keys)) and cut._attaching)
    monkeypatch.setattr(_tier, "CLOSE_S", 0.1)
    cut.close()
    host.thaw()
    until("it has ended", lambda: cut._attaching is None)
    assert cut.session is None and cut._attaching is None


def test_a_thread_of_before_a_fork_is_not_waited_for(host, rows, cut):
    keys = blocks(rows, range(4)).keys
    host.thaw()
    parents = threading.Thread(target=str)
    parents.start()
    parents.join()
    cut._attaching = parents
    assert list(cut.lookup(keys)) == [False] * 4
    until("it is attached again", lambda: cut.status()["is_healthy"])
    cut.close()


def test_a_forked_child_attaches_itself_whatever_locks_were_held(host, rows):
    """Threads that hold locks are not in the child, where nothing would release these."""
    keys = blocks(rows, range(4)).keys
    tie = link(host)
    lane = tie.lane()
    lane.begin("put", "down", blocks(rows, range(4)))
    assert all(end_of(lane).ok)
    locks = (tie._lock, tie.session.memory._lock, tie._warnings._lock)
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with locks[0], locks[1], locks[2]:
            held.set()
            over.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(30)
    if (child := os.fork()) == 0:
        signal.alarm(30)
        try:
            lane.begin("get", "cut", blocks(rows, range(4)))
            assert not any(end_of(lane).ok)
            until("it is attached again", lambda: all(tie.lookup(keys)))
            lane.begin("get", "up", blocks(rows, range(4)))
            os._exit(0 if all(end_of(lane).ok) else 1)
        finally:
            os._exit(1)
    ended = os.waitpid(child, 0)[1]
    over.set()
    holder.join()
    assert ended == 0 and all(tie.lookup(keys)), "the session of the parent goes on"
    tie.close()


def test_no_thread_to_be_had_costs_a_try_and_nothing_else(host, rows, cut, monkeypatch, caplog):
    keys = blocks(rows, range(4)).keys
    host.thaw()

    def none(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(_tier.threading.Thread, "start", none)
        for _ in range(10):
            assert list(cut.lookup(keys)) == [False] * 4
        assert "can't start new thread" in caplog.text
    until("it is attached again", lambda: cut.status()["is_healthy"])
    cut.close()


def test_memory_that_was_being_filled_is_kept_for_a_while(host, rows, monkeypatch):
    monkeypatch.setattr(_lane, "QUARANTINE_S", 0.5)
    tie, lane = with_stored(host, rows)
    lane.begin("get", "up", blocks(rows, range(8)))
    lane.begin("put", "more", blocks(rows, range(8, 16), first=8))
    begun = time.monotonic()
    tie.close()
    assert [end.tag for end in lane.poll()] == ["more"] and lane.busy == 1
    assert end_of(lane).tag == "up" and time.monotonic() - begun >= 0.5


@pytest.mark.parametrize("frozen", [False, True])
def test_memory_is_given_back_once_no_drive_writes_it(host, rows, frozen):
    """A pipe shows when a killed sidecar's rings have ended."""
    fill(rows)
    tie, lane = with_stored(host, rows)
    host.write_records()
    if frozen:
        host.freeze()
    lane.begin("get", "up", blocks(rows, range(8), first=16))
    host.kill()
    begun = time.monotonic()
    end = end_of(lane)
    assert end.tag == "up" and lane.busy == 0
    assert time.monotonic() - begun < _lane.QUARANTINE_S / 2
    there = rows.copy()
    time.sleep(0.2)
    assert (rows == there).all()
    tie.close()


def test_who_waits_until_no_memory_is_busy_need_not_poll(host, rows):
    """As vLLM drains a tier."""
    tie, lane = with_stored(host, rows)
    host.freeze()
    lane.begin("get", "up", blocks(rows, range(8), first=16))
    host.kill()
    begun = time.monotonic()
    while lane.busy:
        assert time.monotonic() - begun < _lane.QUARANTINE_S / 2, "its memory stays busy"
        lane.wait(0.1)
    assert lane.pending == 1 and [end.tag for end in lane.poll()] == ["up"]
    tie.close()


def silent(transfers: _lane.Transfers, within: float = 0.0) -> bool:
    """As if a drive did not answer."""
    time.sleep(within)
    return False


def test_memory_is_kept_for_as_long_as_a_drive_does_not_answer(host, rows, monkeypatch, caplog):
    """A drive may answer after a minute, and writes then: no time is long enough."""
    monkeypatch.setattr(_lane, "QUARANTINE_S", 0.2)
    tie, lane = with_stored(host, rows)
    host.write_records()
    host.freeze()
    lane.begin("get", "up", blocks(rows, range(8), first=16))
    with monkeypatch.context() as patch:
        patch.setattr(_lane.Transfers, "have_ended", silent)
        host.kill()
        until("the end is noticed", lambda: not lane.poll() and lane.busy and not lane.flying)
        host.start()
        until("it is attached again", lambda: not lane.poll() and tie.session is not None)
        lane.begin("get", "more", blocks(rows, range(8), first=24))
        assert end_of(lane).tag == "more", "another run's gets do not wait for it"
        begun = time.monotonic()
        while time.monotonic() - begun < 5 * _lane.QUARANTINE_S:
            assert lane.poll() == [] and lane.busy == 1
            lane.wait(0.1)
        assert lane.late() == ["up"] and "its drives may still write" in caplog.text
        when = lane.wake_at()
        assert when is not None and when > time.monotonic() + _lane.LOOK_LATER_S / 2
    assert end_of(lane).tag == "up" and lane.busy == 0
    tie.close()


def test_memory_of_a_sidecar_that_lives_is_kept_for_a_while(host, rows, monkeypatch):
    """A session can end without its sidecar; then nothing shows when its transfers have ended."""
    monkeypatch.setattr(_lane, "QUARANTINE_S", 0.5)
    tie, lane = with_stored(host, rows)
    session = tie.session
    assert session is not None

    def ends(*_: object, **__: object) -> list[Any]:
        raise kvrail.SessionEndedError("cut")

    monkeypatch.setattr(lane, "_queue", SimpleNamespace(poll=ends, wait=ends))
    lane._flying[7] = _lane._Group("up", "get", blocks(rows, range(8)))
    begun = time.monotonic()
    assert lane.poll() == [] and lane.busy == 1
    assert end_of(lane).tag == "up" and time.monotonic() - begun >= 0.5
    assert tie.session is not session
    tie.close()


def test_memory_of_a_queue_that_is_not_believed_is_kept_for_a_while(host, rows, monkeypatch):
    monkeypatch.setattr(_lane, "QUARANTINE_S", 0.3)
    tie, lane = with_stored(host, rows)

    class Wrong(list[str]):
        ok, lengths, replaced, declines = [False] * 8, [0] * 8, [0] * 8, dict[str, int]()

    end = SimpleNamespace(ticket=7, results=Wrong(["INTERNAL"] * 8))
    monkeypatch.setattr(lane, "_queue", SimpleNamespace(poll=lambda: [end]))
    lane._flying[7] = _lane._Group("up", "get", blocks(rows, range(8)))
    begun = time.monotonic()
    assert lane.poll() == [] and lane.busy == 1
    assert end_of(lane).tag == "up" and time.monotonic() - begun >= 0.3
    tie.close()


def test_a_descriptor_that_someone_else_closed_shows_no_end(host):
    tie = link(host)
    session = tie.session
    assert session is not None and session.transfers.are_seen
    assert not session.transfers.have_ended()
    pipe, session.transfers._pipe = session.transfers._pipe, os.memfd_create("in its place")
    os.close(session.transfers._pipe)
    begun = time.monotonic()
    assert not session.transfers.have_ended(0.1) and time.monotonic() - begun >= 0.1
    session.transfers._pipe = pipe
    tie.close()


def test_memory_that_drives_do_not_see_is_given_back_at_once(host):
    """Its blocks are copied from an arena of the client's, which ends with its session."""
    own = numpy.zeros((8, BLOCK), numpy.uint8)
    tie = link(host)
    lane = Lane(tie)
    lane.begin("put", "down", blocks(own, range(8)))
    assert all(end_of(lane).ok) and tie.status()["copies"]
    host.freeze()
    lane.begin("get", "up", blocks(own, range(8)))
    host.kill()
    begun = time.monotonic()
    end = end_of(lane)
    assert end.tag == "up" and not any(end.ok) and lane.busy == 0
    assert time.monotonic() - begun < _lane.QUARANTINE_S / 2
    tie.close()


def test_a_get_is_late_when_the_sidecar_is_stopped_or_gone(host, rows, monkeypatch):
    tie, lane = with_stored(host, rows)
    assert tie.silent_s() < _lane.STALL_S / 2
    host.freeze()
    lane.begin("get", "up", blocks(rows, range(8)))
    assert lane.late() == []
    begun = time.monotonic()
    until("it is given up", lambda: lane.poll() or lane.late() == ["up"])
    assert time.monotonic() - begun < 1.0 and lane.busy == 1
    host.thaw()
    assert all(end_of(lane).ok), "it was slow"
    until("the sidecar answers", lambda: tie.silent_s() < _lane.STALL_S / 2)
    monkeypatch.setattr(_lane.Transfers, "have_ended", silent)
    host.freeze()
    lane.begin("get", "cut", blocks(rows, range(8)))
    host.kill()
    until("it is given up", lambda: lane.poll() or lane.late() == ["cut"])
    until("the end is noticed", lambda: not lane.poll() and not lane.flying)
    assert lane.busy == 1 and lane.late() == ["cut"], "its memory is kept"
    tie.close()


def test_asking_whether_the_sidecar_answers_counts_as_no_lookup(host, rows):
    tie = link(host)
    before = host.counts()["lookup_misses"]
    for _ in range(5):
        tie.silent_s()
        until("it answers", lambda: tie._pulse_at is None or not tie.silent_s())
        time.sleep(1.5 * _tier.PULSE_EACH_S)
    assert host.counts()["lookup_misses"] == before
    tie.close()


def test_a_get_of_a_drive_that_takes_much_longer_than_it_should_is_late(host, rows, monkeypatch):
    tie, lane = with_stored(host, rows)
    monkeypatch.setattr(lane, "_take", lambda seconds: None)
    lane.begin("get", "up", blocks(rows, range(8)))
    time.sleep(2 * _lane.STALL_S)
    monkeypatch.setattr(tie, "silent_s", lambda: 0.0)
    assert lane.late() == [] == lane.late(lambda tag: 10.0)
    assert lane.late(lambda tag: 0.001) == ["up"]
    monkeypatch.undo()
    assert all(end_of(lane).ok)
    tie.close()


def test_nothing_is_begun_while_a_drive_hangs(host, rows, monkeypatch):
    tie = link(host)
    other = Lane(tie)
    other.begin("put", 0, blocks(rows, range(1)))
    assert all(end_of(other).ok)
    monkeypatch.setattr(Lane, "age", lambda _lane: _tier.HUNG_S + 1)
    Lane(tie)
    assert list(tie.lookup(blocks(rows, range(1)).keys)) == [False]
    other.begin("put", 1, blocks(rows, range(1, 2)))
    assert end_of(other).words == [] and tie.status()["drive_hangs"]
    tie.close()


def test_a_mapping_is_found_by_an_address_within_it(rows):
    address = rows.ctypes.data
    found = _mapping.find(address + 5 * BLOCK)
    assert found is not None and found.shared and found.first <= address
    fd = found.open()
    assert fd is not None and os.fstat(fd).st_ino == found.inode
    os.close(fd)
    anonymous = numpy.zeros(1 << 20, numpy.uint8)
    found = _mapping.find(anonymous.ctypes.data)
    assert found is not None and not found.shared
    assert _mapping.find(8) is None


def test_a_relay_rings_when_an_epoll_set_becomes_readable():
    relay, inner, epoll = Relay(), os.eventfd(0, os.EFD_NONBLOCK), select.epoll()
    epoll.register(inner, select.EPOLLIN)
    outer = select.poll()
    outer.register(relay.fileno(), select.POLLIN)
    for _ in range(200):  # more often than there are slots
        relay.watch(epoll.fileno())
        relay.watch(epoll.fileno())
        assert not outer.poll(0)
        os.eventfd_write(inner, 1)
        assert outer.poll(1000) and os.eventfd_read(relay.fileno()) == 1
        os.eventfd_read(inner)
    begun = time.monotonic()
    relay.ring_at(begun + 0.1)
    assert outer.poll(1000) and time.monotonic() - begun >= 0.1
    relay.close()
    relay.close()
    os.close(inner)
