"""KV blocks: the free list, the prefix tree, and the manager of both."""

from octavo.cache.kv_manager import BlockTable, KVManager

__all__ = ["BlockTable", "KVManager"]
