"""One sidecar for all tests that leave it alive."""

from collections.abc import Iterator

import kvrail
import pytest


@pytest.fixture(scope="session")
def sidecar() -> Iterator[kvrail.Sidecar]:
    with kvrail.serve("64MiB", members=2) as sidecar:
        yield sidecar


@pytest.fixture
def client(sidecar: kvrail.Sidecar) -> Iterator[kvrail.Client]:
    with sidecar.attach(name="pytest") as client:
        yield client


@pytest.fixture
def volume(client: kvrail.Client) -> kvrail.Volume:
    return client.volume("kv")


@pytest.fixture
def arena(client: kvrail.Client) -> kvrail.Arena:
    return client.create_arena(4 << 20, pages="base")
