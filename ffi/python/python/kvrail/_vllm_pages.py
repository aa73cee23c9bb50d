"""What vLLM's connector of kvrail and the worker of its spec share; without vLLM's newest modules,
since the connector also serves tiers under older releases."""

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


class GivesUpLoads:
    """A manager that gives up blocks whose load has failed, for the request that asked for them."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        """Requests with pages that a worker could not fill: their loads end with the last worker's
        part, which may be a step later."""
