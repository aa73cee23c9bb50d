"""A change of the bytes of chunks is another identity, and nothing else is: vLLM's own
configuration objects, its connector and its managers, over a store."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
torch = pytest.importorskip("torch")

from host import Host  # noqa: E402
from kvrail import _identity  # noqa: E402
from kvrail._vllm_spec import KvrailOffloadingSpec  # noqa: E402
from vllm.config import (  # noqa: E402
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    LoadConfig,
    ModelConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import (  # noqa: E402
    build_offloading_config,
)
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVQuantMode,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

KEYS = [bytes([at]) * 36 for at in range(3)]

LLAMA = {
    **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512},
    **{"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 32},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 8192},
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 1024}
LONG |= {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
ATTENTION = {"block_size": 16, "num_kv_heads": 4, "head_size": 32, "dtype": torch.bfloat16}


@dataclass
class Engine:
    """One configuration of vLLM; other values are the same in all."""

    folder: Path
    host: Host
    files: dict[str, Any] = field(default_factory=dict)
    """Differences in the model's config.json."""
    model: dict[str, Any] = field(default_factory=dict)
    cache: dict[str, Any] = field(default_factory=dict)
    layer: dict[str, Any] = field(default_factory=dict)
    kind: type = FullAttentionSpec
    names: tuple[tuple[str, ...], ...] = (("layer.0", "layer.1"),)
    extra: dict[str, Any] = field(default_factory=dict)
    tier: dict[str, Any] = field(default_factory=dict)
    then: tuple[Callable[[VllmConfig], object], ...] = ()
    """Changes of the finished configuration: vLLM takes none of these on a machine without GPUs."""

    def vllm(self) -> VllmConfig:
        (self.folder / "config.json").write_text(json.dumps(LLAMA | self.files))
        name = str(self.folder)
        about = {"dtype": "bfloat16", "max_model_len": 512, "skip_tokenizer_init": True}
        # The longest request is a model's own: no setting has to allow it.
        model = ModelConfig(**{"model": name, "tokenizer": name} | about | self.model)
        tier = {"type": "Tier", "module_path": "kvrail.vllm", "socket": str(self.host.socket)}
        extra = {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": 1 << 20,
            "secondary_tiers": [tier | self.tier],
        }
        made = VllmConfig(
            model_config=model,
            cache_config=CacheConfig(block_size=16),
            device_config=DeviceConfig(device="cpu"),
            kv_transfer_config=KVTransferConfig(
                kv_connector="KvrailOffloadingConnector",
                kv_connector_module_path="kvrail.vllm_connector",
                kv_role="kv_both",
                kv_connector_extra_config=extra | self.extra,
            ),
        )
        settings = {"kv_cache_layout": "LBNHC"} | self.cache
        for key, value in settings.items():
            setattr(made.cache_config, key, value)
        for change in self.then:
            change(made)
        return made

    def kv_cache(self) -> KVCacheConfig:
        spec = self.kind(**ATTENTION | self.layer)
        groups = [KVCacheGroupSpec(list(names), spec) for names in self.names]
        return KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=groups)

    def link(self) -> tuple[Any, Callable[[], None]]:
        """The tier's namespace, as vLLM makes it in its scheduler; and its end."""
        connector = KVConnectorFactory.create_connector(
            self.vllm(), KVConnectorRole.SCHEDULER, self.kv_cache()
        )
        manager = connector.connector_scheduler.manager
        return manager.secondary_tiers[0]._link, connector.shutdown


def sets(part: str, **fields: Any) -> dict[str, Any]:
    def change(made: VllmConfig) -> None:
        for key, value in fields.items():
            setattr(getattr(made, part), key, value)

    return {"then": (change,)}


def drafts(**fields: Any) -> dict[str, Any]:
    """A draft model. vLLM reads its files when it is made, which are not here."""
    draft = object.__new__(SpeculativeConfig)
    known = {it.name: None for it in dataclasses.fields(SpeculativeConfig)}
    for key, value in (known | {"method": "eagle3", "model": "draft"} | fields).items():
        object.__setattr__(draft, key, value)
    return {"then": (lambda made: object.__setattr__(made, "speculative_config", draft),)}


def rotary(**fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0} | fields}


