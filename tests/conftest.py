"""For all tests: which examples Hypothesis tries, and that none of them is timed."""

import os

from hypothesis import HealthCheck, settings

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A loaded machine may stall any example for seconds."""

settings.register_profile("same", UNTIMED, derandomize=True)
settings.register_profile("explore", UNTIMED, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
