"""M1: Mooncake's own client, with kvrail among its storage back ends, offloads to a store and loads
from it. KVRAIL_MOONCAKE is the folder that `scripts/dev mooncake` built Mooncake in."""

import multiprocessing
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import kvrail
import pytest
from host import Host

if "KVRAIL_MOONCAKE" not in os.environ:
    pytest.skip("KVRAIL_MOONCAKE names no build of Mooncake", allow_module_level=True)
BUILD = Path(os.environ["KVRAIL_MOONCAKE"])

IDENTITY = '{"model": "m", "dtype": "bf16"}'
SEGMENT, MIB, CLIENT_TTL = 32 << 20, 1 << 20, 2
SIZES = [1, 511, 512, 4096, 4097, 12345, 65536, MIB - 1, MIB, MIB + 1, 2 * MIB + 77]


def objects(sizes: list[int], seed: int) -> dict[str, bytes]:
    random_ = random.Random(seed)
    return {f"key {seed}/{at}": random_.randbytes(size) for at, size in enumerate(sizes)}


def serve(pipe: Connection, environment: dict[str, str], port: int) -> None:
    """A process with Mooncake's client in it, which runs commands."""
    os.environ |= environment
    sys.path.insert(0, str(BUILD / "mooncake-integration"))
    import store as mooncake

    it = mooncake.MooncakeDistributedStore()
    pipe.send(
        it.setup(
            "127.0.0.1",
            "P2PHANDSHAKE",
            SEGMENT,
            32 << 20,
            "tcp",
            "",
            f"127.0.0.1:{port}",
            enable_ssd_offload=True,
        )
    )
    while True:
        name, arguments = pipe.recv()
        pipe.send(getattr(it, name)(*arguments))
        if name == "close":
            break


class Node:
    """Mooncake's client in a process of its own."""

    def __init__(self, port: int, folder: Path, socket: Path, **settings: str) -> None:
        told = {"SOCKET": str(socket), "IDENTITY": IDENTITY, "TIMEOUT_MS": "1000"} | settings
        environment = {f"MOONCAKE_OFFLOAD_KVRAIL_{name}": told[name] for name in told}
        environment |= {
            "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR": "kvrail_storage_backend",
            "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(folder),
            "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": str(64 * MIB),
            "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "1",
        }
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, environment, port)
        self._process = context.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()  # so that its death is noticed
        self.setup = self._answer()

    def _answer(self) -> Any:
        assert self._pipe.poll(60), "Mooncake's client does not answer"
        return self._pipe.recv()

    def call(self, name: str, *arguments: Any) -> Any:
        self._pipe.send((name, arguments))
        return self._answer()

    def put(self, wanted: dict[str, bytes]) -> None:
        for key, value in wanted.items():
            assert self.call("put", key, value) == 0

    def has(self, wanted: dict[str, bytes]) -> list[bool]:
        """Which of them come back unchanged; other bytes than those are a failure."""
        came = [self.call("get", key) for key in wanted]
        pairs = zip(came, wanted.values(), strict=True)
        assert all(not got or got == value for got, value in pairs)
        return [bool(got) for got in came]

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def die(self) -> None:
        """Returns when the master has noticed that its memory is gone."""
        self.kill()
        time.sleep(CLIENT_TTL + 1)


