"""LMCache under an arm's engine: its own connector in vLLM, its own server in a process, which has
host memory (L1) and behind it one back end (L2): kvrail, or one of LMCache's own.

The arm's folder of files has the server's place. What is stored is what the server has passed on.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from asked import Place

HEAD = 4096
"""Bytes before each object of `raw_block`, and what its objects begin at a multiple of."""

NUMBER = 2
"""Bytes of a number of the KV cache."""

QUIET = {"LMCACHE_LOG_LEVEL": "WARNING", "LMCACHE_DISABLE_BANNER": "1", "DO_NOT_TRACK": "1"}


def object_bytes(shape: Path, chunk_tokens: int) -> int:
    """Of a chunk of a model with heads: what LMCache keeps as one object."""
    model = json.loads((shape / "config.json").read_text())
    token = 2 * model["num_hidden_layers"] * model["num_key_value_heads"] * model["head_dim"]
    return int(token * chunk_tokens * NUMBER)


def free_port() -> int:
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return int(it.getsockname()[1])


class UnderLMCache(Place):
    """An arm whose server runs from here on, for as long as this process's group."""

    def start(self, shape: Path) -> None:
        """Does not wait: the connector waits until the server answers."""
        os.environ |= QUIET  # the connector's, too
        port, http = free_port(), free_port()
        object.__setattr__(self, "port", port)
        object.__setattr__(self, "url", f"http://127.0.0.1:{http}/status")
        words = ["--port", str(port), "--http-port", str(http), "--disable-metrics"]
        words += ["--chunk-size", str(self.chunk_tokens), "--eviction-policy", "LRU"]
        words += ["--l1-size-gb", str(self.cpu_bytes >> 30), "--l1-align-bytes", str(HEAD)]
        words += ["--no-l1-use-lazy", "--shm-name", f"kvrail-model-{os.getpid()}"]
        words += ["--supported-transfer-mode", "auto"]
        back_end = self._back_end(object_bytes(shape, self.chunk_tokens))
        words += ["--l2-adapter", json.dumps(back_end)]
        subprocess.Popen(
            [sys.executable, "-m", "lmcache.cli.main", "server", *words],
            stdin=subprocess.DEVNULL,
            env=os.environ | QUIET,
        )

    def _back_end(self, nbytes: int) -> dict[str, Any]:
        """The value of `--l2-adapter`."""
        if self.arm == "lmcache_kvrail":
            known = {"socket": self.socket, "store": "kv"}
            where = {"module_path": "kvrail.lmcache", "class_name": "L2Adapter"}
            return {"type": "plugin", **where, "adapter_params": known}
        if self.arm == "lmcache_fs":
            return {"type": "fs_native", "base_path": self.files, "use_odirect": True}
        image = Path(self.files) / "blocks"
        with image.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, self.disk_bytes)
        raw = {"type": "raw_block", "device_path": str(image), "slot_bytes": nbytes + HEAD}
        return raw | {"io_engine": "io_uring", "use_odirect": True}

    def transfer(self) -> dict[str, Any]:
        extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": self.port}
        return {
            "kv_connector": "LMCacheMPConnector",
            "kv_connector_module_path": "lmcache.integration.vllm.lmcache_mp_connector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": extra,
        }

    def stored(self) -> str:
        """Another text each time while objects are on their way to the L2."""
        with urllib.request.urlopen(self.url, timeout=10) as answer:
            storage = json.load(answer)["storage_manager"]
        stores, l1 = storage["store_controller"], storage["l1_manager"]
        counts = (
            stores["pending_keys_count"],
            stores["in_flight_task_count"],
            l1["read_locked_count"],
            l1["write_locked_count"],
        )
        moving = any(counts)
        return str(time.monotonic()) if moving else "all"

    def forget(self) -> None:
        """Empties the server's host memory."""
        url = self.url.replace("/status", "/cache/clear")
        kind = {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, b"{}", kind), timeout=10):
            pass

    def clear(self) -> None:
        """Nothing: no phase that needs it is run under LMCache."""
