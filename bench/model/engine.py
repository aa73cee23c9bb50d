"""vLLM in this process with a model of random weights, and one way to keep KV blocks.

The scale of the weights makes the output depend on the KV cache: tokens and log-probabilities of a
hit differ from those of computing where one byte of a block is wrong. Prompts are random token ids,
decoding is greedy.
"""

import os
import random
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_NO_USAGE_STATS": "1"}
os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import torch
import vllm.model_executor.model_loader.dummy_loader as dummy
from arms import DIRECT, KVRAIL
from vllm import LLM, SamplingParams

GAIN = 1.5
"""Standard deviation of a layer's output for an input of 1: below 1 the KV cache hardly counts."""

TOKEN_IDS = range(10, 100_000)


@dataclass(frozen=True)
class Place:
    """Where an arm keeps what the GPU's cache has no room for."""

    arm: str
    socket: str
    files: str
    chunk_tokens: int
    cpu_bytes: int

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
            extra["prefer"] = "latency" if self.arm == "latency" else "throughput"
        else:
            config |= {"kv_connector": "OffloadingConnector"}
            extra |= {"cpu_bytes_to_use": self.cpu_bytes}
        if self.arm in ("fs", "tier"):
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
        if self.arm == "fs":
            return str(sum(len(files) for _, _, files in os.walk(self.files)))
        return ""


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


def fill_weights() -> None:
    """Makes vLLM's loader of dummy weights draw from a seed, with a scale that keeps the signal."""
    drawn = 0

    @torch.no_grad()
    def initialise(weight: Any, *_: Any, name: str = "", **__: Any) -> None:
        nonlocal drawn
        if weight.device.type == "meta" or not torch.is_floating_point(weight):
            return
        drawn += 1
        generator = torch.Generator(device=weight.device)
        generator.manual_seed(1234 + drawn)
        if name.endswith("_scale"):
            weight.fill_(1.0)
        elif weight.dim() >= 2:
            bound = GAIN * (3.0 / weight.size(-1)) ** 0.5
            weight.uniform_(-bound, bound, generator=generator)
        elif "weight" in name:
            weight.fill_(1.0)
        else:
            weight.uniform_(-0.5, 0.5, generator=generator)

    dummy.initialize_single_dummy_weight = initialise


def prompt(seed: int, tokens: int) -> list[int]:
    """Random token ids, the same for a seed."""
    draw = random.Random(seed)
    return [draw.randrange(TOKEN_IDS.start, TOKEN_IDS.stop) for _ in range(tokens)]


@dataclass(frozen=True)
class Model:
    """What the engine computes, and how."""

    shape: Path
    tokens_max: int
    gpu_cache_bytes: int
    ranks: int = 1
    kv_cache_dtype: str = "auto"
    served: bool = False
    """As a server runs it: the engine has a process of its own, and decodes by CUDA graphs. Nothing
    is compiled."""


class Engine:
    """The engine, and what a measurement does with it."""

    def __init__(self, place: Place, model: Model) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if model.served else "0"
        # Processes of engine and ranks are forked, and so have these weights, too.
        fill_weights()
        self.place, self._small = place, 10**9
        transfer = place.transfer()
        more: dict[str, Any] = {"kv_transfer_config": transfer} if transfer else {}
        if model.served:
            more["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
        self._llm = LLM(
            model=str(model.shape),
            load_format="dummy",
            skip_tokenizer_init=True,
            enforce_eager=not model.served,
            dtype="bfloat16",
            max_model_len=model.tokens_max + 256,
            max_num_batched_tokens=8192,
            max_num_seqs=32,
            kv_cache_memory_bytes=model.gpu_cache_bytes,
            kv_cache_dtype=model.kv_cache_dtype,
            tensor_parallel_size=model.ranks,
            enable_prefix_caching=True,
            seed=0,
            disable_log_stats=False,
            generation_config="vllm",
            **more,
        )

    def answers(self, prompts: list[list[int]], tokens: int = 1) -> list[Answer]:
        """What the engine makes of prompts that are there at once."""
        sampling = SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=1, detokenize=False
        )
        began = time.perf_counter()
        ids = [{"prompt_token_ids": each} for each in prompts]
        outputs = self._llm.generate(ids, sampling, use_tqdm=False)
        wall_s = time.perf_counter() - began
        return [self._answer(output, wall_s) for output in outputs]

    def answer(self, ids: list[int], tokens: int = 1) -> Answer:
        """What the engine makes of one prompt."""
        return self.answers([ids], tokens)[0]

    @staticmethod
    def _answer(output: Any, wall_s: float) -> Answer:
        made = output.outputs[0]
        logprobs = [row[token].logprob for token, row in zip(made.token_ids, made.logprobs)]
        ttft_s = output.metrics.first_token_latency
        return Answer(list(made.token_ids), logprobs, output.num_cached_tokens, ttft_s, wall_s)

    def turn(self, seconds: float) -> None:
        """The engine turns with small prompts, so that what is in flight goes on."""
        until = time.monotonic() + seconds
        while True:
            self._small += 1
            self.answer(prompt(self._small, 20), 2)
            if time.monotonic() > until:
                return
            time.sleep(0.02)

    def settle(self, seconds: float = 20.0) -> None:
        """Turns until three looks in a row find as many blocks stored as before."""
        last, same, until = None, 0, time.monotonic() + seconds
        while same < 3 and time.monotonic() < until:
            self.turn(0.25)
            now = self.place.stored()
            same, last = (same + 1, last) if now == last else (0, now)

    def forget(self) -> None:
        """Empties the caches of GPU and CPU; blocks on drives stay. The arm `cpu` has no drive, and
        keeps its blocks."""
        below = self.place.arm in ("fs", "tier")
        for _ in range(100):
            if self._llm.reset_prefix_cache(reset_connector=below):
                return
            self.turn(0.05)
        raise RuntimeError("the engine does not let its caches go")
