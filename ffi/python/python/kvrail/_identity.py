"""Identities: all that makes the bytes of blocks incompatible, one function for each engine, from
the engine's own objects. An adapter's namespace has this document as its identity, so that another
one finds nothing. Values that change keys only (tokens, salts, LoRA adapters: engines hash them)
are not here, nor those that change no byte (ports, sizes of pools, schedules).
"""

import hashlib
import json
import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvrail._load_choice import Speed

FIELD_BYTES = 256
"""Longer values of an identity are hashed: identities have 4 KiB."""

NAME_BYTES = 64
"""Of a namespace's name, at most."""

OPAQUE = "uint8"
"""The form of objects that LMCache has serialized, whatever the cache's is."""

NOISE = frozenset({"_name_or_path", "transformers_version"})
"""Fields of a model's config.json about the program that wrote it."""

WITHOUT_CACHE = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Ways of vLLM to draft tokens that keep no KV."""

log = logging.getLogger("kvrail")


# Documents and names.


def document(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The identity of a namespace: the known fields, with digests of long ones."""
    nothing: tuple[Any, ...] = (None, "", {})
    return {key: _short(value) for key, value in fields.items() if value not in nothing}


def name(engine: str, namespace: str | None, fields: Mapping[str, Any]) -> str:
    """The name of the namespace with this document. Engines with the same `namespace` share it; the
    digest behind it keeps incompatible ones apart."""
    if namespace is None:
        model = str(fields.get("model_name", "")).rpartition("/")[2]
        namespace = f"{engine} {model[:24]}".rstrip()
    whole = f"{namespace} {_digest(_text(fields), 8)}"
    if (length := len(whole.encode())) > NAME_BYTES:
        most = NAME_BYTES - (length - len(namespace.encode()))
        raise ValueError(
            f"namespace {namespace!r} has {len(namespace.encode())} bytes, {most} are the most: a "
            "digest of the identity is put behind it; shorten it"
        )
    return whole


# vLLM.

@dataclass(frozen=True)
class VllmEngine:
    """vLLM's whole configuration, of which tiers and specs get a part."""

    vllm: Any
    kv_cache: Any
    speed: Speed = field(default_factory=Speed)
    """How fast it computes."""


_vllm_engine: ContextVar[VllmEngine | None] = ContextVar("kvrail_vllm_engine", default=None)


@contextmanager
def of_vllm(vllm_config: Any, kv_cache_config: Any) -> Iterator[VllmEngine]:
    """Tiers and specs made meanwhile belong to this engine."""
    engine = VllmEngine(vllm_config, kv_cache_config)
    token = _vllm_engine.set(engine)
    try:
        yield engine
    finally:
        _vllm_engine.reset(token)


def vllm_engine(config: Any, named: Mapping[str, Any]) -> VllmEngine | None:
    """The engine that a tier or spec is being made for, where kvrail's connector makes it."""
    engine = _vllm_engine.get()
    if engine is None and not named:
        log.warning(
            "kvrail for vllm: OffloadingConnector does not hand over the revision, quantization "
            "and rotary embedding of %s: use KvrailOffloadingConnector, or name them in `identity`",
            config.model.name,
        )
    return engine


def vllm_rows(
    config: Any, engine: VllmEngine | None, row_bytes: int, named: Mapping[str, Any]
) -> dict[str, Any]:
    """Of rows of vLLM's primary tier: chunks of all workers. Its scheduler alone makes them."""
    fields = _vllm(config, "rows of the primary tier", named)
    # Pages of the canonical layout are the same under any split into ranks, as vLLM certifies.
    anyhow = config.canonical_layout and config.parallel.is_parallelism_agnostic
    fields["split"] = "any" if anyhow or config.replicated_layout else _vllm_split(config)
    fields["row_bytes"] = row_bytes
    if engine is not None:
        fields |= _vllm_model(engine.vllm) | _vllm_layers(engine.kv_cache)
        fields["rotary"] = _rotary(engine.vllm.model_config.hf_text_config)
    return fields


def vllm_pages(
    config: Any, engine: VllmEngine | None, rank: int | None, named: Mapping[str, Any]
) -> dict[str, Any]:
    """Of pages of the GPU of one worker, or of all workers where those have the same bytes. The
    scheduler and the worker each make them, and get the same: so nothing here comes from what
    a model changes when it is loaded, and nothing of layers where the scheduler has only those
    of the first stage of a pipeline."""
    fields = _vllm(config, "pages of the GPU, block after block", named)
    fields["split"] = [_vllm_split(config), "any" if rank is None else rank]
    if engine is not None:
        fields |= _vllm_model(engine.vllm)
    if config.parallel.pp_size > 1:
        fields["groups"] = [it.tokens_per_block for it in config.groups]
        fields["layer_partition"] = _vllm_env("VLLM_PP_LAYER_PARTITION")
        return fields
    fields["bytes_per_block"] = config.worker_kv_bytes_per_block
    return fields if engine is None else fields | _vllm_layers(engine.kv_cache)


