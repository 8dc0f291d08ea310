"""The discrete-event engine model (not yet part of a release)."""
