"""N1: NIXL's own agent moves objects and ranges of a volume through the plug-in; bad requests and
sidecars that die end every call, and never with other bytes."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import kvrail
import numpy as np
import pytest
from host import Host
from nixl_agent import SIZE, WHEEL, Agent, attempt, copied, keys_of, nixl, objects

RAW = "16MiB"


@pytest.fixture
def agent(host: Host) -> Agent:
    return Agent("KVRAIL", {"socket": str(host.socket)})


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "private"])
@pytest.mark.parametrize("size", [4096, 65536, 12345])
@pytest.mark.parametrize("backend", ["KVRAIL", "OBJ"])
def test_objects_come_back(host, backend, size, shared):
    ours = {"socket": str(host.socket)}
    theirs = {"bucket": "models", "endpoint_override": str(host.socket), "scheme": "http"}
    agent = Agent(backend, ours if backend == "KVRAIL" else theirs, shared)
    keys, before = keys_of(16), copied()
    assert agent.there(keys) == [False] * 16
    assert agent.write(keys, size) == "DONE"
    assert agent.read(keys, size) == "DONE" and agent.same(16 * size)
    assert agent.there([*keys, "other"]) == [True] * 16 + [False]
    # Drives reach memory that they can map, where its address suits them.
    direct = 0 if not shared else 16 if size % 4096 == 0 else 1
    assert copied() - before == 2 * (16 - direct) * size


def test_ranges_of_a_volume_come_back(host):
    agent = Agent("KVRAIL", {"socket": str(host.socket), "volume": "raw"})
    before = copied()
    ranges = [(i * 2 * SIZE, SIZE, 0, "") for i in range(16)]
    assert agent.move("WRITE", [i * SIZE for i in range(16)], ranges, "BLK") == "DONE"
    at = [agent.half + i * SIZE for i in range(16)]
    assert agent.move("READ", at, ranges, "BLK") == "DONE" and agent.same(16 * SIZE)
    assert copied() == before
    for wrong in ((1, SIZE), (0, 100), (16 << 20, SIZE)):
        for work in ("WRITE", "READ"):
            assert agent.move(work, [0], [(*wrong, 0, "")], "BLK") == "NIXL_ERR_INVALID_PARAM"


def test_private_memory_passes_through_little_staging_memory(host):
    parameters = {"socket": str(host.socket), "staging_bytes": str(2 << 20), "depth": "8"}
    agent = Agent("KVRAIL", parameters, shared=False, half=16 << 20)
    keys = keys_of(64)
    assert agent.write(keys, 256 << 10) == "DONE"
    assert agent.read(keys, 256 << 10) == "DONE" and agent.same(16 << 20)
    assert agent.move("WRITE", [0], objects(["large"], 3 << 20)) == "NIXL_ERR_INVALID_PARAM"


def test_a_look_brings_all_objects_that_have_come(agent):
    keys, state, looks = keys_of(16), "PROC", 0
    assert agent.write(keys) == "DONE"
    at = [agent.half + i * SIZE for i in range(16)]
    begun = agent.begin("READ", at, objects(keys, SIZE), "OBJ")
    while state == "PROC" and looks < 16:
        time.sleep(0.2)  # all of them come meanwhile
        state, looks = agent.nixl.check_xfer_state(begun[0]), looks + 1
    assert agent.end(begun) == state == "DONE" and agent.same(16 * SIZE)
    assert looks < 5


def test_more_than_the_queue_holds(host):
    agent = Agent("KVRAIL", {"socket": str(host.socket), "depth": "16"})
    keys = keys_of(200)
    assert agent.write(keys, 4096) == "DONE"
    assert agent.read(keys, 4096) == "DONE" and agent.same(200 * 4096)
    assert agent.there(keys) == [True] * 200


def test_parts_of_objects_are_read(agent):
    assert agent.write(["one"]) == "DONE"
    parts = [(4096, 8192, 1, "one"), (SIZE - 10, 10, 2, "one"), (0, 100, 3, "one")]
    agent.bytes[agent.half :] = 0
    at = [agent.half, agent.half + 8192, agent.half + 16384]
    assert agent.move("READ", at, parts) == "DONE"
    for start, (first, size, *_) in zip(at, parts, strict=True):
        assert (agent.bytes[start : start + size] == agent.bytes[first : first + size]).all()
    assert agent.read(["one"], 2 * SIZE) == "NIXL_ERR_MISMATCH"
    assert agent.move("READ", [agent.half], [(SIZE, 10, 4, "one")]) == "NIXL_ERR_MISMATCH"
    assert agent.move("WRITE", [0], [(4096, 4096, 5, "two")]) == "NIXL_ERR_INVALID_PARAM"
    assert agent.there(["two"]) == [False]


@pytest.mark.parametrize("backend", ["KVRAIL", "OBJ"])
def test_an_object_that_is_written_again_is_what_was_written_last(host, backend):
    """Engines give a name that is free to the next object (LMCache's nixl_store)."""
    ours, theirs = {"socket": str(host.socket)}, {"endpoint_override": str(host.socket)}
    agent, keys = Agent(backend, ours if backend == "KVRAIL" else theirs), keys_of(16)
    for seed, size in enumerate((SIZE, SIZE, 12345, 4096, SIZE)):
        fresh = np.random.default_rng(seed).integers(0, 256, agent.half, dtype=np.uint8)
        agent.bytes[: agent.half] = fresh
        for _ in range(2):
            assert agent.write(keys, size) == "DONE"
            assert agent.read(keys, size) == "DONE" and agent.same(16 * size)
        larger = agent.read(keys, size + 4096) if size < SIZE else "NIXL_ERR_MISMATCH"
        assert larger == "NIXL_ERR_MISMATCH", "nothing is left of what was longer"


def test_writes_of_one_object_that_are_in_flight_together_end_with_one_of_them(agent):
    at = [[i * SIZE for i in range(8)], [(8 + i) * SIZE for i in range(8)]]
    for _ in range(8):
        begun = [agent.begin("WRITE", it, objects(keys_of(8), SIZE), "OBJ") for it in at]
        assert [agent.end(it) for it in begun] == ["DONE"] * 2
        assert agent.read(keys_of(8)) == "DONE"
        for i in range(8):
            came = agent.bytes[agent.half + i * SIZE :][:SIZE]
            assert any((came == agent.bytes[it[i] :][:SIZE]).all() for it in at)


def test_one_request_that_writes_an_object_twice_is_refused(agent, capfd):
    twice = objects(["one", "two", "one"], SIZE)
    assert agent.move("WRITE", [0, SIZE, 2 * SIZE], twice) == "NIXL_ERR_INVALID_PARAM"
    assert "object one: one request writes it twice" in capfd.readouterr().err
    assert agent.there(["one", "two"]) == [False] * 2
    assert agent.write(["one"]) == "DONE"
    at = [agent.half, agent.half + SIZE]
    assert agent.move("READ", at, objects(["one", "one"], SIZE)) == "DONE"


def test_a_key_that_is_not_there_fails_the_request(agent):
    keys = keys_of(8)
    assert agent.write(keys) == "DONE"
    for asked in (["nothing"], [*keys[:4], "nothing", *keys[4:]]):
        assert agent.read(asked) == "NIXL_ERR_NOT_FOUND"
    assert agent.there([*keys, "nothing"]) == [True] * 8 + [False]


def test_a_store_that_takes_nothing_is_an_error_every_time(tmp_path):
    host = Host(tmp_path, "64MiB", budget="0.001dwpd")
    host.start()
    agent = Agent("KVRAIL", {"socket": str(host.socket)}, half=4 << 20)

    def write(turn: int) -> str:
        return agent.write(keys_of(4, str(turn)), 1 << 20)

    # Everything is taken until the store was full once.
    first = next(turn for turn in range(100) if write(turn) != "DONE")
    assert first > 4
    for turn in range(first + 1, first + 6):
        assert write(turn) == "NIXL_ERR_BACKEND"
        assert not all(agent.there(keys_of(4, str(turn))))
    host.kill()


def test_a_number_is_one_object(agent, capfd):
    agent.nixl.register_memory([(0, SIZE, 1, "one")], "OBJ")
    agent.nixl.register_memory([(0, SIZE, 1, "one")], "OBJ")
    with pytest.raises(Exception, match="NIXL_ERR_BACKEND"):
        agent.nixl.register_memory([(0, SIZE, 1, "two")], "OBJ")
    assert "device number 1 is object one" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"socket": "/nowhere/s"}, "/nowhere/s"),
        ({"store": "kw"}, "store kw"),
        ({"volume": "rax"}, "volume rax"),
        ({"sockte": "x"}, "no parameter 'sockte'"),
        ({"depth": "many"}, "depth is 'many'"),
    ],
)
def test_wrong_parameters_are_named(host, capfd, parameters, words):
    begun = time.monotonic()
    with pytest.raises(Exception, match="NIXL_ERR_BACKEND"):
        Agent("KVRAIL", {"socket": str(host.socket)} | parameters)
    assert time.monotonic() - begun < 5
    assert words in capfd.readouterr().err


