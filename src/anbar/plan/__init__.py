"""Arithmetic of KV and its break-even: pure, used by doctor, the advisor and the simulator."""

from anbar.plan.kv_size import KvSize, kv_bytes_per_token, kv_size

__all__ = ["KvSize", "kv_bytes_per_token", "kv_size"]
