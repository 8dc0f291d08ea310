"""Routing policies: filter, score, pick; the prefix index. Pure: no clock, no I/O."""
