"""The twelve situations that people have reported: each gets its verdict, for the right reason."""

from dataclasses import replace

import pytest
from benchmarks.validation import user_cases
from benchmarks.validation.user_cases import CASES, judge

from anbar.plan.facts import Facts
from anbar.plan.options import Options
from anbar.plan.reasons import Choice, decide


@pytest.mark.parametrize("name", CASES)
def test_a_reported_situation(name: str) -> None:
    """Verdict, main reason, and the figure that the report turns on."""
    case = CASES[name]
    choice, reasons = decide(Facts(Options(case.workload, case.stack)))
    assert (choice, reasons[0].kind) == (case.choice, case.kind), reasons
    assert case.words in reasons[0].text


def test_a_case_that_fails_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another verdict, or another figure in the right one, does not agree."""
    name, other = "5 prompts of 47 tokens", "6 one prompt again and again"
    wrong = replace(CASES[name], words="less than two chunks")
    monkeypatch.setattr(
        user_cases, "CASES", {name: wrong, other: replace(CASES[other], choice=Choice.NATIVE)}
    )
    judged = list(judge())
    assert [one.agrees for one in judged] == [False, False]
    assert (judged[1].expected, judged[1].got) == ("native", "neither")
