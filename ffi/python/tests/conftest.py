"""One sidecar for all tests that leave it alive; a module's own fixture `sidecar` replaces it."""

from collections.abc import Iterator
from contextlib import suppress

import kvrail
import pytest
from kvrail import _tier


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines that run tests are busy: an answer that is late is no sidecar that is stopped."""
    monkeypatch.setattr(_tier, "LOOKUP_S", 1.0)


@pytest.fixture(scope="session")
def sidecar() -> Iterator[kvrail.Sidecar]:
    with kvrail.serve("64MiB", members=2) as sidecar:
        yield sidecar


@pytest.fixture
def client(sidecar: kvrail.Sidecar) -> Iterator[kvrail.Client]:
    with sidecar.attach(name="pytest") as client:
        yield client


@pytest.fixture
def space(
    client: kvrail.Client, request: pytest.FixtureRequest
) -> Iterator[kvrail.Namespace]:
    """A namespace for one test, of the module's `IDENTITY` where it has one."""
    store, name = client.store("kv"), request.node.name[:64]
    yield store.namespace(name, getattr(request.module, "IDENTITY", {"model": "m"}))
    with suppress(kvrail.ClosedError):  # a test may close its client
        store.remove(name)


@pytest.fixture
def volume(client: kvrail.Client) -> kvrail.Volume:
    return client.volume("kv")


@pytest.fixture
def arena(client: kvrail.Client) -> kvrail.Arena:
    return client.create_arena(4 << 20, pages="base")
