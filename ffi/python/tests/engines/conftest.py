"""The adapters against the engines' real packages; `scripts/dev engines` runs them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from host import Host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path, "512MiB")
    host.start()
    yield host
    host.kill()
