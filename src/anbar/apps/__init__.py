"""Composition roots: the only code that knows concrete classes."""
