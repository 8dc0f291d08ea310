"""The machine's clock, for whoever joins parts that take one (core and policies may not look at it)."""

import time


class SystemClock:
    """The machine's monotonic clock, as `anbar.core.clock.Clock`."""

    now_s = staticmethod(time.monotonic)