def test_a_release_waits_for_what_is_in_flight(host, agent):
    keys = keys_of(16)
    assert agent.write(keys) == "DONE"
    agent.bytes[agent.half :] = 0
    host.freeze()
    at = [agent.half + i * SIZE for i in range(16)]
    handle, _, state = agent.begin("READ", at, objects(keys, SIZE), "OBJ")
    assert state == "PROC"
    # Another process: a release may keep Python's lock.
    later = subprocess.Popen(["sh", "-c", f"sleep 0.7; kill -CONT {host.pid}"])
    begun = time.monotonic()
    agent.nixl.release_xfer_handle(handle)
    assert time.monotonic() - begun > 0.5
    later.wait()
    agent.bytes[agent.half :] = 9
    time.sleep(0.3)
    assert (agent.bytes[agent.half :] == 9).all()


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "private"])
def test_a_sidecar_that_dies_ends_requests_and_is_found_again(host, shared):
    agent = Agent("KVRAIL", {"socket": str(host.socket)}, shared)
    keys, other = keys_of(16), keys_of(16, "other")
    flying = agent.begin_both(host, keys, other)
    assert [state for *_, state in flying] == ["PROC", "PROC"]
    host.kill()
    killed = time.monotonic()
    for begun in flying:
        assert agent.end(begun, 10) == "NIXL_ERR_BACKEND"
    assert time.monotonic() - killed < 2.5, "nothing waits for a time to be over"
    assert agent.read(keys) == "NIXL_ERR_BACKEND"
    assert "NIXL_ERR" in attempt(lambda: str(agent.there(keys)))
    host.start()
    assert agent.read(keys) == "DONE" and agent.same(16 * SIZE)
    assert agent.there(keys) == [True] * 16
    assert agent.write(other) == "DONE"
    assert agent.read(other) == "DONE" and agent.same(16 * SIZE)


