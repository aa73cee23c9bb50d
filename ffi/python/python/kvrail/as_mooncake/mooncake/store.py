"""What `mooncake.store` has for FlexKV."""

from kvrail.mooncake import MooncakeDistributedStore

__all__ = ["MooncakeDistributedStore"]
