"""A change of the bytes of objects is another name, as far as LMCache passes it: its own layouts
and metadata, over a store."""

from typing import Any

import pytest

pytest.importorskip("lmcache", reason="LMCache is not installed")

import torch  # noqa: E402
from host import Host  # noqa: E402
from kvrail.lmcache import L2Adapter  # noqa: E402
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey  # noqa: E402
from test_lmcache import layout_of, load, lookup, object_of, store  # noqa: E402

KEY: dict[str, Any] = {
    "chunk_hash": b"h" * 32,
    "model_name": "model",
    "kv_rank": ObjectKey.ComputeKVRank(1, 0, 1, 0),
}
SHAPES, DTYPES = [(2, 4, 16, 64)], [torch.bfloat16]

OTHERS: dict[str, dict[str, Any]] = {
    "e4m3": {"dtypes": [torch.float8_e4m3fn], "shapes": [(2, 4, 16, 128)]},
    "e5m2": {"dtypes": [torch.float8_e5m2], "shapes": [(2, 4, 16, 128)]},
    "bytes": {"dtypes": [torch.uint8], "shapes": [(2, 4, 16, 128)]},
    "dtype": {"dtypes": [torch.float16]},
    "layers": {"shapes": [(2, 8, 16, 32)]},
    "tokens": {"shapes": [(2, 4, 32, 32)]},
    "MLA": {"shapes": [(1, 8, 16, 64)]},
    "axes": {"shapes": [(4, 2, 16, 64)]},
    "two tensors": {"shapes": [(1, 4, 16, 64)] * 2, "dtypes": DTYPES * 2},
    "model": {"key": {"model_name": "other"}},
    "TP": {"key": {"kv_rank": ObjectKey.ComputeKVRank(2, 0, 2, 0)}},
    "another rank": {"key": {"kv_rank": ObjectKey.ComputeKVRank(2, 1, 2, 1)}},
    "group": {"key": {"object_group_id": 1}},
    "salt": {"key": {"cache_salt": "user"}},
    "tokens or adapter": {"key": {"chunk_hash": b"i" * 32}},
    "what a user names": {"parameters": {"identity": {"revision": 2}}},
}
"""Changes of bytes, certain or possible. All objects have the same length."""


class Server:
    """An adapter, and one object of it."""

    def __init__(self, host: Host, **row: Any) -> None:
        self._shapes, self._dtypes = row.get("shapes", SHAPES), row.get("dtypes", DTYPES)
        self._key = ObjectKey(**KEY | row.get("key", {}))
        self._adapter = L2Adapter({"socket": str(host.socket)} | row.get("parameters", {}))

    def store(self) -> None:
        assert int(store(self._adapter, [self._key], [object_of(self._shapes, self._dtypes)]))

    def found(self) -> list[bool]:
        """By a lookup, and by a load."""
        layout: MemoryLayoutDesc = layout_of(self._shapes, self._dtypes)
        layouts = {self._key.object_group_id: layout}
        there = lookup(self._adapter, [self._key], layouts)
        return there + load(self._adapter, [self._key], [object_of(self._shapes, self._dtypes)])

    def close(self) -> None:
        self._adapter.close()


@pytest.fixture(scope="module", params=[None, "team"])
def stored(request, lasting_host) -> dict[str, Any]:
    """A namespace with or without a name of the user's, with an object of one server."""
    server = Server(lasting_host, parameters={"namespace": request.param})
    server.store()
    assert server.found() == [True, True]
    server.close()
    return {"namespace": request.param}


@pytest.mark.parametrize("row", OTHERS.values(), ids=OTHERS)
def test_another_object_is_not_there(lasting_host, stored, row):
    server = Server(lasting_host, **row | {"parameters": row.get("parameters", {}) | stored})
    assert server.found() == [False, False]
    server.close()


def test_a_lookup_agrees_with_a_load(lasting_host):
    """Also when the server has had objects of another form under the same key."""
    server = Server(lasting_host, key={"chunk_hash": b"j" * 32})
    server.store()
    other = Server(lasting_host, key={"chunk_hash": b"j" * 32}, **OTHERS["layers"])
    other._adapter.close()
    other._adapter = server._adapter
    assert other.found() == [False, False] and server.found() == [True, True]
    server.close()


@pytest.mark.parametrize("parameters", [{}, {"depth": 8}])
def test_what_changes_no_byte_finds_it(lasting_host, stored, parameters):
    server = Server(lasting_host, parameters=parameters | stored)
    assert server.found() == [True, True]
    server.close()