OTHERS: dict[str, dict[str, Any]] = {
    "layout HND": {"cache": {"kv_cache_layout": "LBHNC"}},
    "layout BHLNC": {"cache": {"kv_cache_layout": "BHLNC"}},
    "e4m3": {"cache": {"cache_dtype": "fp8_e4m3"}, "layer": {"dtype": torch.uint8}},
    "e5m2": {"cache": {"cache_dtype": "fp8_e5m2"}, "layer": {"dtype": torch.uint8}},
    "dtype of the model": {"model": {"dtype": "float16"}, "cache": {"cache_dtype": "bfloat16"}},
    "dtype of the cache": {"cache": {"cache_dtype": "float16"}},
    "dtype in memory": {"layer": {"dtype": torch.float16}},
    "layers without 8 bits": {"cache": {"kv_cache_dtype_skip_layers": ["1"]}},
    "Mamba's dtype": {"cache": {"mamba_cache_dtype": "float32"}},
    "Mamba's state": {"cache": {"mamba_ssm_cache_dtype": "float32"}},
    "quantized pages": {"layer": {"kv_quant_mode": KVQuantMode.FP8_PER_TOKEN_HEAD}},
    "block": {"layer": {"block_size": 32}, "cache": {"block_size": 32}},
    "blocks of a chunk": {"extra": {"blocks_per_chunk": 2}},
    "heads": {"layer": {"num_kv_heads": 2}},
    "head size": {"layer": {"head_size": 64}},
    "head size of V": {"layer": {"head_size_v": 16}},
    "padding": {"layer": {"page_size_padded": 16384}},
    "MLA": {"kind": MLAAttentionSpec},
    "window": {"kind": SlidingWindowSpec, "layer": {"sliding_window": 64}},
    "another window": {"kind": SlidingWindowSpec, "layer": {"sliding_window": 128}},
    "chunked attention": {"layer": {"attention_chunk_size": 64}},
    "layers": {"names": (("layer.0", "layer.2"),)},
    "groups": {"names": (("layer.0",), ("layer.1",))},
    "TP": sets("parallel_config", tensor_parallel_size=2, world_size=2),
    "PP": sets("parallel_config", pipeline_parallel_size=2, world_size=2),
    "DCP": sets("parallel_config", decode_context_parallel_size=2, world_size=2),
    "PCP": sets("parallel_config", prefill_context_parallel_size=2, world_size=2),
    "interleaving": sets("parallel_config", cp_kv_cache_interleave_size=8),
    "rotary theta": {"files": rotary(rope_theta=5e5)},
    "rotary theta by an override": {"model": {"hf_overrides": rotary(rope_theta=5e5)}},
    "linear scaling": {"files": rotary(rope_type="linear", factor=2.0)},
    "dynamic scaling": {"files": rotary(rope_type="dynamic", factor=2.0)},
    "more scaling": {"files": rotary(rope_type="linear", factor=4.0)},
    "long rotary": {"files": {"rope_parameters": LONG}},
    "long factors": {"files": {"rope_parameters": LONG}, "model": {"max_model_len": 2048}},
    "rotary that a model has changed": {
        "then": (
            lambda config: config.model_config.hf_text_config.rope_parameters.update(
                rope_theta=7.0
            ),
        )
    },
    "norm": {"files": {"rms_norm_eps": 1e-5}},
    "quantization": sets("model_config", quantization="fp8"),
    "another quantization": sets("model_config", quantization="awq"),
    "kinds of quantization": sets("model_config", quantization_config={"linear": "mxfp8"}),
    "revision": sets("model_config", revision="v2"),
    "revision of the code": sets("model_config", code_revision="v2"),
    "weights": sets("model_config", model_weights="s3://models/2"),
    "dummy weights": {
        "then": (lambda config: setattr(config, "load_config", LoadConfig(load_format="dummy")),)
    },
    "draft": drafts(),
    "another draft": drafts(model="draft 2"),
    "draft's revision": drafts(revision="v2"),
    "draft's dtype": drafts(kv_cache_dtype="fp8_e4m3"),
    "what a user names": {"tier": {"identity": {"update": 7}}},
    "a name for a setting of vLLM": {"tier": {"identity": {"dtype": "bfloat16"}}},
}
"""Changes of bytes, certain or possible."""

SAME: dict[str, dict[str, Any]] = {
    "nothing": {},
    "memory": {"cache": {"gpu_memory_utilization": 0.5}},
    "bytes of pages": {"cache": {"kv_cache_memory_bytes": 1 << 30}},
    "hash": {"cache": {"prefix_caching_hash_algo": "sha256_cbor"}},
    "length": {"model": {"max_model_len": 1024}},
    "name": {"model": {"served_model_name": "other"}},
    "seed": {"model": {"seed": 7}},
    "eager": {"model": {"enforce_eager": True}},
    "log probabilities": {"model": {"max_logprobs": 5}},
    "explicit dtype": {"cache": {"cache_dtype": "auto"}},
    "CPU tier": {"extra": {"cpu_bytes_to_use": 2 << 20}},
    "depth": {"tier": {"depth": 8}},
    "replica": sets("parallel_config", data_parallel_size=2, data_parallel_index=1),
    "port": sets("parallel_config", master_port=12345, data_parallel_rpc_port=12346),
    "n-grams": drafts(method="ngram", model="ngram"),
    "writer of config.json": {"files": {"transformers_version": "9.9"}},
}
"""Changes without another byte."""


@pytest.fixture(scope="module", params=[None, "team"])
def stored(request, lasting_host, folder) -> dict[str, Any]:
    """A namespace with or without a name of the user's, with chunks of one engine."""
    tier = {} if request.param is None else {"namespace": request.param}
    link, end = Engine(folder, lasting_host, tier=tier).link()
    assert link.session.space.put_many(KEYS, [b"bytes"] * len(KEYS)).all_ok
    end()
    return tier


