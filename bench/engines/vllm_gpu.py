"""V6: vLLM without a CPU tier beside its CPU tier over kvrail's and over its own tier of files.

vllm_gpu.py [ROUNDS]: chunks of pages in CUDA tensors are stored, the CPU tier forgets them, and
they are loaded into other pages; every byte is compared. Specs, managers and workers are those
that vLLM's connector drives. Arms take turns; CPU is that of this process and of the sidecar.
JSON goes to standard output, the table to standard error. It needs vLLM's files and a GPU.
"""

import ctypes
import gc
import os
import random
import sys
import time
from collections import Counter
from contextlib import nullcontext
from typing import Any

import torch
import vllm._custom_ops  # noqa: F401
from kvrail._vllm_tiers import keys_of
from measure import Clock, Verdicts, folder, keep, median, show, sidecar, write
from vllm.distributed import parallel_state
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
    LookupResult,
    ReqContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

SHAPES = (("2 MiB", 64, 32 << 10), ("640,256 B", 61, 10_496))
"""Name, layers, bytes of a layer's page: a dense model, and MLA in fp8 (16 tokens)."""

CHUNKS, TURNS, PATIENCE_S = 256, 3, 60.0
SPEC = "KvrailOffloadingSpec"


def provide_copies() -> str:
    """vLLM's CPU tier copies by a call of its compiled library. Where that does not load, the call
    that it makes is made here: one batch of copies on the current stream."""
    if hasattr(torch.ops._C_cache_ops, "swap_blocks_batch"):
        return "vLLM's compiled library"
    runtime = ctypes.CDLL("libcudart.so.13")

    class Attributes(ctypes.Structure):
        _fields_ = [(name, ctypes.c_int) for name in ("order", "src", "_s", "dst", "_d", "flags")]

    in_stream_order, first = Attributes(order=1), ctypes.c_size_t(0)

    def copy(src: torch.Tensor, dst: torch.Tensor, sizes: torch.Tensor, any_order: bool) -> None:
        lists = [ctypes.c_void_p(it.data_ptr()) for it in (dst, src, sizes)]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        told = runtime.cudaMemcpyBatchAsync(
            *lists, ctypes.c_size_t(len(src)), ctypes.byref(in_stream_order), ctypes.byref(first),
            ctypes.c_size_t(1), stream,
        )
        assert told == 0, f"cudaMemcpyBatchAsync: {told}"

    library = torch.library.Library("_C_cache_ops", "FRAGMENT")
    library.define("swap_blocks_batch(Tensor src, Tensor dst, Tensor sizes, bool any) -> ()")
    library.impl("swap_blocks_batch", copy, "CPU")
    provide_copies.library = library  # type: ignore[attr-defined]
    return "cudaMemcpyBatchAsync, called by this program: vLLM's compiled library is not loaded"


class Cache:
    """A paged cache of one group of layers: chunks are stored from its first half, and loaded into
    its second."""

    def __init__(self, layers: int, page: int) -> None:
        self.page = page
        shape = (2 * CHUNKS, page)
        self.tensors = [torch.empty(shape, dtype=torch.int8, device="cuda") for _ in range(layers)]
        self.canonical = CanonicalKVCaches(
            [CanonicalKVCacheTensor(it, page) for it in self.tensors],
            [[CanonicalKVCacheRef(at, page) for at in range(layers)]],
        )

    def fill(self) -> None:
        """New bytes in the first half, others than those in the second."""
        for it in self.tensors:
            it[:CHUNKS].random_(-128, 127)
            it[CHUNKS:] = 127
        torch.cuda.synchronize()

    def same(self, pages: list[int]) -> bool:
        """Whether these pages are those of the first half, in order."""
        at = torch.tensor(pages, device="cuda")
        equal = all(torch.equal(it[at], it[:CHUNKS]) for it in self.tensors)
        for it in self.tensors:
            it[CHUNKS:] = 127
        torch.cuda.synchronize()
        return equal


