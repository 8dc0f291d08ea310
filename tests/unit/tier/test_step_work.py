"""What a step computes, from what vLLM's scheduler says of it."""

from dataclasses import dataclass, field

from anbar.adapters.vllm.step_work import step_work
from anbar.core.cost import PrefillWork


@dataclass
class New:
    req_id: str
    num_computed_tokens: int


@dataclass
class Cached:
    req_ids: list[str] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)


@dataclass
class Output:
    num_scheduled_tokens: dict[str, int]
    scheduled_new_reqs: list[New] = field(default_factory=list)
    scheduled_cached_reqs: Cached = field(default_factory=Cached)
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


def test_answers_alone() -> None:
    """One token each: no prompts."""
    assert step_work(Output({"a": 1, "b": 1})) == (PrefillWork(), 2)
    assert step_work(Output({})) == (PrefillWork(), 0)


def test_prompts_and_answers() -> None:
    """A new prompt behind 32 cached tokens, the second part of one of which 100 are computed, two answers, of
    which one speculates."""
    output = Output(
        {"new": 50, "old": 200, "answer": 1, "guess": 4},
        [New("new", 32)],
        Cached(["answer", "old", "guess"], [70, 100, 90]),
        {"guess": [1, 2, 3]},
    )
    pairs = 82**2 - 32**2 + 300**2 - 100**2
    assert step_work(output) == (PrefillWork(250, pairs), 2)
