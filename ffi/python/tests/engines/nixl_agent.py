"""NIXL's own agent with a back end of the plug-in's. Modules that import this are skipped where
NIXL is not installed."""

import ctypes
import importlib.util
import mmap
import os
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

WHEEL = "nixl_cu13" if importlib.util.find_spec("nixl_cu13") else "nixl_cu12"
nixl = pytest.importorskip(f"{WHEEL}._api", reason="NIXL is not installed")
bindings = importlib.import_module(f"{WHEEL}._bindings")

import numpy as np  # noqa: E402
from host import Host  # noqa: E402

SIZE = 64 << 10
PLUGINS = Path(os.environ.get("NIXL_PLUGIN_DIR", ""))
NAMES, NUMBERS = count(), count(100)


def copied() -> int:
    it = ctypes.CDLL(str(PLUGINS / "libplugin_KVRAIL.so")).kvrail_nixl_copied_bytes
    it.restype = ctypes.c_uint64
    return it()


class Agent:
    """An agent with one back end, and memory of 2 MiB: written bytes, then read ones."""

    def __init__(
        self, backend: str, parameters: dict[str, str], shared: bool = True, half: int = 1 << 20
    ) -> None:
        self.backend, self.half, self.name = backend, half, f"agent{next(NAMES)}"
        self.nixl = nixl.nixl_agent(self.name, nixl.nixl_agent_config(backends=[]))
        self.nixl.create_backend(backend, parameters)
        # NIXL's core has it, its Python does not.
        self.nixl.nixl_mems["BLK"] = bindings.BLK_SEG
        file = -1
        if shared:
            file = os.memfd_create("engine")
            os.posix_fallocate(file, 0, 2 * half)
        flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._map = mmap.mmap(file, 2 * half, flags)
        self.bytes = np.frombuffer(self._map, np.uint8)
        self.bytes[:half] = np.random.default_rng(7).integers(0, 256, half, dtype=np.uint8)
        self.base = self.bytes.ctypes.data
        self.nixl.register_memory([(self.base, 2 * half, 0, "")], "DRAM")

    def begin(self, work: str, at: list[int], there: list[tuple[Any, ...]], kind: str) -> Any:
        """Posts a request between places of the memory and objects, or ranges of the volume."""
        registered = self.nixl.register_memory(there, kind)
        local = [(self.base + it, size, 0) for it, (_, size, *_) in zip(at, there, strict=True)]
        handle = None

        def post() -> str:
            nonlocal handle
            handle = self.nixl.initialize_xfer(
                work, self.nixl.get_xfer_descs(local, "DRAM"), registered.trim(), self.name
            )
            return self.nixl.transfer(handle)

        state = attempt(post)
        return handle, registered, state

    def end(self, begun: tuple[Any, Any, str], seconds: float = 30) -> str:
        handle, registered, state = begun
        deadline = time.monotonic() + seconds
        while state == "PROC":
            assert time.monotonic() < deadline, "the request does not end"
            time.sleep(1e-4)
            state = attempt(lambda: self.nixl.check_xfer_state(handle))
        if handle is not None:
            self.nixl.release_xfer_handle(handle)
        self.nixl.deregister_memory(registered)
        return state

    def move(
        self, work: str, at: list[int], there: list[tuple[Any, ...]], kind: str = "OBJ"
    ) -> str:
        return self.end(self.begin(work, at, there, kind))

    def write(self, keys: list[str], size: int = SIZE) -> str:
        return self.move("WRITE", [i * size for i in range(len(keys))], objects(keys, size))

    def read(self, keys: list[str], size: int = SIZE) -> str:
        """Into the second half, which is wiped before."""
        self.bytes[self.half :] = 0
        at = [self.half + i * size for i in range(len(keys))]
        return self.move("READ", at, objects(keys, size))

    def begin_both(self, host: Host, keys: list[str], other: list[str]) -> list[Any]:
        """Puts `keys`, stops the sidecar, and posts a write of `other` and a read of `keys`."""
        assert self.write(keys) == "DONE"
        host.write_records()
        host.freeze()
        at = [i * SIZE for i in range(len(keys))]
        behind = [self.half + it for it in at]
        return [
            self.begin("WRITE", at, objects(other, SIZE), "OBJ"),
            self.begin("READ", behind, objects(keys, SIZE), "OBJ"),
        ]

    def same(self, total: int) -> bool:
        return bool((self.bytes[:total] == self.bytes[self.half : self.half + total]).all())

    def there(self, keys: list[str]) -> list[bool]:
        asked = [(0, 1, 0, key) for key in keys]
        return [answer is not None for answer in self.nixl.query_memory(asked, self.backend, "OBJ")]


def attempt(call: Callable[[], str]) -> str:
    """DONE, PROC, ERR, or the name of the status that NIXL's binding raises."""
    try:
        return call()
    except Exception as error:
        return str(error)


def objects(keys: list[str], size: int) -> list[tuple[Any, ...]]:
    return [(0, size, next(NUMBERS), key) for key in keys]


def keys_of(many: int, name: str = "chunk") -> list[str]:
    return [f"{name}/{i:04}.bin" for i in range(many)]
