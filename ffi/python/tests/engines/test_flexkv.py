"""F1: FlexKV's own worker, client and matching for Mooncake's store, with kvrail in its place. A
checkout of FlexKV is needed on PYTHONPATH, and a libcudart.so, which it opens when imported."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flexkv", reason="no checkout of FlexKV is on PYTHONPATH")

import numpy  # noqa: E402
import torch  # noqa: E402
from host import Host  # noqa: E402
from kvrail import _lane, _tier, mooncake  # noqa: E402

try:
    from flexkv_worker import Worker
except OSError as error:
    pytest.skip(f"FlexKV cannot be imported: {error}", allow_module_level=True)

from flexkv.common.storage import KVCacheLayout, KVCacheLayoutType  # noqa: E402
from flexkv.common.transfer import TransferOp, TransferType  # noqa: E402
from flexkv.external.mooncake_store_utils import MooncakeStoreCacheEngine  # noqa: E402
from flexkv.transfer.worker_op import WorkerTransferResult  # noqa: E402
from kvrail._lmcache_server import free_port  # noqa: E402

BLOCKS = 64
LAYOUT = KVCacheLayout(KVCacheLayoutType.BLOCKFIRST, 4, BLOCKS, 16, 8, 64)
"""Blocks of 128 KiB: K and V of 4 layers, 16 tokens."""

Hashes = numpy.ndarray


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path, metrics=f"127.0.0.1:{free_port()}")
    host.start()
    yield host
    host.kill()


@pytest.fixture
def config(host: Host, tmp_path: Path) -> SimpleNamespace:
    """The store in FlexKV's configuration."""
    address, _, port = host.metrics.partition(":")
    file = tmp_path / "flexkv.json"
    told = {"local_hostname": "model bf16", "metadata_server": str(host.socket)}
    told |= {"master_addr": address, "master_metrics_port": int(port), "device_name": "kv"}
    told |= {"protocol": "tcp", "global_segment_size": 1}
    file.write_text(json.dumps(told | {"enable_ssd_offload": False, "ssd_offload_path": None}))
    return SimpleNamespace(mooncake_store_config_path=str(file), tokens_per_block=16)


class Node:
    """FlexKV's pool of blocks on the host, and its worker in a process of its own."""

    def __init__(self, config: SimpleNamespace) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self.pool = torch.zeros(LAYOUT.get_total_elements(), dtype=torch.bfloat16)
        self._finished = context.Queue()
        self._worker = Worker.create_worker(
            context,
            self._finished,
            torch.zeros(1, 1, dtype=torch.int64),
            cpu_blocks=self.pool,
            cpu_kv_layout=LAYOUT,
            dtype=torch.bfloat16,
            cache_config=config,
        )
        assert self._worker.ready_event.wait(60), "FlexKV's worker did not start"
        self.blocks = self.pool.view(torch.int16).view(BLOCKS, -1)

    def move(self, kind: TransferType, blocks: range, hashes: Hashes) -> tuple[bool, ...]:
        """Which blocks reached their places in the transfer."""
        ids = numpy.arange(blocks.start, blocks.stop, dtype=numpy.int64)
        op = TransferOp(1, kind, ids, ids, mooncake_store_block_hashes=hashes)
        self._worker.submit_transfer(op)
        told, ended, _ = self._finished.get(timeout=60)
        assert ended and isinstance(told, WorkerTransferResult)
        return told.block_results

    def close(self) -> None:
        self._worker.shutdown()


@pytest.fixture
def node(config: SimpleNamespace) -> Iterator[Node]:
    node = Node(config)
    yield node
    node.close()


def hashes_of(numbers: range) -> Hashes:
    return numpy.array([1_000_003 * number for number in numbers], dtype=numpy.uint64)


def fill(blocks: torch.Tensor, seed: int) -> torch.Tensor:
    random = numpy.random.default_rng(seed)
    shape = tuple(blocks.shape)
    blocks[:] = torch.from_numpy(random.integers(-32768, 32768, shape, dtype=numpy.int16))
    return blocks.clone()


def found(config: SimpleNamespace, numbers: range) -> int:
    """How many blocks from the front FlexKV believes to be in the store."""
    sequence = SimpleNamespace(num_blocks=len(numbers), block_hashes=hashes_of(numbers))
    engine = MooncakeStoreCacheEngine(config)
    matched = engine.match(sequence).num_matched_blocks
    engine.mooncake_store_client._store.close()
    return int(matched)


def test_blocks_come_back_through_its_worker(node, config):
    wanted = fill(node.blocks[:16], seed=1)
    assert found(config, range(16)) == 0
    assert node.move(TransferType.H2REMOTE, range(16), hashes_of(range(16))) == (True,) * 16
    assert found(config, range(20)) == 16
    came = node.move(TransferType.REMOTE2H, range(32, 52), hashes_of(range(20)))
    assert came == (True,) * 16 + (False,) * 4
    assert torch.equal(node.blocks[32:48], wanted) and not node.blocks[48:52].any()


