"""The adapters against the engines' real packages; `scripts/dev engines` runs them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import kvrail
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))


@pytest.fixture
def sidecar() -> Iterator[kvrail.Sidecar]:
    settings = {"memory.unsealed_imports": "accept"}
    with kvrail.serve("512MiB", directory="/var/tmp", settings=settings) as sidecar:
        yield sidecar