def test_memory_is_kept_for_as_long_as_a_drive_does_not_answer(host):
    agent = Agent("KVRAIL", {"socket": str(host.socket)})
    pipe = kvrail.Client(host.socket)._watch_transfers()
    keys = keys_of(16)
    written, read = agent.begin_both(host, keys, keys_of(16, "other"))
    drive = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY)  # as a ring that the kernel cannot end
    host.kill()
    assert agent.end(written, 10) == "NIXL_ERR_BACKEND"
    host.start()
    assert agent.there(keys) == [True] * 16, "it is attached again"
    deadline = time.monotonic() + 6  # more than without such a sign
    while time.monotonic() < deadline:
        assert attempt(lambda: agent.nixl.check_xfer_state(read[0])) == "PROC"
        time.sleep(0.01)
    os.close(drive)
    assert agent.end(read, 1) == "NIXL_ERR_BACKEND"
    assert agent.read(keys) == "DONE" and agent.same(16 * SIZE)


def test_a_session_that_ends_without_its_sidecar_ends_requests_in_time(host):
    agent = Agent("KVRAIL", {"socket": str(host.socket)})
    written, read = agent.begin_both(host, keys_of(16), keys_of(16, "other"))
    sockets = [it for it in os.listdir("/proc/self/fd") if is_client_of(int(it), host)]
    for number in sockets:
        with socket.socket(fileno=os.dup(int(number))) as mine:
            mine.shutdown(socket.SHUT_RDWR)
    begun = time.monotonic()
    assert agent.end(written, 10) == "NIXL_ERR_BACKEND"
    host.thaw()
    assert agent.end(read, 10) == "NIXL_ERR_BACKEND"
    assert 4.5 < time.monotonic() - begun < 8
    assert agent.read(keys_of(16)) == "DONE" and agent.same(16 * SIZE)


def is_client_of(number: int, host: Host) -> bool:
    try:
        with socket.socket(fileno=os.dup(number)) as mine:
            return mine.family == socket.AF_UNIX and mine.getpeername() == str(host.socket)
    except OSError:
        return False


def test_another_nixl_is_refused_by_name(tmp_path):
    packages = Path(nixl.__file__).parents[1]
    for found in [*packages.glob(f"{WHEEL}*"), *packages.glob(f".{WHEEL}*")]:
        name = found.name.replace("1.5.1", "1.9.0")
        shutil.copytree(found, tmp_path / name, symlinks=True, copy_function=os.link)
    code = (
        f"from {WHEEL}._api import nixl_agent, nixl_agent_config\n"
        "nixl_agent('a', nixl_agent_config(backends=[])).create_backend('KVRAIL', {})\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "this plug-in is for NIXL 1.3 to 1.5" in done.stderr and "is 1.9.0" in done.stderr
