"""What an engine is asked, where it keeps blocks, and what it answers: the same for all engines."""

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arms import DIRECT, FORGETS, KVRAIL, SIMPLE, SPECIAL
from processes import Used, drop_caches

TOKEN_IDS = range(10, 100_000)


@dataclass(frozen=True)
class Place:
    """Where an arm keeps what the GPU's cache has no room for."""

    arm: str
    socket: str
    files: str
    chunk_tokens: int
    cpu_bytes: int
    disk_bytes: int = 0

    def transfer(self) -> dict[str, Any] | None:
        """vLLM's `kv_transfer_config`."""
        if self.arm == "recompute":
            return None
        extra: dict[str, Any] = {"block_size": self.chunk_tokens}
        config = {"kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
        if self.arm in DIRECT:
            config |= {
                "kv_connector": "KvrailOffloadingConnector",
                "kv_connector_module_path": "kvrail.vllm_connector",
            }
            extra |= {"spec_name": "KvrailOffloadingSpec", "spec_module_path": "kvrail.vllm"}
            extra |= {"socket": self.socket, "store": "kv"}
            extra |= SPECIAL.get(self.arm, {})
            extra["prefer"] = "latency" if self.arm == "latency" else "throughput"
        elif self.arm in SIMPLE:
            config |= {"kv_connector": "SimpleCPUOffloadConnector"}
            extra = {"cpu_bytes_to_use": self.cpu_bytes}
            if self.arm == "simple_disk":
                extra |= {"kv_offload_backend": "disk", "disk_path": f"{self.files}/blocks"}
                extra |= {"disk_capacity_bytes": self.disk_bytes}
        else:
            config |= {"kv_connector": "OffloadingConnector"}
            extra |= {"cpu_bytes_to_use": self.cpu_bytes}
        if self.arm in FORGETS:
            kvrail = {"type": "kvrail", "socket": self.socket, "store": "kv"}
            kvrail["prefer"] = "throughput"
            tier = kvrail if self.arm == "tier" else {"type": "fs", "root_dir": self.files}
            extra |= {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [tier]}
        return config | {"kv_connector_extra_config": extra}

    def stored(self) -> str:
        """A text that changes while blocks are stored."""
        if self.arm in KVRAIL:
            words = ["kvrail", "store", "namespaces", "--socket", self.socket]
            return subprocess.run(words, capture_output=True, text=True, check=False).stdout
        if self.arm in ("fs", "sglang_file"):
            return str(sum(len(files) for _, _, files in os.walk(self.files)))
        if self.arm == "simple_disk":
            return str(Used.by(os.getpid()).written_bytes)
        return ""

    def forget(self) -> None:
        """Empties what is above the drives and outside of the engine."""
        if self.arm == "sglang_file":  # others read past the kernel's memory
            drop_caches()

    def clear(self) -> None:
        """Removes what only grows: vLLM's own tier never removes a file."""
        if self.arm == "fs":
            for path in Path(self.files).iterdir():
                shutil.rmtree(path)


def settle(turn: Callable[[float], None], stored: Callable[[], str], seconds: float) -> bool:
    """Has an engine turn until three looks in a row find as much stored as before; whether they
    did."""
    last, same, until = None, 0, time.monotonic() + seconds
    while same < 3 and time.monotonic() < until:
        turn(0.25)
        now = stored()
        same, last = (same + 1, last) if now == last else (0, now)
    return same >= 3


@dataclass(frozen=True)
class Answer:
    """What the engine made of one prompt."""

    tokens: list[int]
    logprobs: list[float]
    cached_tokens: int
    ttft_s: float
    wall_s: float

    def beside(self, other: "Answer") -> dict[str, Any]:
        """How equal two answers are."""
        pairs = list(zip(self.logprobs, other.logprobs, strict=True))
        return {
            "tokens_equal": sum(a == b for a, b in zip(self.tokens, other.tokens, strict=True)),
            "of": len(other.tokens),
            "bit_exact": self.tokens == other.tokens and self.logprobs == other.logprobs,
            "logprob_max_diff": max(abs(a - b) for a, b in pairs),
            "cached_tokens": self.cached_tokens,
            "ttft_s": self.ttft_s,
        }


def prompt(seed: int, tokens: int, ids: range = TOKEN_IDS) -> list[int]:
    """Random token ids, the same for a seed."""
    draw = random.Random(seed)
    return [draw.randrange(ids.start, ids.stop) for _ in range(tokens)]


@dataclass(frozen=True)
class Model:
    """What the engine computes, and how."""

    shape: Path
    tokens_max: int
    gpu_cache_bytes: int
    ranks: int = 1
    kv_cache_dtype: str = "auto"
    weights: str = ""
    """A folder by which engines on one GPU share them; empty: each has its own."""
    served: bool = False
    """As a server runs it: the engine has a process of its own, and decodes by CUDA graphs. Nothing
    is compiled."""
