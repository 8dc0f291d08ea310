"""Metrics and log lines, fed by domain events."""