def found(host: Host, folder: Path, stored: dict[str, Any], row: dict[str, Any]) -> list[bool]:
    link, end = Engine(folder, host, **row | {"tier": row.get("tier", {}) | stored}).link()
    try:
        return list(link.lookup(KEYS))
    finally:
        end()


@pytest.mark.parametrize("row", OTHERS.values(), ids=OTHERS)
def test_another_configuration_finds_nothing(lasting_host, folder, stored, row):
    assert found(lasting_host, folder, stored, row) == [False] * len(KEYS)


@pytest.mark.parametrize("row", SAME.values(), ids=SAME)
def test_what_changes_no_byte_finds_all(lasting_host, folder, stored, row):
    assert found(lasting_host, folder, stored, row) == [True] * len(KEYS)


def test_no_two_of_them_share(lasting_host, folder):
    names = []
    for row in OTHERS.values():
        link, end = Engine(folder, lasting_host, **row).link()
        names.append(link.status()["namespace"])
        end()
    assert len(set(names)) == len(OTHERS)


def test_salts_and_adapters_are_in_vllms_hashes():
    """Identities leave them to keys: two requests with the same tokens have other keys."""
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(16, sha256)

    def key(**more: Any) -> bytes:
        parameters = SamplingParams(max_tokens=1)
        made = Request("r", list(range(32)), parameters, None, block_hasher=hasher, **more)
        return bytes(made.block_hashes[0])

    keys = [
        *(key(), key(cache_salt="a"), key(cache_salt="b")),
        key(lora_request=LoRARequest("one", 1, "/one")),
        key(lora_request=LoRARequest("two", 2, "/two")),
    ]
    assert len(set(keys)) == len(keys) and key() == keys[0]


def pages_of(made: VllmConfig, kv_cache: KVCacheConfig, rank: int) -> str:
    """The name of the namespace of a rank, as each half of the spec makes it."""
    with _identity.of_vllm(made, kv_cache):
        spec = KvrailOffloadingSpec(build_offloading_config(made, kv_cache))
    link = spec._link(rank)
    try:
        return str(link.status()["namespace"])
    finally:
        link.close()


@pytest.mark.parametrize("pp", [1, 2])
def test_scheduler_and_worker_of_the_spec_have_one_namespace(lasting_host, folder, pp):
    """The worker has loaded the model, which changes its configuration; it has each layer of a
    group where the scheduler has one, and of a pipeline its own stage."""
    extra = {"spec_name": "KvrailOffloadingSpec", "spec_module_path": "kvrail.vllm"}
    extra |= {"socket": str(lasting_host.socket)}
    stages = sets("parallel_config", pipeline_parallel_size=pp, world_size=pp)
    engine = Engine(folder, lasting_host, extra=extra, **stages)
    scheduler, worker = engine.vllm(), engine.vllm()
    worker.model_config.hf_text_config.rope_parameters.update(partial_rotary_factor=0.5)
    names = ["layer.2", "layer.3"] if pp == 2 else ["layer.0", "layer.1"]
    each = {name: FullAttentionSpec(**ATTENTION) for name in names}
    kv_cache = engine.kv_cache()
    group = KVCacheGroupSpec(names, UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs=each))
    whole = dataclasses.replace(kv_cache, kv_cache_groups=[group])
    rank = pp - 1
    assert pages_of(worker, whole, rank) == pages_of(scheduler, kv_cache, rank)
    other = dataclasses.replace(engine, cache={"kv_cache_layout": "LBHNC"}).vllm()
    assert pages_of(other, kv_cache, rank) != pages_of(scheduler, kv_cache, rank)


def test_without_kvrails_connector_the_missing_part_is_named(lasting_host, folder, caplog):
    made = Engine(folder, lasting_host).vllm()
    config = build_offloading_config(made, Engine(folder, lasting_host).kv_cache())
    _identity.vllm_engine(config, {})
    assert "KvrailOffloadingConnector" in caplog.text
    caplog.clear()
    _identity.vllm_engine(config, {"revision": 1})
    assert not caplog.text


def test_weights_of_a_hub_are_known_by_their_commit(tmp_path):
    def downloads(commit: str) -> None:
        folder = tmp_path / "models--some--model"
        (folder / "snapshots" / commit).mkdir(parents=True, exist_ok=True)
        (folder / "snapshots" / commit / "config.json").write_text("{}")
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(commit)

    told = []
    for commit in ("a" * 40, "b" * 40):
        downloads(commit)
        told.append(_identity._weights("some/model", None, str(tmp_path)))
    assert told == [["some/model", None, "a" * 40], ["some/model", None, "b" * 40]]
    assert _identity._weights("s3://bucket/model", None, None) == ["s3://bucket/model", None]


def test_a_name_that_is_too_long_is_refused_with_its_limit():
    with pytest.raises(ValueError, match="47 are the most"):
        _identity.name("vllm", "n" * 48, {})
    assert len(_identity.name("vllm", "n" * 47, {})) == 64
