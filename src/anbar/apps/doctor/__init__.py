"""`anbar doctor`: what stands in the way of a configuration on this machine, and what to do about it."""

from anbar.apps.doctor.finding import Finding, Level
from anbar.apps.doctor.run import diagnose

__all__ = ["Finding", "Level", "diagnose"]
