"""SGLang with a model of random weights, and one way to keep KV pages: HiCache over a back end."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from asked import Answer, Model, Place, prompt, settle

PAGE = 64
"""Tokens of a page."""

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "SGLANG_EXTERNAL_MODEL_PACKAGE": "sglang_weights",
    # Norms, rotary embedding and activations by PyTorch: their kernels would be compiled first.
    "SGLANG_FORCE_FUSED_OP_BACKEND": "torch",
    # The tree's library is built for a later PyTorch.
    "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python",
}

import sglang
import torch


def hierarchy(place: Place) -> dict[str, Any]:
    """SGLang's arguments for the levels below the GPU's cache."""
    if place.arm == "sglang":
        return {}
    more: dict[str, Any] = {"backend_name": "kvrail", "module_path": "kvrail.sglang"}
    more |= {"class_name": "Storage", "interface_v1": 1, "allocator": "shm"}
    more |= {"hicache_storage_pass_prefix_keys": True, "socket": place.socket, "store": "kv"}
    kvrail = place.arm == "sglang_kvrail"
    return {
        "enable_hierarchical_cache": True,
        "hicache_size": place.cpu_bytes >> 30,
        "hicache_mem_layout": "page_first",
        "hicache_io_backend": "kernel",
        "hicache_storage_prefetch_policy": "wait_complete",
        "hicache_storage_backend": "dynamic" if kvrail else "file",
        "hicache_storage_backend_extra_config": json.dumps(more if kvrail else {}),
    }


class SGLang:
    """The engine, and what a measurement does with it."""

    def __init__(self, place: Place, model: Model) -> None:
        here = str(Path(__file__).parent)
        os.environ["PYTHONPATH"] = f"{here}:{os.environ.get('PYTHONPATH', '')}"
        os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = place.files
        self.place, self._small = place, 10**9
        shape = json.loads((model.shape / "config.json").read_text())
        heads = 2 * shape["num_key_value_heads"] * shape["head_dim"]
        token = shape["num_hidden_layers"] * heads * 2
        self._engine = sglang.Engine(
            model_path=str(model.shape),
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            context_length=model.tokens_max + 256,
            max_total_tokens=model.gpu_cache_bytes // token,
            chunked_prefill_size=8192,
            max_running_requests=32,
            page_size=PAGE,
            mem_fraction_static=0.9,
            attention_backend="triton",
            sampling_backend="pytorch",
            grammar_backend="none",
            disable_cuda_graph=True,
            random_seed=0,
            log_level="warning",
            **hierarchy(place),
        )

    @staticmethod
    def gpu() -> str:
        return torch.cuda.get_device_name()

    def answers(self, prompts: list[list[int]], tokens: int = 1) -> list[Answer]:
        """What the engine makes of prompts that are there at once."""
        began = time.perf_counter()

        async def ask(ids: list[int]) -> tuple[float, list[Any], int]:
            sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
            parts = await self._engine.async_generate(
                input_ids=ids, sampling_params=sampling, return_logprob=True, stream=True
            )
            first_s, rows, cached = 0.0, list[Any](), 0
            async for part in parts:
                first_s = first_s or time.perf_counter() - began
                about = part["meta_info"]  # of all tokens so far
                rows, cached = about["output_token_logprobs"], about["cached_tokens"]
            return first_s, rows, cached

        async def ask_all() -> list[tuple[float, list[Any], int]]:
            return await asyncio.gather(*map(ask, prompts))

        seen = self._engine.loop.run_until_complete(ask_all())
        wall_s = time.perf_counter() - began
        answers = []
        for first_s, rows, cached in seen:
            logprobs, tokens = [float(row[0]) for row in rows], [int(row[1]) for row in rows]
            answers.append(Answer(tokens, logprobs, cached, first_s, wall_s))
        return answers

    def answer(self, ids: list[int], tokens: int = 1) -> Answer:
        """What the engine makes of one prompt."""
        return self.answers([ids], tokens)[0]

    def turn(self, seconds: float) -> None:
        """The engine turns by itself."""
        self._small += 1
        self.answer(prompt(self._small, 20), 2)
        time.sleep(seconds)

    def settle(self, seconds: float) -> bool:
        """Turns until three looks in a row find as many pages stored as before."""
        return settle(self.turn, self.place.stored, seconds)

    def forget(self) -> None:
        """Empties the caches of GPU and CPU; pages in storage stay."""
        self.place.forget()
        for _ in range(200):
            if self._engine.flush_cache().success:
                return
            time.sleep(0.05)
        raise RuntimeError("the engine does not let its caches go")
