"""Arithmetic of KV sizes and break-even. Pure: no clock, no I/O."""
