"""`Decoding` and `Playing` of `bench/model`, over engines that make a token at each step."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

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


class Many:
    """Each request makes its tokens one after the other, in steps of 10 ms."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}

    def add_request(self, name: str, _: object, sampling: SimpleNamespace) -> None:
        self.left[name] = sampling.max_tokens

    def step(self) -> list[SimpleNamespace]:
        assert self.left
        time.sleep(0.01)
        self.left = {name: left - 1 for name, left in self.left.items()}
        outputs = [
            SimpleNamespace(
                request_id=name,
                outputs=[SimpleNamespace(token_ids=[7])],
                num_cached_tokens=64,
                finished=left == 0,
            )
            for name, left in self.left.items()
        ]
        self.left = {name: left for name, left in self.left.items() if left}
        return outputs


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "WARNING")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[4] / "bench" / "model"))
    kept = sys.modules.copy()
    import engine

    yield engine
    for name in ("engine", "arms", "asked", "processes", "weights"):
        if name not in kept:
            del sys.modules[name]


def test_a_stream_that_ends_too_early_is_an_error(engine: ModuleType) -> None:
    decoding = engine.Decoding(Engine(40), [[1]], 3)
    assert len(decoding.between_s(10)) == 10
    with pytest.raises(RuntimeError, match="have ended"):
        decoding.between_s(100)


def test_requests_come_at_their_times_and_count_from_these(engine: ModuleType) -> None:
    playing = engine.Playing(Many())
    took = playing.play([(0.0, [1], 3), (0.005, [2], 2), (0.3, [3], 4)])
    assert took >= 0.34
    assert (playing.made_tokens, playing.cached_tokens) == (9, 3 * 64)
    first, second, third = playing.ttft_s.values()
    assert first >= 0.01 and third >= 0.01
    assert second >= 0.015, "it came while a step was under way"
