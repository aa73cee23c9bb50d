"""L2, L3, L4: LMCache's own server with kvrail behind a shared L1 that is too small, its bench's
client, its injector of faults, and its coordinator."""

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lmcache", reason="LMCache is not installed")

from host import Host  # noqa: E402
from kvrail import _lmcache_server as lmcache  # noqa: E402
from kvrail.engines import CONFIGURATIONS  # noqa: E402
from kvrail.lmcache import L2Adapter  # noqa: E402

OBJECTS = lmcache.TOKENS // lmcache.CHUNK
"""Objects of a request, of 512 KiB each."""

Make = Callable[..., lmcache.Server]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path, "1GiB")
    host.start()
    yield host
    host.kill()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[lmcache.Server] = []

    def server(l2: dict[str, Any], **more: Any) -> lmcache.Server:
        made.append(lmcache.Server(l2, tmp_path / "server.log", **more))
        return made[-1]

    yield server
    for it in made:
        it.kill()


def faulty(host: Host, **faults: Any) -> dict[str, Any]:
    """LMCache's injector of faults around kvrail."""
    return {"type": "fault_inject", "inner": lmcache.adapter(host.socket)} | faults


def whole(client: lmcache.Client, number: int) -> lmcache.Loaded:
    """A request of which all is there. LMCache finds nothing while its L1 has no room."""
    deadline = time.monotonic() + 20
    while (came := client.load(number)).hits < OBJECTS:
        assert time.monotonic() < deadline, f"only {came.hits} objects of request {number} came"
        time.sleep(0.1)
    return came


def stored(make: Make, host: Host, numbers: range) -> dict[int, list[str]]:
    """Requests in the store, and in the L1 of no server any more; their objects' digests."""
    server = make(lmcache.adapter(host.socket))
    with closing(lmcache.Client(server)) as client:
        digests = {number: client.store(number) for number in numbers}
        server.settle()
    server.close()
    return digests


def test_what_kvrail_engines_prints_is_a_server_that_starts(host, tmp_path):
    printed = shlex.split(CONFIGURATIONS["lmcache"](str(host.socket), "kv"))
    arguments = ["0.125" if it == "64" else it for it in printed[1:]]
    ports = [lmcache.free_port(), lmcache.free_port()]
    arguments += ["--port", str(ports[0]), "--http-port", str(ports[1]), "--disable-metrics"]
    server = lmcache.Process(arguments, ports[1], "/healthcheck", tmp_path / "printed.log")
    told = server.get("/status")["storage_manager"]["l2_adapters"]
    server.close()
    assert [adapter["type"] for adapter in told] == ["kvrail"] and told[0]["is_healthy"]


