"""Moves blocks through an engine's own code into a store and back: `kvrail engines try`."""

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import kvrail

BLOCKS, BLOCK_BYTES = 8, 1 << 20
NAMESPACE = "kvrail engines try"
PATIENCE_S = 30.0

Step = Callable[[str], AbstractContextManager[dict[str, Any]]]


def attempt(engine: str, socket: str | None, store: str, step: Step) -> None:
    """Tries an engine with a sidecar of its own, or with one that runs."""
    with _sidecar(socket, store, step) as place:
        parameters = {"socket": place, "store": store, "namespace": NAMESPACE}
        try:
            ENGINES[engine](parameters, step)
        except BaseException:
            # The first failure counts; a sidecar that is gone has nothing to remove.
            with suppress(kvrail.KvrailError):
                _remove(place, store)
            raise
        with step("the namespace is removed again") as told:
            told["namespace"] = NAMESPACE
            _remove(place, store)


def _remove(socket: str, store: str) -> None:
    with kvrail.Client(socket, name="engines try") as client:
        with suppress(kvrail.errors.MissError):
            client.store(store).remove(NAMESPACE)


@contextmanager
def _sidecar(socket: str | None, store: str, step: Step) -> Iterator[str]:
    if socket is not None:
        with step("the sidecar and its store") as told:
            told |= {"socket": socket, "store": store}
            with kvrail.Client(socket, name="engines try") as client:
                client.store(store)
        yield socket
        return
    with step("a sidecar of its own") as told:
        settings = {"memory.unsealed_imports": "accept"}
        sidecar = kvrail.serve(store="256MiB", settings=settings)
        told["socket"] = str(sidecar.socket)
    with sidecar:
        yield str(sidecar.socket)


def _vllm(parameters: dict[str, Any], step: Step) -> None:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    with step("vLLM's tiering manager, with kvrail by its entry point"):
        import numpy
        from vllm.plugins import load_general_plugins

        from kvrail._vllm_tiers import Tiers, keys_of

        load_general_plugins()
        tiers = Tiers(
            {"type": "kvrail", **parameters}, chunks=2 * BLOCKS, chunk_bytes=BLOCK_BYTES
        )
    try:
        keys = keys_of(range(BLOCKS))
        random = numpy.random.default_rng(1)
        contents = list(random.integers(0, 256, (BLOCKS, BLOCK_BYTES), dtype=numpy.uint8))
        with step(f"{BLOCKS} chunks of {BLOCK_BYTES >> 20} MiB go down") as told:
            begun = time.perf_counter()
            tiers.store(keys, contents)
            tiers.settle()
            told["seconds"] = round(time.perf_counter() - begun, 3)
        with step("the primary tier drops them; they are loaded again") as told:
            tiers.forget()
            begun = time.perf_counter()
            came = tiers.load(keys)
            told["seconds"] = round(time.perf_counter() - begun, 3)
        with step("every byte is equal"):
            wrong = [
                number
                for number, (key, content) in enumerate(zip(keys, contents, strict=True))
                if key not in came or not numpy.array_equal(came[key], content)
            ]
            if wrong:
                raise AssertionError(f"chunks {wrong} are not there, or differ")
        with step("copies") as told:
            told["copied_bytes"] = tiers.tier.status()["copied_bytes"]
            told["why"] = tiers.tier.status()["copies"] or "none: drives reach vLLM's memory"
    finally:
        tiers.close()


