"""vLLM's offloading connector that recomputes blocks which could not be loaded.

vLLM's own stops the engine at a load that fails: with `KvrailOffloadingSpec`, where a load is a
read of a drive, use this one.

    --kv-transfer-config '{"kv_connector": "KvrailOffloadingConnector", "kv_role": "kv_both",
      "kv_connector_module_path": "kvrail.vllm_connector", "kv_load_failure_policy": "recompute",
      "kv_connector_extra_config": {"spec_name": "KvrailOffloadingSpec",
        "spec_module_path": "kvrail.vllm", "socket": "/run/kvrail/kvrail.sock", "store": "kv"}}'
"""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

__all__ = ["KvrailOffloadingConnector"]


class KvrailOffloadingConnector(OffloadingConnector):
    """`OffloadingConnector`, which tells vLLM the blocks that a load has not filled."""

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        super().register_kv_caches(kv_caches)
        assert self.connector_worker is not None
        if hasattr(self.connector_worker.worker, "tells_pages"):
            self.connector_worker.worker.tells_pages = True

    def get_block_ids_with_load_errors(self) -> set[int]:
        worker: Any = getattr(self.connector_worker, "worker", None)
        return worker.take_failed_pages() if hasattr(worker, "take_failed_pages") else set()
