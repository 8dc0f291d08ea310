"""vLLM: launching, KV events, metrics, and the classes that vLLM loads."""
