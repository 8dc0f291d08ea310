"""Stores of the shared tier."""
