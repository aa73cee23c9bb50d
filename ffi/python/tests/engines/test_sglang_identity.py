"""A change of the bytes of pages is another identity or another form, and nothing else is:
SGLang's own arguments, pools of the GPU (here on the CPU) and of the host, over a store."""

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang", reason="SGLang is not installed")

import torch  # noqa: E402
from host import Host  # noqa: E402
from kvrail._sglang_hosts import EXTRA, backend, fill, keys_of, mla, places  # noqa: E402
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool  # noqa: E402
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope  # noqa: E402
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost  # noqa: E402
from sglang.srt.runtime_context import get_context  # noqa: E402

KEYS = keys_of(range(3))

LLAMA = {
    **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2},
    "rope_theta": 10000.0,
}


@dataclass
class Engine:
    """One configuration of SGLang; other values are the same in all."""

    folder: Path
    host: Host
    files: dict[str, Any] = field(default_factory=dict)
    """Differences in the model's config.json."""
    arguments: dict[str, Any] | None = field(default_factory=dict)
    """The server's arguments; none where no server runs."""
    pool: dict[str, Any] = field(default_factory=dict)
    layout: str = "page_first"
    allocator: str = "shm"
    shard: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def pages(self) -> Any:
        if self.shard.get("is_mla_model"):
            return mla(8, 16 << 10)
        known = {"page_size": 16, "dtype": torch.bfloat16, "head_num": 2, "head_dim": 32}
        known |= {"layer_num": 2} | self.pool
        gpu = MHATokenToKVPool(
            size=128, device="cpu", enable_memory_saver=False, enable_alt_stream=False, **known
        )
        with host_memory_budget_scope(1 << 40):
            return MHATokenToKVPoolHost(
                gpu._mha_buffer_info(),
                1.0,
                0,
                known["page_size"],
                self.layout,
                pin_memory=False,
                allocator_type=self.allocator,
                device_capacity_tokens=128,
                start_layer=0,
                end_layer=known["layer_num"],
                host_token_capacity=128,
            )

    def storage(self) -> tuple[Any, Any]:
        """The back end, as SGLang makes it, and its host pool."""
        (self.folder / "config.json").write_text(json.dumps(LLAMA | self.files))
        extra, pool = EXTRA | {"socket": str(self.host.socket)} | self.extra, self.pages()
        if self.arguments is None:
            return backend("dynamic", extra, pool, **self.shard), pool
        arguments = {"model_path": str(self.folder)} | self.arguments
        with get_context().override_server_args(**arguments):
            return backend("dynamic", extra, pool, **self.shard), pool


E4M3 = {"arguments": {"kv_cache_dtype": "fp8_e4m3"}, "pool": {"dtype": torch.float8_e4m3fn}}
E5M2 = {"arguments": {"kv_cache_dtype": "fp8_e5m2"}, "pool": {"dtype": torch.float8_e5m2}}

