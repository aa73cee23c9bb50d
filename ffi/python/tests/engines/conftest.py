"""The adapters against the engines' real packages; `scripts/dev engines` runs them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from host import Host


@pytest.fixture
def host(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Host]:
    """A store, and a raw volume of `RAW` bytes where a module has that."""
    host = Host(tmp_path, "512MiB", raw=getattr(request.module, "RAW", None))
    host.start()
    yield host
    host.kill()