def test_its_own_bench_verifies_over_a_shared_l1(make, host):
    server = make(lmcache.adapter(host.socket))
    command = [Path(sys.executable).with_name("lmcache"), "bench", "server", "--mode", "cpu"]
    command += ["--rpc-url", server.rpc, "--url", server.url, "--end", "50", "--interval", "0"]
    command += ["--num-tokens", str(lmcache.TOKENS), "--kvcache-shape-spec", lmcache.SHAPE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0 and "Checksum FAIL" in done.stdout, done.stdout + done.stderr
    told = {line.partition(":")[0]: line.split()[-1] for line in done.stdout.splitlines() if line}
    assert (told["Checksum OK"], told["Checksum FAIL"]) == ("50", "0")
    assert server.adapter()["copied_bytes"] == 0, server.adapter()["copies"]


def test_requests_come_back_through_an_l1_that_is_too_small(make, host):
    server = make(lmcache.adapter(host.socket))
    with closing(lmcache.Client(server)) as client:
        wanted = {}
        # LMCache drops requests that its L1 has no room for before they are in the L2, whatever
        # that is: 200 of 800 objects of 50 requests at once.
        for first in range(100, 150, 10):
            wanted |= {number: client.store(number) for number in range(first, first + 10)}
            server.settle()
        assert all(whole(client, number).digests == it for number, it in wanted.items())
        assert client.load(99).hits == 0
    told = server.adapter()
    assert told["is_healthy"] and told["copied_bytes"] == 0, told["copies"]


def test_the_prefix_before_an_object_that_fails_is_served(make, host):
    wanted = stored(make, host, range(4))
    with closing(lmcache.Client(make(faulty(host, gap_indices=[5])))) as client:
        for number, digests in wanted.items():
            came = client.load(number)
            assert came.hits == 5 and came.digests == digests[:5]


def test_faults_and_a_sidecar_that_dies_give_no_other_bytes(make, host):
    wanted = stored(make, host, range(24))
    server = make(faulty(host, rate=0.05, seed=1), l1_mib=64)
    hits: list[int] = []
    with closing(lmcache.Client(server)) as client:

        def load(numbers: range) -> int:
            for number in numbers:
                came = client.load(number)
                assert came.digests == wanted[number][: came.hits]
                hits.append(came.hits)
            return sum(hits[-len(numbers) :])

        assert load(range(12)) > 0 and 0 < hits.count(OBJECTS) < 12, hits
        host.kill()
        load(range(12, 24))
        assert server.is_healthy(), "the server goes on"
        host.start()
        deadline = time.monotonic() + 30
        while load(range(12, 24)) == 0:
            assert time.monotonic() < deadline, "its objects are not found again"
        assert server.is_healthy() and server.adapter()["is_healthy"]


def test_the_coordinators_view_equals_the_store(make, tmp_path):
    """More is stored than there is room for; the server is started again; still the directory has
    exactly the objects of the store."""
    host = Host(tmp_path, "512MiB")
    host.start()
    fleet = lmcache.Coordinator(tmp_path / "coordinator.log")
    lister = L2Adapter({"socket": str(host.socket)})
    told: dict[str, dict[str, Any]] = {}

    def agree(client: lmcache.Client) -> set[str]:
        deadline = time.monotonic() + 30
        while True:
            client.load(0)  # evictions are announced with a lookup
            there = listed(lister)
            told.update(there)
            if directory(fleet, told) == there.keys():
                return set(there)
            assert time.monotonic() < deadline, fleet.get("/directory/stats")
            time.sleep(0.3)

    try:
        server = make(lmcache.adapter(host.socket), coordinator=fleet)
        with closing(lmcache.Client(server)) as client:
            # Chains are declined while the store is full; those that keep coming replace the rest.
            for number in [*range(42), *[*range(200, 242)] * 4]:
                client.store(number)
                told.update(listed(lister) if number % 8 == 0 else {})
            server.settle()
            assert 0 < len(agree(client)) < len(told), "some were evicted"
        server.close()
        with closing(lmcache.Client(make(lmcache.adapter(host.socket), coordinator=fleet))) as it:
            before = agree(it)
            for number in [*range(100, 142)] * 4:
                it.store(number)
            assert before - agree(it), "more was evicted"
    finally:
        lister.close()
        fleet.kill()
        host.kill()


def listed(lister: L2Adapter) -> dict[str, dict[str, Any]]:
    """What the store has, as the coordinator names it."""
    found, cursor = {}, None
    while True:
        page = lister.list_l2_keys(cursor=cursor)
        for it in page.entries:
            found[it.key.chunk_hash_hex] = asdict(it.key)
        if (cursor := page.next_page_token) is None:
            return found


def directory(fleet: lmcache.Coordinator, keys: dict[str, dict[str, Any]]) -> set[str]:
    """Which of these keys, and of all it lists, the coordinator believes to be in an L2."""
    known = fleet.get("/directory/keys?tier=l2&limit=10000")
    asked = list({it["key"]["chunk_hash_hex"]: it["key"] for it in known["keys"]}.values())
    asked += [key for name, key in keys.items() if key not in asked]
    answer = fleet.post("/directory/lookup", {"keys": asked}) if asked else {"results": []}
    return {
        it["key"]["chunk_hash_hex"]
        for it in answer["results"]
        if any(place["tier"] == "l2" for place in it["placements"])
    }
