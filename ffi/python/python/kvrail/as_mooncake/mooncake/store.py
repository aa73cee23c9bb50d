"""The names of `mooncake.store` that FlexKV uses."""

from kvrail.mooncake import MooncakeDistributedStore

__all__ = ["MooncakeDistributedStore"]
