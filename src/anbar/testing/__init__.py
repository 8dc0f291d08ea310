"""Fakes and contract suites, shipped with the package."""