class Arm:
    """A scheduler's and a worker's half, stepped as vLLM's connector does."""

    def __init__(self, extra: dict[str, Any], cache: Cache) -> None:
        layers = len(cache.tensors)
        config = OffloadingConfig(
            groups=(OffloadingGroupConfig(16, tuple(f"layer {at}" for at in range(layers)), 0),),
            worker_kv_bytes_per_block=layers * cache.page,
            enable_kv_cache_events=False,
            extra_config=extra,
            engine_id=f"kvrail-{os.getpid()}-{time.monotonic_ns()}",
            model=OffloadingModelConfig(f"model of {layers} x {cache.page}", "fp8"),
            cache=OffloadingCacheConfig(16, 1),
            parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True),
        )
        spec = OffloadingSpecFactory.create_spec(config)
        self.manager: Any = spec.get_manager()
        self.worker: Any = spec.get_worker(cache.canonical)
        self._last = 0

    def store(self, keys: list[Any], pages: list[int]) -> None:
        """Until the chunks are where they stay."""
        request = self._request(keys)
        with self._held():
            out = self.manager.prepare_store(keys, request)
        assert list(out.keys_to_store) == keys
        source = GPULoadStoreSpec(pages, group_sizes=(len(pages),), block_indices=(0,))
        assert self.worker.submit_store(self._number(), source, out.store_spec)
        self._end()
        with self._held():
            self.manager.complete_store(keys, request)
            self.manager.on_request_finished(request)
        self._until(lambda: not self.manager.has_pending_work())

    def forget(self) -> None:
        """Empties the CPU tier, where there is one."""
        if hasattr(self.manager, "secondary_tiers"):
            with self._held():
                self.manager.reset_cache()
                self.manager.on_reset_flushed()

    def load(self, keys: list[Any], pages: list[int]) -> None:
        """From the lookup to the end of the last copy."""
        request = self._request(keys)
        self._until(lambda: self._look(keys, request) == {LookupResult.HIT})
        with self._held():
            source = self.manager.prepare_load(keys, request)
        target = GPULoadStoreSpec(pages, group_sizes=(len(pages),), block_indices=(0,))
        number = self._number()
        assert self.worker.submit_load(number, source, target, expedited=True)
        self.worker.wait({number})
        self._end()
        with self._held():
            self.manager.complete_load(keys, request)
            self.manager.on_request_finished(request)

    def _look(self, keys: list[Any], request: ReqContext) -> set[LookupResult]:
        with self._held():
            found = Counter(self.manager.lookup(it, request) for it in keys)
        if found[LookupResult.MISS]:
            sys.exit(f"{found[LookupResult.MISS]} of {len(keys)} chunks are not there")
        return set(found)

    def close(self) -> None:
        self.worker.shutdown()
        self.manager.shutdown()

    def _held(self) -> Any:
        """All of a manager's calls are made under its lock: it may have a thread that polls."""
        return getattr(self.manager, "lock", nullcontext())

    def _number(self) -> int:
        self._last += 1
        return self._last

    def _request(self, keys: list[Any]) -> ReqContext:
        request = ReqContext(f"request {self._number()}")
        for at, key in enumerate(keys):
            request.set_offload_key_position(key, 16 * (at + 1))
        with self._held():
            self.manager.on_new_request(request)
        return request

    def _end(self) -> None:
        """Waits for the end of the one transfer there is."""
        until, ended = time.monotonic() + PATIENCE_S, []
        while not ended:
            if time.monotonic() > until:
                sys.exit("a transfer does not end")
            ended = self.worker.get_finished()
        assert len(ended) == 1 and ended[0].success, ended

    def _until(self, done: Any) -> None:
        """Steps of the scheduler until something holds."""
        until = time.monotonic() + PATIENCE_S
        while not done():
            if time.monotonic() > until:
                sys.exit("vLLM's manager got stuck")
            with self._held():
                self.manager.on_schedule_end(ScheduleEndContext([], []))
            time.sleep(0.0002)


def measure(arms: dict[str, Arm], cache: Cache, rounds: int, pid: int) -> dict[str, Any]:
    """Seconds and CPU seconds of each store and each load of all chunks."""
    told: dict[str, dict[str, list[float]]] = {
        name: {"store": [], "store_cpu": [], "load": [], "load_cpu": []} for name in arms
    }
    order = random.Random(1)
    for turn in range(rounds):
        for name, arm in list(arms.items())[:: -1 if turn % 2 else 1]:
            cache.fill()
            keys = keys_of(range(1000 * turn, 1000 * turn + CHUNKS))
            clock = Clock(pid).start()
            arm.store(keys, list(range(CHUNKS)))
            keep(told[name], "store", clock)
            for _ in range(TURNS):
                arm.forget()
                pages = order.sample(range(CHUNKS, 2 * CHUNKS), CHUNKS)
                clock = Clock(pid).start()
                arm.load(keys, pages)
                torch.cuda.synchronize()
                keep(told[name], "load", clock)
                if not cache.same(pages):
                    sys.exit(f"{name}: other bytes")
            arm.forget()
    return told


def judge(verdicts: Verdicts, shape: str, told: dict[str, Any], nbytes: int) -> None:
    show(told, nbytes)
    for other in list(told)[1:]:
        ours, theirs = told[SPEC], told[other]
        speed = median(theirs["load"]) / median(ours["load"])
        verdicts.add("V6", f"{shape}: cold load, GB/s over {other}", speed, ">=", 1.0)
        work = sum(ours["load_cpu"]) / sum(theirs["load_cpu"])
        verdicts.add("V6", f"{shape}: cold load, CPU over {other}", work, "<=", 1.0)


def main() -> int:
    rounds = int((sys.argv + ["5"])[1])
    copies, verdicts, told = provide_copies(), Verdicts(), {}
    print(f"{torch.cuda.get_device_name()}; copies of the CPU tier: {copies}", file=sys.stderr)
    parallel_state.init_distributed_environment(1, 0, "tcp://127.0.0.1:29417", 0, "gloo")
    routes: dict[str, Any] = {}
    for shape, layers, page in SHAPES:
        cache, nbytes = Cache(layers, page), CHUNKS * layers * page
        with sidecar("6GiB") as served, folder() as place:
            socket = {"socket": str(served.socket), "store": "kv"}
            tier = {"type": "Tier", "module_path": "kvrail.vllm", **socket}
            tiers = {"kvrail's tier": tier, "the tier of files": {"type": "fs", "root_dir": place}}
            specs = {SPEC: {"spec_name": SPEC, "spec_module_path": "kvrail.vllm", **socket}}
            for name, it in tiers.items():
                specs[name] = {
                    "spec_name": "TieringOffloadingSpec",
                    "cpu_bytes_to_use": nbytes + (256 << 20),
                    "secondary_tiers": [it],
                }
            arms = {name: Arm(extra, cache) for name, extra in specs.items()}
            told[shape] = measure(arms, cache, rounds, served.pid)
            judge(verdicts, shape, told[shape], nbytes)
            routes[shape] = arms[SPEC].worker.status()
            for arm in arms.values():
                arm.close()
            del arms
            gc.collect()
    head = {"gpu": torch.cuda.get_device_name(), "copies": copies, "routes": routes}
    return write(head | {"rounds": rounds, "loads_a_round": TURNS, "arms": told}, verdicts)


if __name__ == "__main__":
    sys.exit(main())
