"""Metrics and log lines: subscribers of the domain's events."""

from anbar.adapters.telemetry.request_log import EventLog
from anbar.adapters.telemetry.router_metrics import RouterMetrics

__all__ = ["EventLog", "RouterMetrics"]