def _vllm(config: Any, form: str, named: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "engine": "vllm",
        "format": 2,
        "named": named,
        "form": form,
        "model_name": config.model.name,
        "dtype": str(config.model.dtype),
        "kv_cache_layout": config.kv_cache_layout,
        "canonical_layout": config.canonical_layout,
        "replicated_layout": config.replicated_layout,
        "shuffled": _vllm_env("VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT"),
        "groups": [[it.tokens_per_block, it.group_id, *it.layer_names] for it in config.groups],
        "tokens_per_hash": config.cache.tokens_per_hash,
        "blocks_per_chunk": config.cache.blocks_per_chunk,
    }


def _vllm_split(config: Any) -> list[int]:
    return [getattr(config.parallel, f"{it}_size") for it in ("tp", "pp", "pcp", "dcp")]


def _vllm_model(vllm_config: Any) -> dict[str, Any]:
    """Of the model, as it was before a worker has loaded it."""
    model, cache, draft = (
        vllm_config.model_config,
        vllm_config.cache_config,
        vllm_config.speculative_config,
    )
    weights = model.model_weights or model.model
    load = vllm_config.load_config
    return {
        "weights": _weights(weights, model.revision, load.download_dir),
        "dummy_weights": model.seed if load.load_format == "dummy" else None,
        "code_revision": model.code_revision,
        "overrides": _plain(model.hf_overrides),
        "compute_dtype": str(model.dtype),
        "quantization": [model.quantization, _plain(model.quantization_config)],
        "heads": [model.get_total_num_kv_heads(), model.get_head_size(), model.use_mla],
        "long_rotary": _is_long(model.hf_text_config, model.max_model_len),
        "cache": [
            *(cache.cache_dtype, cache.kv_cache_dtype_skip_layers),
            *(cache.mamba_cache_dtype, cache.mamba_ssm_cache_dtype),
        ],
        "interleave": vllm_config.parallel_config.cp_kv_cache_interleave_size,
        "second_runner": vllm_config.use_v2_model_runner,
        "draft": None if draft is None or draft.method in WITHOUT_CACHE else _vllm_draft(draft),
    }


def _vllm_draft(draft: Any) -> list[Any]:
    return [draft.method, draft.model, draft.revision, draft.quantization, draft.kv_cache_dtype]


def _vllm_layers(kv_cache_config: Any) -> dict[str, Any]:
    """Of the layers: dtype and its storage, heads, head sizes, windows, padding, quantization."""
    specs = []
    for group in kv_cache_config.kv_cache_groups:
        # The scheduler has one layer of those that vLLM calls uniform.
        each = getattr(group.kv_cache_spec, "kv_cache_specs", {"": group.kv_cache_spec})
        specs.append(repr(next(iter(each.values()))))
    return {"layers": specs, "replicas": getattr(kv_cache_config, "kv_tp_replicas", 1)}


def _vllm_env(variable: str) -> Any:
    from vllm import envs

    return getattr(envs, variable, None) or None


# SGLang.

SGLANG_SETTINGS = (
    *("dtype", "kv_cache_dtype", "qsa_indexer_dtype", "mamba_ssm_dtype", "quantization"),
    *("quantization_param_path", "modelopt_quant", "rl_quant_profile", "json_model_override_args"),
    *("model_checksum", "weight_version", "attention_backend", "enable_page_major_kv_layout"),
    *("speculative_algorithm", "speculative_draft_model_path", "speculative_draft_model_revision"),
    *("speculative_draft_model_quantization", "speculative_draft_kv_cache_dtype"),
    *("enable_encoder_swa_bounded_replay", "enable_decoder_swa_bounded_replay"),
)
"""Arguments of SGLang's server that change the bytes of pages."""

