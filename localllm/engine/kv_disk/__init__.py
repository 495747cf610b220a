"""Pages of the KV cache on disk, for prompts that begin alike later; it knows neither steps nor requests."""

from localllm.engine.kv_disk.settings import DiskSettings
from localllm.engine.kv_disk.tier import DiskTier, ReadPage

__all__ = ["DiskSettings", "DiskTier", "ReadPage"]
