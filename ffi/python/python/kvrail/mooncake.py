"""kvrail behind the Python interface of Mooncake's store, for FlexKV, whose worker for that store
is its only one with keys. FlexKV is left as it is: it imports `mooncake.store`, which is found in
the folder that `python -m kvrail.mooncake` prints.

    PYTHONPATH=$(python -m kvrail.mooncake) FLEXKV_USE_MOONCAKE_STORE_BACKEND=1 \\
      FLEXKV_MOONCAKE_STORE_CONFIG_PATH=kvrail.json ...

    {"local_hostname": "llama-3-70b bf16 tp 0 of 1", "metadata_server": "/run/kvrail/kvrail.sock",
     "device_name": "kv", "master_addr": "127.0.0.1", "master_metrics_port": 9464,
     "protocol": "tcp", "global_segment_size": 1,
     "enable_ssd_offload": false, "ssd_offload_path": null}
"""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from kvrail import _forks, _identity
from kvrail._lane import STORED, Blocks, Ended, Lane, Work
from kvrail._tier import Link

ALIAS = Path(__file__).with_name("as_mooncake")
"""The folder with a `mooncake.store` that is this module."""

STORE = "kv"
"""The name of the sidecar's store, if `device_name` is empty."""

DEPTH = 128
"""Blocks in flight."""

TIMEOUT_S = 10.0
"""Longest wait for puts. A get that a drive holds lasts until the drive answers: it may still write
into the engine's memory."""

FAILED, MISSED = -1, -704
"""Results of Mooncake's calls: something failed, and its code for an object that is not there."""

log = logging.getLogger("kvrail")


class MooncakeDistributedStore:
    """The calls that FlexKV makes of Mooncake's store. For any thread."""

    def __init__(self) -> None:
        self._link: Link | None = None
        self._lock = _forks.lock()
        self._lanes: dict[Work, Lane[None]] = {}

    def setup(
        self,
        local_hostname: str,
        metadata_server: str,
        global_segment_size: int = 0,
        local_buffer_size: int = 0,
        protocol: str = "",
        device_name: str = "",
        *_: object,
    ) -> int:
        """Attaches. Errors of the configuration are raised here, and only here.

        :param local_hostname: what makes bytes incompatible beyond FlexKV's keys, which are hashes
            of tokens: the model, its revision and quantization, dtype, layout, tokens of a block,
            rank and size of each parallelism.
        :param metadata_server: the path of the sidecar's socket.
        :param device_name: the name of its store.
        """
        if not local_hostname:
            raise ValueError(
                'local_hostname is "": name there what the blocks are of, as '
                '"llama-3-70b bf16 tp 0 of 1"; FlexKV\'s keys lack it'
            )
        self._link = Link(
            "flexkv",
            socket=metadata_server.removeprefix("unix:"),
            store=device_name or STORE,
            identity=_identity.flexkv(local_hostname),
        )
        self._lanes = {"put": Lane(self._link, DEPTH), "get": Lane(self._link, DEPTH)}
        return 0

    def register_buffer(self, pointer: int, size: int) -> int:
        """Nothing to do: the first block of it shows its kind."""
        return 0

    def unregister_buffer(self, pointer: int) -> int:
        return 0

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        """1 for a block that is there, and 0."""
        return [int(it) for it in self._attached().lookup(_names(keys))]

    _batch_exist = batch_is_exist

    def is_exist(self, key: str) -> int:
        return self.batch_is_exist([key])[0]

    def batch_put_from(
        self, keys: Sequence[str], pointers: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """0 for a block that is in the store."""
        end = self._move("put", Blocks(_names(keys), pointers, sizes))
        words = end.words if end is not None else ()
        return [0 if it in STORED else FAILED for it in words] or [FAILED] * len(keys)

    def batch_get_into(
        self, keys: Sequence[str], pointers: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """The bytes of a block that came. One of another length, or that is wrong, is missed."""
        end = self._move("get", Blocks(_names(keys), pointers, sizes))
        if end is None:
            return [FAILED] * len(keys)
        return [size if ok else MISSED for ok, size in zip(end.ok, sizes, strict=True)]

    def put(self, key: str, value: bytes) -> int:
        """0 if it is in the store: FlexKV tries the store so when it starts."""
        (name,), nothing = _names([key]), "FAILED"
        word = self._attached().call(
            lambda space: space.put(name, value, replace=True, timeout=TIMEOUT_S), nothing
        )
        return 0 if word in STORED else FAILED

    def get(self, key: str) -> bytes:
        """The block, empty if it is not there."""
        (name,) = _names([key])
        return self._attached().call(lambda space: space.get(name, timeout=TIMEOUT_S), None) or b""

    def remove_all(self) -> int:
        """Makes all blocks of this identity unreachable."""
        self._attached().call(lambda space: space.clear(), None)
        return 0

    def status(self) -> dict[str, object]:
        """Whether it is attached, and whether blocks are copied."""
        return self._attached().status()

    def close(self) -> int:
        """Ends the session; waits some seconds for requests in flight."""
        self._attached().close()
        return 0

    def _attached(self) -> Link:
        if self._link is None:
            raise RuntimeError("setup() comes first")
        return self._link

    def _move(self, work: Work, blocks: Blocks) -> Ended[None] | None:
        """The end of these blocks; none if a drive has not taken puts in time."""
        with self._lock:
            lane = self._lanes[work]
            if lane.pending and not lane.poll():
                return None
            lane.begin(work, None, blocks)
            deadline = time.monotonic() + TIMEOUT_S
            while not (ended := lane.poll()):
                if work == "put" and time.monotonic() > deadline:
                    log.warning("kvrail for flexkv: a put takes more than %g s", TIMEOUT_S)
                    return None
                lane.wait(1.0)
            return ended[0]


def _names(keys: Sequence[str]) -> list[bytes]:
    return [key.encode() for key in keys]


if __name__ == "__main__":
    print(ALIAS)
