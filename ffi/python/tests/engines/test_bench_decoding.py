"""`Decoding` of `bench/model`, over an engine that makes a token at each step."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")


class Engine:
    def __init__(self, steps: int) -> None:
        self.left, self.name = steps, ""

    def add_request(self, name: str, *_: object) -> None:
        self.name = name

    def has_unfinished_requests(self) -> bool:
        return self.left > 0

    def step(self) -> list[SimpleNamespace]:
        self.left -= 1
        return [SimpleNamespace(request_id=self.name, outputs=[1])]


def test_a_stream_that_ends_too_early_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "WARNING")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[4] / "bench" / "model"))
    kept = sys.modules.copy()
    import engine

    decoding = engine.Decoding(Engine(40), [[1]], 3)
    assert len(decoding.between_s(10)) == 10
    with pytest.raises(RuntimeError, match="have ended"):
        decoding.between_s(100)
    for name in ("engine", "arms", "asked", "processes", "weights"):
        if name not in kept:
            del sys.modules[name]
