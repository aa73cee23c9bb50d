"""The sidecar of `bench/paged.py`, where its volumes cannot be made: it needs no GPU for that."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "bench" / "paged.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    spec = importlib.util.spec_from_file_location("bench_paged", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_volume_that_cannot_be_made_is_explained(script, tmp_path):
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.mkdir()
    with pytest.raises(SystemExit, match=r"missing does not exist"):
        script.Sidecar(tmp_path, [there, missing], 1 << 20, "1MiB")
    assert list(there.iterdir()) == []


def test_a_file_that_was_there_before_is_left_and_named(script, tmp_path):
    other = tmp_path / "kvrail-kv.img"
    other.write_bytes(b"other bytes" * 1000)
    with pytest.raises(SystemExit, match=r"kvrail-kv\.img"):
        script.Sidecar(tmp_path, [tmp_path], 1 << 20, "1MiB")
    assert [it for it in tmp_path.iterdir() if it.suffix == ".img"] == [other]
    assert other.read_bytes() == b"other bytes" * 1000
