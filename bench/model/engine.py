"""vLLM in this process with a model of random weights, and one way to keep KV blocks.

The scale of the weights makes the output depend on the KV cache: tokens and log-probabilities of a
hit differ from those of computing where one byte of a block is wrong. Prompts are random token ids,
decoding is greedy.
"""

import itertools
import os
import pickle
import time
from collections import deque
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_NO_USAGE_STATS": "1"}
os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import torch
import vllm.model_executor.model_loader.dummy_loader as dummy
from arms import FORGETS
from asked import Answer, Model, Place, prompt, settle
from torch.multiprocessing.reductions import reduce_tensor
from vllm import LLM, SamplingParams
from vllm.inputs import tokens_input
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from weights import draw


def fill_weights() -> None:
    """Makes vLLM's loader of dummy weights draw them one after the other."""
    drawn = 0

    def initialise(weight: Any, *_: Any, name: str = "", **__: Any) -> None:
        nonlocal drawn
        if weight.device.type == "meta" or not torch.is_floating_point(weight):
            return
        drawn += 1
        draw(weight, name, drawn)

    dummy.initialize_single_dummy_weight = initialise


def share_weights(folder: Path) -> None:
    """Engines on one GPU have one copy of the weights: the first makes it, the others map it. Each
    process has the weights' memory twice for a moment, and so the cache is taken behind that."""
    load, exported = dummy.DummyModelLoader.load_weights, folder / "weights"

    def load_once(loader: Any, model: Any, config: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            (folder / "first").touch(exist_ok=False)
        except FileExistsError:
            until = time.monotonic() + 120
            while not exported.exists():
                if time.monotonic() > until:
                    raise TimeoutError("the first engine has made no weights") from None
                time.sleep(0.05)
            made = pickle.loads(exported.read_bytes())
            for name, weight in model.named_parameters():
                rebuild, words = made[name]
                weight.data = rebuild(*words)
            return
        load(loader, model, config)
        torch.cuda.synchronize()
        made = {name: reduce_tensor(it.data) for name, it in model.named_parameters()}
        written = exported.with_suffix(".part")
        written.write_bytes(pickle.dumps(made))
        written.rename(exported)

    dummy.DummyModelLoader.load_weights = load_once


def streamed(tokens: int) -> SamplingParams:
    """Of requests that give each token at once."""
    return SamplingParams(
        temperature=0,
        max_tokens=tokens,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


class Engine:
    """The engine, and what a measurement does with it."""

    def __init__(self, place: Place, model: Model) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if model.served else "0"
        # Processes of engine and ranks are forked, and so have these weights, too.
        fill_weights()
        if model.weights:
            share_weights(Path(model.weights))
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
            # What vLLM asks for at its start, beside others; the cache has its own size.
            gpu_memory_utilization=0.1,
            kv_cache_dtype=model.kv_cache_dtype,
            tensor_parallel_size=model.ranks,
            enable_prefix_caching=True,
            seed=0,
            disable_log_stats=False,
            generation_config="vllm",
            **more,
        )

    @staticmethod
    def gpu() -> str:
        return str(current_platform.get_device_name())

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
        """The engine turns with small prompts, so that what is in flight goes on. They fill no page
        that would be stored."""
        until = time.monotonic() + seconds
        while True:
            self._small += 1
            self.answer(prompt(self._small, 10), 2)
            if time.monotonic() > until:
                return
            time.sleep(0.02)

    def settle(self, seconds: float) -> bool:
        """Turns until three looks in a row find as many blocks stored as before."""
        return settle(self.turn, self.place.stored, seconds)

    def forget(self) -> None:
        """Empties the caches of GPU and CPU; blocks on drives stay, and those of arms without a
        drive."""
        self.place.forget()
        below = self.place.arm in FORGETS
        for _ in range(100):
            if self._llm.reset_prefix_cache(reset_connector=below):
                return
            self.turn(0.05)
            # A process of the engine's own frees what the turn has used behind its answer.
            time.sleep(0.01)
        raise RuntimeError("the engine does not let its caches go")

    def playing(self) -> "Playing":
        """Requests that come at their times."""
        return Playing(self._llm.llm_engine)

    def decoding(self, prompts: list[list[int]], tokens: int) -> "Decoding":
        """Requests that make tokens, while others come and go."""
        return Decoding(self._llm.llm_engine, prompts, tokens)


class Playing:
    """Requests that come at their times, and the seconds to the first token of each."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._due: dict[str, float] = {}
        self._open: set[str] = set()
        self.ttft_s: dict[str, float] = {}
        self.cached_tokens = self.made_tokens = 0

    def play(self, requests: list[tuple[float, list[int], int]]) -> float:
        """Until all are answered; the seconds that took.

        :param requests: the time of each, its prompt, and the tokens that it makes, by time.
        """
        waiting, began = deque(requests), time.perf_counter()
        while waiting or self._open:
            now = time.perf_counter() - began
            while waiting and waiting[0][0] <= now:
                self._add(*waiting.popleft())
            if self._open:
                self._step(began)
            else:
                time.sleep(waiting[0][0] - now)
        return time.perf_counter() - began

    def _add(self, at_s: float, ids: list[int], makes: int) -> None:
        name = f"played-{len(self._due)}"
        self._due[name] = at_s
        self._open.add(name)
        self._engine.add_request(name, tokens_input(ids), streamed(makes))

    def _step(self, began: float) -> None:
        for output in self._engine.step():
            name = output.request_id
            if output.outputs and name not in self.ttft_s:
                self.ttft_s[name] = time.perf_counter() - began - self._due[name]
                self.cached_tokens += output.num_cached_tokens or 0
            self.made_tokens += sum(len(its.token_ids) for its in output.outputs)
            if output.finished:
                self._open.discard(name)


class Decoding:
    """Requests that make tokens one by one, and the seconds from token to token of the first."""

    _numbers = itertools.count()

    def __init__(self, engine: Any, prompts: list[list[int]], tokens: int) -> None:
        self._engine = engine
        self._names = [self._add(ids, tokens) for ids in prompts]
        begun: set[str] = set()
        while len(begun) < len(prompts):
            begun |= self._step()
        self._last_s = time.perf_counter()

    def _add(self, ids: list[int], tokens: int) -> str:
        name = f"decoding-{next(self._numbers)}"
        self._engine.add_request(name, tokens_input(ids), streamed(tokens))
        return name

    def _step(self) -> set[str]:
        """The requests that have got a token."""
        return {output.request_id for output in self._engine.step() if output.outputs}

    def between_s(self, tokens: int = 0, beside: list[int] | None = None) -> list[float]:
        """Seconds before each of the next tokens; before those until another request has its
        first one."""
        asked = self._add(beside, 1) if beside else None
        gaps: list[float] = []
        while asked or len(gaps) < tokens:
            if not self._engine.has_unfinished_requests():
                raise RuntimeError("the requests that decode have ended")
            got = self._step()
            if self._names[0] in got:
                now = time.perf_counter()
                gaps.append(now - self._last_s)
                self._last_s = now
            if asked in got:
                asked = None
        return gaps

    def end(self) -> None:
        self._engine.abort_request(self._names)
        while self._engine.has_unfinished_requests():
            self._engine.step()
