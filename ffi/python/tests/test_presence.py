"""Lookups without a request to the sidecar, which may sleep, or be gone."""

import os
import signal
from pathlib import Path

import kvrail
import numpy
import pytest
from host import until

IDENTITY = {"model": "m", "dtype": "fp8"}


@pytest.fixture(scope="module")
def stores():
    with kvrail.serve(store="64MiB", block_mean="16KiB", members=2) as sidecar:
        yield sidecar


@pytest.fixture
def space(stores, request):
    with stores.attach(name="pytest") as client:
        space = client.store("kv").namespace(request.node.name[:64], IDENTITY)
        until("its drives are read", lambda: space.probe(b"never") is False)
        yield space


@pytest.fixture
def stopped(stores):
    """The sidecar does not run while a test does."""
    stop = Stop(stores.pid)
    yield stop
    os.kill(stores.pid, signal.SIGCONT)


class Stop:
    def __init__(self, pid):
        self._pid = pid

    def __call__(self):
        os.kill(self._pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{self._pid}/task")
        stands = lambda: all(") T" in (it / "stat").read_text() for it in tasks.iterdir())
        until("it stands still", stands)


def test_what_is_there_and_what_is_not(space, stopped):
    names = [b"%d" % at for at in range(1000)]
    assert space.put_many(names, [b"x"] * 1000).all_ok
    space.drop(names[600:601])
    stopped()  # nothing below sends it a request
    assert [space.probe(name) for name in names[598:603]] == [True, True, False, True, True]
    assert space.probe(7) is False and space.probe(kvrail.Keys(names[:1])) is True
    assert space.probe(kvrail.uniform(kvrail.Keys(names)[3])) is True
    for keys in (names, kvrail.Keys(names), numpy.array(names)[:600].astype("S3").tolist()):
        assert space.probe_many(keys).prefix == 600
    probed = space.probe_many([*names, b"never"])
    assert len(probed) == 1001 and probed.unknown == 0
    assert probed[-1] is False and probed[0] is True and list(probed).count(True) == 999
    assert probed[599:602] == [True, False, True] and probed[-1:] == [False]
    assert numpy.asarray(probed.there).sum() == 999 and not probed.there[600]
    assert repr(probed) == "<kvrail.Probed: 999 of 1001 are there, 0 are unknown>"
    assert len(space.probe_many([])) == 0 == space.probe_many([]).prefix


def test_what_is_no_key(space):
    for key, words in (("key", "encode"), (-1, "2\\*\\*128"), (kvrail.Keys([1, 2]), "2 Keys")):
        with pytest.raises(kvrail.RequestError, match=words):
            space.probe(key)
    with pytest.raises(kvrail.RequestError, match="one key"):
        space.probe_many(b"key")


def test_probes_are_unknown_after_a_clear_by_another_client(stores, space):
    space.put(b"key", b"x")
    assert space.probe(b"key") is True
    with stores.attach() as other:
        other.store("kv").clear(space.name)
    assert space.probe(b"other") is None
    assert space.probe_many([b"other", b"another"]).unknown == 2
    assert space.get(b"key") is None  # opens it again
    until("its poller has come to it", lambda: space.probe(b"other") is not None)
    assert space.probe(b"other") is False


def test_a_sidecar_that_never_answers_can_be_interrupted(stores, stopped):
    with stores.attach() as client:
        space = client.store("kv").namespace("looked up first", IDENTITY)
        stopped()
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            space.probe(b"key")  # the first one needs the sidecar's tables
        os.kill(stores.pid, signal.SIGCONT)
        until("it is known to be absent", lambda: space.probe(b"key") is False)
    with pytest.raises(kvrail.ClosedError):
        space.probe(b"key")
    with pytest.raises(kvrail.ClosedError):
        space.probe_many([b"key"])


def test_probes_are_unknown_without_a_sidecar():
    with kvrail.serve(store="16MiB") as sidecar, sidecar.attach() as client:
        space = client.store("kv").namespace("gone", IDENTITY)
        space.put(b"key", b"x")
        assert space.probe(b"key") is True
        sidecar.kill()
        until("nothing is known", lambda: space.probe(b"key") is None)
        assert space.probe_many([b"key"]).unknown == 1
