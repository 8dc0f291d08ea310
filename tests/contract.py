"""The engine contract in tests: a check is skipped exactly where it is expected to be."""

from collections.abc import Collection

import pytest

from anbar.testing.engine_contract import Check, NotApplicable, Target


def hold(check: Check, target: Target, skipped: Collection[str] = ()) -> None:
    """Run a check. Those named in `skipped` must find that they do not apply, and no others may."""
    if check.__name__ not in skipped:
        check(target)
        return
    with pytest.raises(NotApplicable) as found:
        check(target)
    pytest.skip(str(found.value))
