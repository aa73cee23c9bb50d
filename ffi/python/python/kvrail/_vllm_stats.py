"""What kvrail's tier and spec have among vLLM's own metrics. vLLM 0.30 asks for none."""

from typing import Any

from kvrail._vllm_loads import Loads

DECLINED = {
    "declined_prompts": (
        "vllm:kv_offload_kvrail_declined_prompts",
        "Number of prompts of which kvrail left stored chunks to be computed, because that is "
        "sooner.",
    ),
    "declined_blocks": (
        "vllm:kv_offload_kvrail_declined_chunks",
        "Number of stored chunks that kvrail left to be computed, because that is sooner.",
    ),
}


def definitions() -> dict[str, Any]:
    """For vLLM's Prometheus endpoint."""
    from vllm.v1.kv_offload.base import OffloadingCounterMetadata

    return {name: OffloadingCounterMetadata(documentation=text) for name, text in DECLINED.values()}


class Stats:
    """What was counted since vLLM asked last."""

    def __init__(self, loads: Loads) -> None:
        self._loads = loads
        self._taken = dict.fromkeys(DECLINED, 0)

    def take(self) -> Any:
        """None where nothing was counted."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
            OffloadingConnectorStats,
        )

        counted, stats = self._loads.declined, OffloadingConnectorStats()
        for key, (name, _) in DECLINED.items():
            if more := counted[key] - self._taken[key]:
                stats.increase_counter(name, more)
        self._taken = counted
        return None if stats.is_empty() else stats
