"""LMCache's own server and coordinator as processes, and the client of its `lmcache bench server`
one step after the other: for tests and for measurements. There is no model and no GPU; all else is
LMCache's."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lmcache.cli.commands.bench.server_bench import helpers
from lmcache.cli.commands.bench.server_bench.client import ServerBenchClient
from lmcache.cli.commands.bench.server_bench.config import BenchConfig

MODULE = {"type": "plugin", "module_path": "kvrail.lmcache", "class_name": "L2Adapter"}
CHUNK, TOKENS = 256, 4096
"""Tokens of a chunk, which is one object, and of a request."""

SHAPE = "(2,2000,16,2,64):float16:4"
"""K and V of 4 layers: a token has 2 KiB, an object 512 KiB, a request 8 MiB in 16 objects."""

READY_WITHIN_S, PATIENCE_S, QUIET_S = 120.0, 60.0, 2.0

POLL_S = 0.001
"""Between two polls of a lookup that loads: the bench's own 50 ms would hide all differences."""


def adapter(socket_path: Path, **more: Any) -> dict[str, Any]:
    """The value of `--l2-adapter` for kvrail."""
    return MODULE | {"adapter_params": {"socket": str(socket_path)} | more}


def free_port() -> int:
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return int(it.getsockname()[1])


class Process:
    """A process of LMCache that answers HTTP, until it is closed."""

    def __init__(self, arguments: list[str], port: int, ready: str, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        command = [str(Path(sys.executable).with_name("lmcache")), *arguments]
        with log.open("ab") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file)
        deadline = time.monotonic() + READY_WITHIN_S
        while True:
            try:
                self.get(ready)
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.close()
                    raise RuntimeError(f"no {arguments[0]}: {self.log()[-4000:]}") from None
                time.sleep(0.1)

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def get(self, path: str) -> Any:
        """The JSON at a path."""
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that a path answers."""
        kind = {"Content-Type": "application/json"}
        asked = urllib.request.Request(self.url + path, json.dumps(body).encode(), kind)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return json.load(answer)

    def close(self) -> None:
        """Ends it."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Ends it as a crash would."""
        self._process.kill()
        self._process.wait()


class Coordinator(Process):
    """`lmcache coordinator`."""

    def __init__(self, log: Path) -> None:
        port = free_port()
        super().__init__(
            ["coordinator", "--host", "127.0.0.1", "--port", str(port), "--disable-metrics"],
            port,
            "/directory/stats",
            log,
        )


class Server(Process):
    """`lmcache server` with one L2 adapter behind an L1 in a shared file."""

    def __init__(
        self,
        l2: Mapping[str, Any],
        log: Path,
        *,
        l1_mib: int = 256,
        coordinator: Coordinator | None = None,
    ) -> None:
        port, http = free_port(), free_port()
        self.rpc = f"tcp://127.0.0.1:{port}"
        told = ["--coordinator-event-reporting", "--coordinator-event-flush-interval", "0.2"]
        more = ["--coordinator-url", coordinator.url, *told] if coordinator else []
        super().__init__(
            [
                *("server", "--port", str(port), "--http-port", str(http), "--disable-metrics"),
                *("--instance-id", "kvrail"),
                *("--chunk-size", str(CHUNK), "--supported-transfer-mode", "auto"),
                *("--l1-size-gb", str(l1_mib / 1024), "--no-l1-use-lazy"),
                *("--shm-name", f"kvrail-{os.getpid()}-{port}", "--l1-align-bytes", "4096"),
                *("--eviction-policy", "LRU", "--eviction-trigger-watermark", "0.5"),
                *("--l2-adapter", json.dumps(l2), *more),
            ],
            http,
            "/healthcheck",
            log,
        )

    def status(self) -> dict[str, Any]:
        """Its storage in its own status."""
        told: dict[str, Any] = self.get("/status")
        return told["storage_manager"]

    def adapter(self) -> dict[str, Any]:
        """The status of its L2 adapter."""
        told: dict[str, Any] = self.status()["l2_adapters"][0]
        return told

    def is_healthy(self) -> bool:
        return bool(self.get("/healthcheck")["status"] == "healthy")

    def settle(self) -> None:
        """Until nothing has been on its way to the L2 for a while: what was stored a moment ago is
        not pending yet, and is lost if a load takes its place in the L1 before."""
        deadline, since = time.monotonic() + PATIENCE_S, time.monotonic()
        while time.monotonic() < since + QUIET_S:
            stores = self.status()["store_controller"]
            if stores["pending_keys_count"] or stores["in_flight_task_count"]:
                since = time.monotonic()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the server still stores: {stores}")
            time.sleep(0.05)


@dataclass(frozen=True)
class Loaded:
    """Result of a request that was stored before."""

    hits: int
    """Objects from the front."""
    digests: list[str]
    """Of each of them, as it is in the client's memory now."""
    lookup_s: float
    """Until the objects were in the L1."""
    retrieve_s: float
    """Until they were in the client's memory."""


class Client:
    """One worker of an engine, as `lmcache bench server` plays it on the CPU."""

    def __init__(self, server: Server) -> None:
        polls = int(PATIENCE_S / POLL_S)
        ask = partial(_poll, max_polls=polls, poll_interval=POLL_S)
        helpers._poll_prefetch_status = ask
        config = BenchConfig(server.rpc, server.url, "cpu", "auto", 1, False, TOKENS, SHAPE, 0, 0)
        self._bench = ServerBenchClient(config, lambda _: None)
        self._bench.start()
        self._requests = 0

    def store(self, number: int) -> list[str]:
        """Stores a request of this number, as far as it is not there; its objects' digests."""
        request = self._request(number)
        found = self._bench.lookup(request)
        there = found.hit_chunks * CHUNK
        digests = self._bench.compute_checksums(request, 0, request.num_full_tokens)
        stored = self._bench.store(request, there, request.num_full_tokens - there)
        self._bench.end_session(request)
        if stored is not None and not stored.succeeded:
            raise RuntimeError(f"request {number} was not stored")
        return list(digests or ())

    def load(self, number: int) -> Loaded:
        """Loads the stored part of a request into wiped memory."""
        request = self._request(number)
        found = self._bench.lookup(request)
        count = found.hit_chunks * CHUNK
        self._bench.zero_destination(request, 0, request.num_full_tokens)
        came = self._bench.retrieve(request, 0, count)
        digests = self._bench.compute_checksums(request, 0, count)
        self._bench.end_session(request)
        if came is not None and not came.succeeded:
            return Loaded(0, [], found.latency_ms / 1000, came.latency_ms / 1000)
        seconds = came.latency_ms / 1000 if came is not None else 0.0
        return Loaded(found.hit_chunks, list(digests or ()), found.latency_ms / 1000, seconds)

    def close(self) -> None:
        self._bench.close()

    def _request(self, number: int) -> Any:
        self._requests += 1
        return self._bench.create_request(number, f"request {number}.{self._requests}", "kvrail")


_poll = helpers._poll_prefetch_status
