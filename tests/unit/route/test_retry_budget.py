"""The budget of retries, against a list of everything that happened."""

from hypothesis import given
from hypothesis import strategies as st

from anbar.route.retry_budget import RetryBudget, RetryConfig

CONFIG = RetryConfig(share=0.5, floor=2, window_s=10.0)


@given(st.lists(st.tuples(st.integers(0, 25), st.booleans()), max_size=200))
def test_retries_are_a_share_of_the_window(steps: list[tuple[int, bool]]) -> None:
    """Whatever comes when: a retry is allowed exactly while retries in the window's ten parts are fewer than
    the floor and the share of its requests."""
    budget, now_s = RetryBudget(CONFIG), 0.0
    requests: list[int] = []
    retries: list[int] = []
    for tenths, is_request in steps:
        now_s += tenths * 0.4
        slot = int(now_s)
        recent = [sum(slot - 10 < at for at in events) for events in (requests, retries)]
        allowed = recent[1] + 1 <= 2 + 0.5 * recent[0]
        assert budget.allows(now_s) is allowed
        if is_request:
            budget.request(now_s)
            requests.append(slot)
        elif allowed:
            budget.spend(now_s)
            retries.append(slot)


def test_outage_is_no_storm() -> None:
    """A thousand requests a second, each of which wants a retry: a fifth gets one, after the floor."""
    budget = RetryBudget(RetryConfig())
    num_retries = 0
    for number in range(10_000):
        now_s = number / 1000
        budget.request(now_s)
        if budget.allows(now_s):
            budget.spend(now_s)
            num_retries += 1
    assert num_retries == 0.2 * 10_000 + 10
