"""What a step of vLLM's scheduler will compute, from its `SchedulerOutput`."""

from typing import Protocol

from anbar.core.cost import PrefillWork


class NewRequest(Protocol):
    """A request's first step."""

    req_id: str
    num_computed_tokens: int


class CachedRequests(Protocol):
    """Requests that had steps before."""

    req_ids: list[str]
    num_computed_tokens: list[int]


class Scheduled(Protocol):
    """What is read of vLLM's `SchedulerOutput`."""

    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    scheduled_new_reqs: list[NewRequest]
    scheduled_cached_reqs: CachedRequests
    scheduled_spec_decode_tokens: dict[str, list[int]]


def step_work(step: Scheduled) -> tuple[PrefillWork, int]:
    """What is computed of prompts, and how many answers run beside them. One token is an answer's, and so are
    those of a request that speculates."""
    tokens = step.num_scheduled_tokens
    if step.total_num_scheduled_tokens == len(tokens):
        return PrefillWork(), len(tokens)
    prompts = {
        name: num for name, num in tokens.items() if num > 1 and name not in step.scheduled_spec_decode_tokens
    }
    cached = step.scheduled_cached_reqs
    done = {new.req_id: new.num_computed_tokens for new in step.scheduled_new_reqs}
    done.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    num_pairs = sum((done[name] + num) ** 2 - done[name] ** 2 for name, num in prompts.items())
    return PrefillWork(sum(prompts.values()), num_pairs), len(tokens) - len(prompts)