OTHERS: dict[str, dict[str, Any]] = {
    "e4m3": E4M3,
    "e5m2": E5M2,
    "dtype of the model": {"arguments": {"dtype": "float16"}},
    "dtype of the cache": {"pool": {"dtype": torch.float16}},
    "layout": {"layout": "page_first_direct"},
    "layers first": {"layout": "layer_first"},
    "page": {"pool": {"page_size": 32}},
    "heads": {"pool": {"head_num": 4, "head_dim": 16}},
    "head size of V": {"pool": {"v_head_dim": 16}},
    "layers": {"pool": {"layer_num": 4}},
    "TP": {"shard": {"tp_size": 2}},
    "another rank": {"shard": {"tp_size": 2, "tp_rank": 1}},
    "PP": {"shard": {"pp_size": 2}},
    "CP": {"shard": {"attn_cp_size": 2}},
    "MLA": {"shard": {"is_mla_model": True}},
    "DCP": {
        "shard": {"is_mla_model": True, "tp_size": 2, "dcp_size": 2, "logical_page_size": 32},
    },
    "model": {"shard": {"model_name": "other"}},
    "rotary": {"files": {"rope_theta": 5e5}},
    "scaling": {"files": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}},
    "override": {"arguments": {"json_model_override_args": '{"rope_theta": 500000.0}'}},
    "quantization": {"arguments": {"quantization": "fp8"}},
    "scales": {"arguments": {"quantization_param_path": "/scales.json"}},
    "revision": {"arguments": {"revision": "v2"}},
    "version": {"arguments": {"weight_version": "2"}},
    "dummy weights": {"arguments": {"load_format": "dummy"}},
    "draft": {
        "arguments": {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": "draft"},
    },
    "another draft": {
        "arguments": {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": "draft 2"},
    },
    "what a user names": {"extra": {"identity": {"update": 7}}},
    "a name for a setting of SGLang": {"extra": {"identity": {"mla": False}}},
}
"""Changes of bytes, certain or possible."""

SAME: dict[str, dict[str, Any]] = {
    "nothing": {},
    "memory": {"arguments": {"mem_fraction_static": 0.5}},
    "port": {"arguments": {"port": 12345, "host": "0.0.0.0"}},
    "ratio": {"arguments": {"hicache_ratio": 4.0}},
    "seed": {"arguments": {"random_seed": 7}},
    "length": {"arguments": {"context_length": 512}},
    "requests": {"arguments": {"max_running_requests": 7}},
    "replica": {"shard": {"dp_rank": 1}},
    "memory that is not shared": {"allocator": "default"},
    "depth": {"extra": {"depth": 8, "timeout": 5.0}},
    "writer of config.json": {"files": {"transformers_version": "9.9"}},
}
"""Changes without another byte."""


def put(engine: Engine) -> None:
    storage, pool = engine.storage()
    where = places(0, len(KEYS), pool.page_size)
    fill(pool, where, 1)
    assert storage.batch_set_v1(KEYS, where) == [True] * len(KEYS)
    storage.close()


def found(engine: Engine) -> int:
    storage, _ = engine.storage()
    try:
        return int(storage.batch_exists(KEYS))
    finally:
        storage.close()


@pytest.fixture(scope="module", params=[None, "team"])
def stored(request, lasting_host, folder) -> dict[str, Any]:
    """A namespace with or without a name of the user's, with pages of one engine."""
    extra = {} if request.param is None else {"namespace": request.param}
    put(Engine(folder, lasting_host, extra=extra))
    return extra


@pytest.mark.parametrize("row", OTHERS.values(), ids=OTHERS)
def test_another_configuration_finds_nothing(lasting_host, folder, stored, row):
    engine = Engine(folder, lasting_host, **row | {"extra": row.get("extra", {}) | stored})
    assert found(engine) == 0


@pytest.mark.parametrize("row", SAME.values(), ids=SAME)
def test_what_changes_no_byte_finds_all(lasting_host, folder, stored, row):
    engine = Engine(folder, lasting_host, **row | {"extra": row.get("extra", {}) | stored})
    assert found(engine) == len(KEYS)


def test_no_two_of_them_share(lasting_host, folder):
    names = []
    for row in OTHERS.values():
        storage, _ = Engine(folder, lasting_host, **row).storage()
        names.append((storage.status()["namespace"], *storage._pools["kv"].names(KEYS[:1])))
        storage.close()
    assert len(set(names)) == len(OTHERS)


def test_eight_bit_floats_of_two_kinds_are_bytes_in_the_same_pool(lasting_host, folder):
    one, other = Engine(folder, lasting_host, **E4M3), Engine(folder, lasting_host, **E5M2)
    assert one.pages().dtype == other.pages().dtype == torch.uint8
    put(one)
    assert (found(one), found(other)) == (len(KEYS), 0)


def test_eight_bit_floats_of_an_unnamed_kind_are_found_by_no_other_engine(
    lasting_host, folder, caplog
):
    named_dtype = {"extra": {"identity": {"kv_cache_dtype": "fp8_e4m3"}}}
    engine = Engine(folder, lasting_host, arguments=None, pool=E4M3["pool"])
    with caplog.at_level(logging.WARNING, "kvrail"):
        put(engine)
    assert 'add "identity": {"kv_cache_dtype": "..."}' in caplog.text
    assert found(engine) == 0
    named = Engine(folder, lasting_host, arguments=None, pool=E4M3["pool"], **named_dtype)
    put(named)
    assert found(named) == len(KEYS)


def test_salts_and_adapters_are_in_sglangs_hashes():
    """Identities leave them to keys: chains of hashes begin with another seed for each."""
    from sglang.srt.mem_cache.utils import storage_namespace_seed

    seeds = [(None, None), (None, "a"), (None, "b"), ("one adapter", None), ("one", "adapter")]
    assert len({storage_namespace_seed(*it) for it in seeds}) == len(seeds)
