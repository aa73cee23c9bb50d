"""What vLLM's connector of kvrail shares with tiers, and with the worker of its spec; without
vLLM's newest modules, since the connector also serves tiers under older releases."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any


class ReportsPages(ABC):
    """A worker that reports a failed load by its pages."""

    reports_pages = False
    """Whether a failed load is no failed job: vLLM's own connector stops the engine at one."""

    @abstractmethod
    def take_failed_pages(self) -> set[int]:
        """Pages of loads that were not filled since the last call."""


class ExpectsLoads(ABC):
    """A manager that has blocks come closer which a request will load."""

    @abstractmethod
    def expect(self, req_context: Any, keys: Collection[bytes]) -> None:
        """These blocks of a request."""


class LosesPatience(ABC):
    """A tier with loads that are not worth a wait, although their memory is not vLLM's yet."""

    @abstractmethod
    def is_late(self, key: bytes) -> bool:
        """Whether this chunk is one of those."""


def lose_patience(manager: Any) -> None:
    """Has a manager of tiers take chunks for missing that one of its tiers has no patience for. To
    vLLM they are on their way, and a request waits for them; their rows stay reserved until the
    tier reports their load."""
    tiers = [it for it in getattr(manager, "secondary_tiers", ()) if isinstance(it, LosesPatience)]
    if not tiers:
        return
    from vllm.v1.kv_offload.base import LookupResult

    lookup = manager.lookup

    def patient(key: Any, *request: Any, **more: Any) -> Any:
        found = lookup(key, *request, **more)
        waits = found is LookupResult.HIT_PENDING and any(it.is_late(key) for it in tiers)
        return LookupResult.MISS if waits else found

    manager.lookup = patient


class GivesUpLoads:
    """A manager that gives up blocks whose load has failed, for the request that asked for them."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        """Requests with pages that a worker could not fill: their loads end with the last worker's
        part, which may be a step later."""
