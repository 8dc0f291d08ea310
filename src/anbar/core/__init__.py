"""Frozen values shared by every part: ids, block chains, KV events, fleet views, costs, errors."""