def until(holds: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never holds"
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return int(it.getsockname()[1])


@pytest.fixture
def host(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Host]:
    host = Host(tmp_path, getattr(request, "param", "512MiB"))
    host.start()
    yield host
    host.kill()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[int]:
    port = free_port()
    program = BUILD / "mooncake-store/src/mooncake_master"
    flags = {"port": port, "metrics_port": free_port(), "enable_offload": "true"}
    flags |= {"default_kv_lease_ttl": 10, "client_ttl": CLIENT_TTL}
    with (tmp_path / "master.log").open("wb") as log:
        command = [str(program), *(f"--{name}={value}" for name, value in flags.items())]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    yield port
    process.kill()
    process.wait()


@pytest.fixture
def start(master: int, tmp_path: Path, host: Host) -> Iterator[Callable[..., Node]]:
    nodes = []

    def start(**settings: str) -> Node:
        (tmp_path / "unused").mkdir(exist_ok=True)
        nodes.append(Node(master, tmp_path / "unused", host.socket, **settings))
        return nodes[-1]

    yield start
    for node in nodes:
        node.kill()


def held(host: Host) -> tuple[int, int]:
    """How many objects and bytes of Mooncake's are in the store."""
    with kvrail.Client(host.socket) as client:
        ours = [it for it in client.store("kv").namespaces() if it["name"] == "mooncake"]
        return sum(it["blocks"] for it in ours), sum(it["bytes"] for it in ours)


def stored(host: Host) -> int:
    return held(host)[0]


def settled(node: Node, host: Host, count: int = 8, size: int = 65536) -> dict[str, bytes]:
    """Objects that are in the store and nowhere else: Mooncake was killed since."""
    wanted = objects([size] * count, seed=2)
    node.put(wanted)
    until(lambda: stored(host) == count)
    node.die()
    return wanted


def test_objects_come_back_after_mooncake_was_killed(start, host):
    wanted = objects(SIZES, seed=1)
    node = start()
    assert node.setup == 0
    node.put(wanted)
    until(lambda: stored(host) == len(wanted))
    node.die()
    node = start()
    assert node.setup == 0
    assert all(node.has(wanted))
    assert node.call("get_offload_rpc_read_count") >= len(wanted)
    assert node.call("is_exist", "another key") == 0 and node.call("get", "another key") == b""


def test_a_name_that_was_removed_comes_again_with_other_bytes(start, host):
    settled(start(), host, 1, 4096)
    node = start()
    assert node.call("remove", "key 2/0", True) == 0
    node.put({"key 2/0": b"other bytes"})
    until(lambda: held(host) == (1, len(b"other bytes")))
    node.die()
    node = start()
    assert node.has({"key 2/0": b"other bytes"}) == [True]


@pytest.mark.parametrize("host", ["64MiB"], indirect=True)
def test_a_full_store_makes_room_and_mooncake_gets_the_evictions(start, host):
    node, wanted = start(), objects([MIB] * 128, seed=3)
    for key, value in wanted.items():
        until(lambda key=key, value=value: node.call("put", key, value) == 0)

    def known() -> list[bool]:
        return [node.call("is_exist", key) == 1 for key in wanted]

    until(lambda: sum(known()) < 80)
    there = node.has(wanted)
    assert 16 <= sum(there) < 80 and all(there[-8:]) and not any(there[:8])
    until(lambda: known() == node.has(wanted))


def test_what_does_not_fit_stays_in_memory(start, host):
    with kvrail.Client(host.socket) as client:
        most = client.store("kv").block_bytes_max
    node = start()
    wanted = {"large": bytes(most + 1)} | objects([4096] * 4, seed=4)
    node.put(wanted)
    until(lambda: stored(host) == 4)
    assert all(node.has(wanted)) and node.call("remove", "large", True) == 0


def test_a_sidecar_that_dies_is_attached_again(start, host):
    wanted = settled(start(), host)
    node = start()
    assert all(node.has(wanted))
    host.kill()
    begun = time.monotonic()
    assert not any(node.has(wanted)) and time.monotonic() - begun < 10
    host.start()
    until(lambda: all(node.has(wanted)))
    more = objects([12345] * 4, seed=5)
    node.put(more)
    until(lambda: stored(host) == len(wanted) + len(more))


def test_a_sidecar_that_is_killed_again_and_again_gives_no_other_bytes(start, host):
    wanted = settled(start(), host, 16, MIB)
    node = start()
    assert all(node.has(wanted))

    def kill() -> None:
        for _ in range(4):
            time.sleep(1.1)
            host.kill()
            time.sleep(0.2)
            host.start()

    killer = threading.Thread(target=kill)
    killer.start()
    there, put, seed = [], {}, 100
    while killer.is_alive():
        more = objects([MIB // 2] * 8, seed=(seed := seed + 1))
        put |= {key: value for key, value in more.items() if node.call("put", key, value) == 0}
        there += node.has(wanted)
    killer.join()
    assert not all(there) and any(there), "loads before, between and after"
    until(lambda: all(node.has(wanted)))
    assert stored(host) > len(wanted) and len(put) >= 32
    node.has(put)


def test_a_drive_that_hangs_ends_calls_in_time(start, host):
    wanted = settled(start(), host, 4)
    node = start()
    assert all(node.has(wanted))
    host.freeze()
    try:
        for key in wanted:
            begun = time.monotonic()
            assert node.call("get", key) == b"" and time.monotonic() - begun < 4
        begun = time.monotonic()
        assert start().setup != 0 and time.monotonic() - begun < 20
    finally:
        host.thaw()
    until(lambda: all(node.has(wanted)))


def test_objects_that_somebody_cleared_are_forgotten(start, host):
    wanted = settled(start(), host)
    node = start()
    with kvrail.Client(host.socket) as client:
        client.store("kv").namespace("mooncake", IDENTITY).clear()
    more = objects([12345] * 4, seed=7)
    node.put(more)
    until(lambda: stored(host) == len(more))
    assert not any(node.has(wanted))
    until(lambda: not any(node.call("is_exist", key) for key in wanted))
    node.put(wanted)
    until(lambda: stored(host) == len(wanted) + len(more))


def test_mooncake_empties_its_namespace(start, host):
    node = start()
    node.put(objects([4096] * 4, seed=6))
    until(lambda: stored(host) == 4)
    assert node.call("remove_all", True) >= 4
    until(lambda: stored(host) == 0)


def test_another_identity_finds_nothing(start, host, capfd):
    wanted = settled(start(), host)
    assert start(IDENTITY='{"model": "m", "dtype": "fp8"}').setup != 0
    assert "dtype" in capfd.readouterr().err
    node = start(IDENTITY='{"model": "n"}', NAMESPACE="other")
    assert node.setup == 0 and not any(node.has(wanted))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"SOCKET": "/nowhere/s"}, "no sidecar"),
        ({"STORE": "kw"}, "store kw"),
        ({"TIMEOUT_MS": "many"}, "TIMEOUT_MS is 'many'"),
    ],
)
def test_wrong_settings_are_named(start, capfd, settings, words):
    assert start(**settings).setup != 0
    assert words in capfd.readouterr().err