def test_blocks_survive_the_worker_and_the_sidecar(node, config, host):
    wanted = fill(node.blocks[:16], seed=2)
    assert all(node.move(TransferType.H2REMOTE, range(16), hashes_of(range(16))))
    host.write_records()
    host.kill()
    assert not any(node.move(TransferType.REMOTE2H, range(16, 32), hashes_of(range(16))))
    assert not any(node.move(TransferType.H2REMOTE, range(16), hashes_of(range(50, 66))))
    host.start()
    deadline = time.monotonic() + 30
    while not all(node.move(TransferType.REMOTE2H, range(32, 48), hashes_of(range(16)))):
        assert time.monotonic() < deadline, "never attached again"
        time.sleep(0.2)
    assert torch.equal(node.blocks[32:48], wanted)
    other = Node(config)
    assert all(other.move(TransferType.REMOTE2H, range(16), hashes_of(range(16))))
    assert torch.equal(other.blocks[:16], wanted)
    other.close()


@pytest.fixture
def store(host: Host) -> Iterator[mooncake.MooncakeDistributedStore]:
    store = mooncake.MooncakeDistributedStore()
    assert store.setup("model bf16", str(host.socket), 0, 0, "tcp", "kv", "") == 0
    yield store
    store.close()


def places(pool: torch.Tensor, count: int, size: int) -> tuple[list[int], list[int]]:
    return [pool.data_ptr() + at * size for at in range(count)], [size] * count


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "private"])
def test_shared_pools_are_not_copied_and_others_are_counted(store, shared):
    size, names = 128 << 10, [f"{number}_FlexKV" for number in range(8)]
    pool = torch.zeros(16 * size, dtype=torch.uint8)
    wanted = fill(pool.view(torch.int16), seed=3)
    if shared:
        pool.share_memory_()
    assert store.batch_put_from(names, *places(pool, 8, size)) == [0] * 8
    pool[: 8 * size] = 0
    assert store.batch_get_into(names, *places(pool, 8, size)) == [size] * 8
    assert torch.equal(pool.view(torch.int16)[: 4 * size], wanted[: 4 * size])
    assert store.status()["copied_bytes"] == (0 if shared else 16 * size)
    assert bool(store.status()["copies"]) is not shared


def test_another_size_or_model_is_missed(store, host):
    size, names = 128 << 10, ["1_FlexKV"]
    pool = torch.zeros(2 * size, dtype=torch.uint8).share_memory_()
    assert store.batch_put_from(names, *places(pool, 1, size)) == [0]
    for other in (size // 2, 2 * size):
        assert store.batch_get_into(names, *places(pool, 1, other)) == [mooncake.MISSED]
    stranger = mooncake.MooncakeDistributedStore()
    stranger.setup("model fp16", str(host.socket), 0, 0, "tcp", "kv", "")
    assert stranger.batch_is_exist(names) == [0] and store.batch_is_exist(names) == [1]
    stranger.close()


def test_wrong_configurations_are_refused_by_name(host):
    store = mooncake.MooncakeDistributedStore()
    with pytest.raises(ValueError, match='local_hostname is ""'):
        store.setup("", str(host.socket))
    with pytest.raises(Exception, match="no sidecar"):
        store.setup("model", "/nowhere/s")
    with pytest.raises(Exception, match="other"):
        store.setup("model", str(host.socket), 0, 0, "tcp", "other")
    with pytest.raises(RuntimeError, match="setup"):
        store.batch_is_exist(["key"])


def test_a_drive_that_hangs_ends_puts_and_lookups_in_time(store, host, monkeypatch):
    monkeypatch.setattr(mooncake, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(_tier, "RETRY_S", 0.05)
    monkeypatch.setattr(_lane, "QUARANTINE_S", 0.2)
    size, names = 128 << 10, ["1_FlexKV"]
    pool = torch.zeros(size, dtype=torch.uint8).share_memory_()
    assert store.batch_put_from(["0_FlexKV"], *places(pool, 1, size)) == [0]
    assert store.batch_is_exist(["0_FlexKV"]) == [1]
    host.freeze()
    try:
        for call in (
            lambda: store.batch_put_from(names, *places(pool, 1, size)),
            lambda: store.batch_is_exist(names),
            lambda: store.batch_put_from(names, *places(pool, 1, size)),
        ):
            begun = time.monotonic()
            assert call()[0] in (0, mooncake.FAILED)
            assert time.monotonic() - begun < 2
    finally:
        host.thaw()
    deadline = time.monotonic() + 30
    while store.batch_put_from(names, *places(pool, 1, size)) != [0]:
        assert time.monotonic() < deadline, "puts never go on"
        time.sleep(0.05)
    assert store.batch_get_into(names, *places(pool, 1, size)) == [size]