SGLANG_POOL = (
    *("dtype", "layout", "page_size", "layer_num", "start_layer", "end_layer"),
    *("head_num", "head_dim", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim", "kv_cache_dim"),
    *("indexer_dtype", "temporal_dtype", "conv_dtype", "head_group_num", "storage_format_tag"),
)
"""Attributes of SGLang's host pools that define the meaning of their bytes."""


def sglang(config: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """Of all pages of one rank; :func:`sglang_pool` has what pools add. K and V of MLA are the same
    on each rank of tensor parallelism, and are shared."""
    split = {} if config.is_mla_model else {"tp": f"{config.tp_rank} of {config.tp_size}"}
    fields = split | {
        "engine": "sglang",
        "format": 2,
        "named": named,
        "model_name": config.model_name,
        "mla": config.is_mla_model,
        "pp": f"{config.pp_rank} of {config.pp_size}",
        "cp": f"{config.attn_cp_rank} of {config.attn_cp_size}",
        "dcp": f"{config.dcp_rank} of {config.dcp_size}",
        "logical_page_size": config.logical_page_size,
    }
    if (told := _sglang_settings()) is None:
        if not named:
            log.warning(
                "kvrail for sglang: no server's arguments are there: name dtype, quantization and "
                "revision of %s in `identity`",
                config.model_name,
            )
        return fields
    where = (told.pop("model_path"), told.pop("revision"), told.pop("download_dir"))
    fields["weights"] = _weights(*where)
    fields["dummy_weights"] = told.pop("load_format") == "dummy" or None
    return fields | {key: _plain(value) for key, value in told.items()}


def sglang_pool(kind: str, pool: Any, rank: str, lengths: Sequence[int], known: bool) -> str:
    """Of a host pool's pages. Its dtype is the one of its memory: 8-bit floats of any kind are
    bytes there. Where the identity does not name the kind (`known`), no other engine may find
    them."""
    told = [kind, type(pool).__name__, rank, list(lengths)]
    told += [str(getattr(pool, field, None)) for field in SGLANG_POOL]
    for info in getattr(pool, "_buffer_infos", ()):
        parts = (getattr(info, "buffers", None), getattr(info, "scales", None))
        told += [str(getattr(part, "layout", None)) for part in parts]
    if not known and _is_bytes(pool):
        log.warning(
            "kvrail for sglang: pages of the pool %s are of %s, and which 8-bit floats these are "
            'is not known: only this engine finds them; add "identity": {"kv_cache_dtype": "..."}',
            kind,
            pool.dtype,
        )
        told.append(uuid.uuid4().hex)
    return _digest(str(told), 8)


def sglang_knows_floats(fields: Mapping[str, Any]) -> bool:
    """Whether an identity names the kind of 8-bit floats."""
    return "kv_cache_dtype" in fields or "kv_cache_dtype" in fields["named"]


def _is_bytes(pool: Any) -> bool:
    return str(getattr(pool, "dtype", "")).removeprefix("torch.") in ("uint8", "int8")


def _sglang_settings() -> dict[str, Any] | None:
    """The settings in effect in this process; None where no server runs."""
    from sglang.srt.runtime_context import get_context

    context = get_context()
    wanted = (*SGLANG_SETTINGS, "model_path", "revision", "download_dir", "load_format")
    if not context.is_config_namespace_published("model"):
        return None
    return {name: context.config_leaf(name) for name in wanted}


# LMCache.


def lmcache(named: Mapping[str, Any]) -> dict[str, Any]:
    """LMCache's adapters have no model: names of objects have what LMCache's keys have."""
    return {"engine": "lmcache", "format": 2, "named": named}


def lmcache_form(shapes: Iterable[Sequence[int]], dtypes: Iterable[object]) -> str:
    """Of an object: its tensors' dtypes and shapes. LMCache's key has neither. One row of bytes is
    an object that LMCache has serialized."""
    each = [
        (str(dtype).removeprefix("torch."), "x".join(map(str, shape)))
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    if not each or (len(each) == 1 and each[0][0] == OPAQUE and "x" not in each[0][1]):
        return OPAQUE
    return ",".join(f"{dtype}[{shape}]" for dtype, shape in each)


# FlexKV.


def flexkv(named: str) -> dict[str, Any]:
    """FlexKV's keys are hashes of tokens, and its worker has no model: the user names all of
    it."""
    return {"engine": "flexkv", "format": 1, "model_name": named}


# What engines have in common.


def _weights(model: str, revision: str | None, cache: str | None) -> list[Any]:
    """The weights: of a folder its config.json, of a hub's the local commit. Weights that are
    replaced in place under the same config.json need a name."""
    told: list[Any] = [model, revision]
    file = Path(model) / "config.json"
    if file.is_file():
        config = {key: it for key, it in json.loads(file.read_text()).items() if key not in NOISE}
        return [*told, _digest(_text(config), 16)]
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(model, "config.json", cache_dir=cache, revision=revision)
        found = found or try_to_load_from_cache(model, "config.json", revision=revision)
    except ValueError:  # No name of a hub's, as s3://...
        return told
    return [*told, Path(found).parent.name] if isinstance(found, str) else told


def _rotary(config: Any) -> dict[str, Any]:
    """The rotary embedding of a model's configuration."""
    whole = config.to_dict()
    return {key: whole[key] for key in sorted(whole) if "rope" in key or "rotary" in key}


def _is_long(config: Any, max_model_len: int) -> bool | None:
    """Whether a "longrope" model takes its long factors, which it does for all tokens as soon as
    requests may be longer than those that it was trained with first."""
    whole = _rotary(config)
    rotary = whole.get("rope_parameters") or whole.get("rope_scaling") or {}
    original = rotary.get("original_max_position_embeddings") or getattr(
        config, "original_max_position_embeddings", None
    )
    if original is None or "long_factor" not in rotary:
        return None
    return bool(max_model_len > original)


def _plain(value: Any) -> Any:
    """The value as JSON has it. Of a function the name, since its address is another each time."""
    if callable(value):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, Mapping):
        return {str(key): _plain(it) for key, it in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(it) for it in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _short(value: Any) -> Any:
    text = _text(value)
    return value if len(text) <= FIELD_BYTES else f"blake2b {_digest(text, 16)}"


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _digest(text: str, nbytes: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=nbytes).hexdigest()
