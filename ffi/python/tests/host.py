"""A sidecar that can be killed and started again in one place, as on a host of engines."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kvrail
import numpy
from kvrail._binary import binary
from kvrail._serve import _environment


BUSY = 64 << 10
"""Bytes of the blocks that keep a store busy."""


def until(what: str, holds: Callable[[], object], seconds: float = 30) -> None:
    """Waits until it holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.005)


class Busy:
    """Blocks that fill a store, and are read again and again: new chains find no room."""

    def __init__(self, host: "Host") -> None:
        self._client = kvrail.Client(host.socket)
        self._space = self._client.store("kv").namespace("busy", {"of": "tests"})
        self._rows = self._client.create_arena(256 * BUSY)
        self._there: list[int] = []
        last, absent = 0, 0
        while not absent:
            self._put(range(last, last := last + 256))
            absent = list(self._space.lookup(range(last - 256))).count(False)
        # The store makes room for the last puts while the first blocks are read.
        self._there = list(range(last))
        for _ in range(4):
            self._there = self._read()

    def read(self) -> None:
        """Reads all of them. Where this process gets no core for a while, its blocks age as if
        nobody read them, and some go: they come back."""
        there = self._read()
        lost = sorted(set(self._there).difference(there))
        for at in range(0, len(lost), 256):
            self._put(lost[at : at + 256])

    def _put(self, keys: Sequence[int]) -> None:
        self._space.put_many(keys, (self._rows, numpy.arange(len(keys)) * BUSY, BUSY))

    def _read(self) -> list[int]:
        found = []
        for at in range(0, len(self._there), 256):
            keys = self._there[at : at + 256]
            places = (self._rows, numpy.arange(len(keys)) * BUSY, BUSY)
            gets = self._space.get_many(keys, places)
            found += [key for key, got in zip(keys, gets.ok, strict=True) if got]
        return found


class Host:
    """A store in a folder, and a socket that stays the same."""

    def __init__(
        self,
        folder: Path,
        size: str = "256MiB",
        *,
        unsealed: str = "accept",
        budget: str = "auto",
        block_mean: str = "auto",
        raw: str | None = None,
        metrics: str = "off",
        arena_bytes: str | None = None,
        memory_tier: str | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.unsealed, self.metrics = unsealed, metrics
        self.socket, self._image = folder / "s", folder / "kv.img"
        self._log, self._config = folder / "log", folder / "kvrail.toml"
        self._process: subprocess.Popen[bytes] | None = None
        create = ["volume", "create", "kv", "--kind", "store", "--size", size, "--quiet"]
        if block_mean != "auto":
            create += ["--block-mean", block_mean]
        self._run(*create, "--direct", "optional", str(self._image))
        volumes = [("kv", self._image, f'write_budget = "{budget}"\n')]
        if raw is not None:
            volumes.append(("raw", folder / "raw.img", ""))
            create = ["volume", "create", "raw", "--size", raw, "--quiet", "--direct", "optional"]
            self._run(*create, str(folder / "raw.img"))
        self._config.write_text(
            f"sidecar.socket = {json.dumps(str(self.socket))}\n"
            f'device.direct = "optional"\nmetrics.listen = "{metrics}"\n'
            f'memory.unsealed_imports = "{unsealed}"\n'
            + (f'limits.arena_bytes_per_session = "{arena_bytes}"\n' if arena_bytes else "")
            + (f'memory_tier.bytes = "{memory_tier}"\n' if memory_tier else "")
            + "".join(
                f'[[volume]]\nname = "{name}"\nmembers = [{json.dumps(str(image))}]\n{more}'
                for name, image, more in volumes
            )
        )

    def start(self) -> None:
        """Serves, and waits until clients can attach."""
        command = [str(binary()), "serve", "--exit-with-parent", f"--config={self._config}"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=_environment(), stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while True:
            try:
                kvrail.Client(self.socket).close()
                return
            except kvrail.NoSidecarError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline, self._log.read_text()
                time.sleep(0.01)

    def kill(self) -> None:
        """Ends it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stops all of its threads, as if each of its drives hung."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def holds(self) -> int:
        """Blocks that clients hold."""
        return int(self._total()["holds"])

    def counts(self) -> dict[str, int]:
        """Counters of the store, as an operator sees them."""
        return dict(self._total()["counters"])

    def _total(self) -> dict[str, Any]:
        command = [str(binary()), "store", "status", f"--socket={self.socket}", "--format=json"]
        done = subprocess.run(command, env=_environment(), check=True, capture_output=True)
        (store,) = json.loads(done.stdout)
        return dict(store["total"])

    def write_records(self) -> None:
        """Waits until the records of all earlier puts are written: a durable put writes the open
        page. A kill loses none of them afterwards."""
        with kvrail.Client(self.socket) as client:
            space = client.store("kv").namespace("fence", {"of": "tests"})

            def is_taken() -> bool:
                return space.put(os.urandom(16), b"x", durable=True) == "OK"

            until("a durable put is taken", is_taken)

    def clear(self, namespace: str) -> None:
        """Clears a namespace as an operator does."""
        self._run("store", "clear", namespace, "--yes", namespace, f"--socket={self.socket}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _run(self, *arguments: str) -> None:
        command = [str(binary()), *arguments]
        subprocess.run(command, env=_environment(), check=True, capture_output=True)
