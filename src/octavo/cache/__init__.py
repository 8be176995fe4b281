"""KV pages: the free list, the prefix tree, and the one manager that touches both."""

from octavo.cache.kv_manager import KVManager, Pages

__all__ = ["KVManager", "Pages"]