def _lmcache(parameters: dict[str, Any], step: Step) -> None:
    with step("kvrail as LMCache's L2 plugin"):
        import torch
        from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
        from lmcache.v1.distributed.l2_adapters import create_l2_adapter
        from lmcache.v1.distributed.l2_adapters.plugin_l2_adapter import PluginL2AdapterConfig
        from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

        plugin = {"module_path": "kvrail.lmcache", "class_name": "L2Adapter"}
        whole = plugin | {"adapter_params": parameters}
        adapter: Any = create_l2_adapter(PluginL2AdapterConfig.from_dict(whole))

    def objects() -> list[Any]:
        shape, made = torch.Size([BLOCK_BYTES // 2]), []
        for number in range(BLOCKS):
            raw = torch.full((BLOCK_BYTES,), number, dtype=torch.uint8)
            about = MemoryObjMetadata(
                shape, torch.bfloat16, 0, BLOCK_BYTES, fmt=MemoryFormat.KV_2LTD, ref_count=1
            )
            made.append(TensorMemoryObj(raw, about, None))
        return made

    def wait(fd: int, query: Callable[[], Any]) -> Any:
        poller, deadline = select.poll(), time.monotonic() + PATIENCE_S
        poller.register(fd, select.POLLIN)
        while (answer := query()) in (None, {}):
            if time.monotonic() > deadline:
                raise TimeoutError("the adapter got stuck")
            if poller.poll(100):
                os.eventfd_read(fd)
        return answer

    try:
        keys = [ObjectKey(bytes([number]) * 32, "model", 0) for number in range(BLOCKS)]
        stored, loaded = objects(), objects()
        for it in loaded:
            it.raw_data.fill_(0xEE)
        with step(f"{BLOCKS} objects of {BLOCK_BYTES >> 20} MiB are stored"):
            task = adapter.submit_store_task(keys, stored)
            done = wait(adapter.get_store_event_fd(), adapter.pop_completed_store_tasks)
            if not done[task].is_successful():
                raise AssertionError("the store failed")
        with step("all are found, and locked"):
            layouts = {0: MemoryLayoutDesc([torch.Size([BLOCK_BYTES // 2])], [torch.bfloat16])}
            task = adapter.submit_lookup_and_lock_task(keys, layouts)
            found = wait(
                adapter.get_lookup_and_lock_event_fd(),
                lambda: adapter.query_lookup_and_lock_result(task),
            )
            if found.popcount() != BLOCKS:
                raise AssertionError(f"{found.popcount()} of {BLOCKS} objects are there")
        with step("every byte is equal"):
            task = adapter.submit_load_task(keys, loaded)
            wait(adapter.get_load_event_fd(), lambda: adapter.query_load_result(task))
            adapter.submit_unlock(keys)
            pairs = zip(stored, loaded, strict=True)
            if not all(torch.equal(one.raw_data, other.raw_data) for one, other in pairs):
                raise AssertionError("objects differ, or are not there")
        with step("copies") as told:
            told["copied_bytes"] = adapter.report_status()["copied_bytes"]
            told["why"] = f"here {adapter.report_status()['copies']}: see `kvrail engines`"
    finally:
        adapter.close()


def _sglang(parameters: dict[str, Any], step: Step) -> None:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    with step("SGLang's host pool, and kvrail as its dynamic back end"):
        from kvrail import _sglang_hosts as hosts

        pool: Any = hosts.mha(2 * BLOCKS, BLOCK_BYTES)
        storage = hosts.backend("dynamic", hosts.EXTRA | parameters, pool)
    try:
        keys, out = hosts.keys_of(range(BLOCKS)), hosts.places(0, BLOCKS)
        hosts.fill(pool, out, 1)
        wanted = hosts.content(pool, out)
        with step(f"{BLOCKS} pages of {BLOCK_BYTES >> 20} MiB are stored") as told:
            begun = time.perf_counter()
            if not all(storage.batch_set_v1(keys, out)):
                raise AssertionError("the store failed")
            told["seconds"] = round(time.perf_counter() - begun, 3)
        with step("all are found, and loaded into other pages") as told:
            back = hosts.places(BLOCKS, BLOCKS)
            hosts.fill(pool, back, None)
            found = storage.batch_exists(keys)
            begun = time.perf_counter()
            if found != BLOCKS or not all(storage.batch_get_v1(keys, back)):
                raise AssertionError(f"{found} of {BLOCKS} pages are there, or did not come")
            told["seconds"] = round(time.perf_counter() - begun, 3)
        with step("every byte is equal"):
            if not hosts.same(pool, back, wanted):
                raise AssertionError("pages differ")
        with step("copies") as told:
            told["copied_bytes"] = storage.status()["copied_bytes"]
            told["why"] = storage.status()["copies"] or "none: drives reach SGLang's memory"
    finally:
        storage.close()


ENGINES: dict[str, Callable[[dict[str, Any], Step], None]] = {
    "vllm": _vllm,
    "lmcache": _lmcache,
    "sglang": _sglang,
}
