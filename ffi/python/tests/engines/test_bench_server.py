"""What `bench/model/agents.py` gives to vLLM's server, to its real parser and tokenizer."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

MODEL = Path(__file__).parents[4] / "bench" / "model"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    monkeypatch.syspath_prepend(str(MODEL))
    names = {path.stem for path in MODEL.glob("*.py")}
    kept = {name: sys.modules.pop(name) for name in names & sys.modules.keys()}
    import agents
    import asked
    import vocabulary

    yield SimpleNamespace(agents=agents, asked=asked, vocabulary=vocabulary)
    for name in names & sys.modules.keys():
        del sys.modules[name]
    sys.modules.update(kept)


@pytest.mark.parametrize("arm", ["recompute", "fs", "tier", "direct", "latency"])
def test_vllm_takes_the_arguments(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arm: str
) -> None:
    common = pytest.importorskip("vllm.entrypoints.common.cli_args")
    import vllm.platforms
    from vllm.platforms.interface import UnspecifiedPlatform

    # Arguments of a server ask for a device, and this machine may have none.
    monkeypatch.setattr(UnspecifiedPlatform, "device_type", "cuda")
    monkeypatch.setattr(vllm.platforms, "_current_platform", UnspecifiedPlatform())
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    sessions = tmp_path / "sessions"
    sessions.write_text(json.dumps({"session_id": "a", "input_length": 50_000, "output_length": 9}))
    options = bench.agents.arguments([str(tmp_path), "disk", "--sessions", str(sessions)])
    place = bench.asked.Place(arm, "/socket", "/files", 256, 1 << 30)
    words = bench.agents.server_words(options, tmp_path, 8100, place)
    parsed: Any = common.make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    assert parsed.max_model_len == 58_201 and parsed.served_model_name == ["kvrail/agents"]
    assert (parsed.kv_transfer_config is not None) == (arm != "recompute")


def test_letters_are_tokens_and_come_back_as_the_same(
    bench: SimpleNamespace, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    of, text = bench.vocabulary, "It was,  then.\n\n(Not) w{0}rds_ ~!"
    folder = of.model_folder(tmp_path, MODEL / "shapes" / "llama8b", "some/name")
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == len(of.IDS)
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    ids = tokenizer.encode(text)
    assert len(ids) == len(text) and tokenizer.decode(ids) == text
    every = list(of.IDS) * 2
    assert tokenizer.encode(tokenizer.decode(every)) == every
    message = [{"role": "user", "content": text}]
    assert tokenizer.apply_chat_template(message, tokenize=False) == f"{text}\n"
