"""vLLM's offloading connector that passes the whole configuration to kvrail, for the identity of
its namespaces, and that recomputes blocks which could not be loaded.

vLLM's own hands over neither revision nor quantization nor rotary embedding, and stops the engine
at a load that fails: a load of `KvrailOffloadingSpec` is a read of a drive.

    --kv-transfer-config '{"kv_connector": "KvrailOffloadingConnector", "kv_role": "kv_both",
      "kv_connector_module_path": "kvrail.vllm_connector", "kv_load_failure_policy": "recompute",
      "kv_connector_extra_config": {"spec_name": "KvrailOffloadingSpec",
        "spec_module_path": "kvrail.vllm", "socket": "/run/kvrail/kvrail.sock", "store": "kv"}}'
"""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

from kvrail import _identity
from kvrail._vllm_loads import Steps
from kvrail._vllm_hints import Hints
from kvrail._vllm_pages import ExpectsLoads, GivesUpLoads, ReportsPages, lose_patience

__all__ = ["KvrailOffloadingConnector"]


class KvrailOffloadingConnector(OffloadingConnector):
    """`OffloadingConnector`, which passes vLLM the blocks that a load has not filled, and kvrail's
    tiers and specs their engine."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        with _identity.of_vllm(vllm_config, kv_cache_config) as engine:
            super().__init__(vllm_config, role, kv_cache_config)
        self._steps = Steps(engine.speed)
        lose_patience(getattr(self.connector_scheduler, "manager", None))

    def on_new_request(self, request: Any) -> None:
        super().on_new_request(request)
        self._steps.add(request.request_id)
        # vLLM names a request's blocks when it may be scheduled: behind others that is late.
        scheduler = self.connector_scheduler
        manager = getattr(scheduler, "manager", None)
        state = getattr(scheduler, "_req_status", {}).get(request.request_id)
        if isinstance(manager, ExpectsLoads) and state and Hints.of(state.req_context).expects:
            state.update_offload_keys()
            context = state.req_context
            manager.expect(context, list(context._offload_key_positions))

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        meta = super().build_connector_meta(scheduler_output)
        self._steps.begin(scheduler_output)
        return meta

    def get_kv_connector_stats(self) -> Any:
        # The scheduler asks once for each output that has come; a worker has no steps.
        self._steps.end()
        return super().get_kv_connector_stats()

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        super().register_kv_caches(kv_caches)
        assert self.connector_worker is not None
        if (worker := self._pages_worker()) is not None:
            worker.reports_pages = True

    def get_block_ids_with_load_errors(self) -> set[int]:
        worker = self._pages_worker()
        return set() if worker is None else worker.take_failed_pages()

    def update_connector_output(self, connector_output: Any) -> None:
        # vLLM does not pass a manager that a load has failed, and the request looks up again.
        scheduler = self.connector_scheduler
        manager = getattr(scheduler, "manager", None)
        if connector_output.invalid_block_ids and isinstance(manager, GivesUpLoads):
            meta = connector_output.kv_connector_worker_meta
            ended = (scheduler._jobs.get(job) for job in getattr(meta, "completed_jobs", ()))
            manager.failing.update(it.req_id for it in ended if it and not it.is_store)
        super().update_connector_output(connector_output)

    def _pages_worker(self) -> ReportsPages | None:
        """The worker of `KvrailOffloadingSpec`; none in the scheduler's half."""
        worker = self.connector_worker.worker if self.connector_worker is not None else None
        return worker if isinstance(worker, ReportsPages) else None
