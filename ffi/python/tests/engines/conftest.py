"""The adapters against the engines' real packages; `scripts/dev engines` runs them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from host import Host
from kvrail import _lane


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], list[int]]]:
    """Places in chains of the blocks that adapters put, put by put."""
    seen: list[tuple[list[str], list[int]]] = []
    submit = _lane._submit

    def record(queue: Any, session: Any, group: Any) -> int:
        places = group.blocks.places
        if group.work == "put":
            seen.append(([], []) if places is None else (list(places.chains), list(places.depths)))
        return submit(queue, session, group)

    monkeypatch.setattr(_lane, "_submit", record)
    return seen


@pytest.fixture
def host(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Host]:
    """A store, a raw volume of `RAW` bytes where a module has that, and a memory tier where a test
    is marked for it."""
    tier = request.node.get_closest_marker("memory_tier")
    host = Host(
        tmp_path,
        "512MiB",
        raw=getattr(request.module, "RAW", None),
        memory_tier=None if tier is None else tier.args[0],
    )
    host.start()
    yield host
    host.kill()


@pytest.fixture(scope="module")
def lasting_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A store that all tests of a module share, with room for what they put."""
    host = Host(tmp_path_factory.mktemp("host"), "1GiB")
    host.start()
    yield host
    host.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model, which tests of one module write again."""
    return tmp_path_factory.mktemp("model")
