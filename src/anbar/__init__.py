"""Anbar: a serving stack for vLLM whose KV cache can leave the GPU."""

__version__ = "0.1.0"
