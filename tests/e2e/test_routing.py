"""Cache-aware routing from live KV events, on real vLLM: what the router predicts is what vLLM reports."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.stack import Stack, prose

BLOCK = 32
NUM_WORDS = 700
"""One token each. So long that a machine which stands still now and then does not make another engine look
so much faster that it is worth loading the prefix there from the store."""


def expected_hit(num_tokens: int) -> int:
    """vLLM serves whole blocks and always computes at least the last token itself."""
    return (num_tokens - 1) // BLOCK * BLOCK


def test_prompts_return_to_the_engine_that_holds_them(stack: Stack) -> None:
    """Six prompts, each asked twice in another order: each goes back to its engine, and the router's
    prediction is exactly vLLM's `cached_tokens`."""
    prompts = [prose(100 + i, NUM_WORDS) for i in range(6)]
    with ThreadPoolExecutor(max_workers=2) as pool:  # two at a time: one after the other, chance would decide
        first = list(pool.map(lambda prompt: stack.complete(prompt, max_tokens=1), prompts))
    assert {answer.predicted for answer in first} == {0}
    assert {answer.cached for answer in first} == {0}
    assert len({answer.engine for answer in first}) == 2, "six unrelated prompts use both engines"
    stack.settle()
    for prompt, before in reversed(list(zip(prompts, first, strict=True))):
        again = stack.complete(prompt, max_tokens=1)
        print(stack.http.get(f"/admin/explain/{again.headers['x-request-id']}?format=text").text)
        assert again.engine == before.engine
        assert again.predicted == again.cached == expected_hit(again.prompt_tokens)
        assert again.headers["x-anbar-policy"] == "predicted_ttft"
        assert "x-anbar-degraded" not in again.headers


def test_a_chat_returns_with_its_answer_cached(stack: Stack) -> None:
    """Turn 2 repeats turn 1 and its answer; same template, same tokenizer: predicted equals reported."""
    messages = [
        {"role": "system", "content": "You answer in one sentence. تو فارسی هم می‌دانی. हिंदी भी।"},
        {"role": "user", "content": prose(200, NUM_WORDS)},
    ]
    first = stack.chat(messages, max_tokens=40, ignore_eos=True)
    stack.settle()
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And then?"}]
    second = stack.chat(messages, max_tokens=4)
    assert second.engine == first.engine
    assert second.predicted == second.cached
    assert second.cached >= expected_hit(first.prompt_tokens)


def test_token_ids_and_text_are_one_prefix(stack: Stack) -> None:
    """The same prompt as token ids finds the blocks that its text left."""
    prompt = prose(210, NUM_WORDS)
    ids = stack.tokenize(prompt)
    first = stack.complete(prompt, max_tokens=1)
    stack.settle()
    second = stack.complete(ids, max_tokens=1)
    assert second.engine == first.engine
    assert second.predicted == second.cached == expected_hit(len(ids))


def test_two_salts_never_share(stack: Stack) -> None:
    """Equal text under another salt is another prefix: nothing predicted, nothing cached, whatever tier; the
    same salt hits."""
    prompt = prose(220, 150)
    for salt in (None, "tenant-a", "tenant-b"):
        fields = {"cache_salt": salt} if salt else {}
        fresh = stack.complete(prompt, max_tokens=1, **fields)
        assert (fresh.predicted, fresh.cached) == (0, 0), salt
        stack.settle()
        again = stack.complete(prompt, max_tokens=1, **fields)
        assert again.predicted == again.cached == expected_hit(again.prompt_tokens), salt


@pytest.mark.parametrize("suffix", ["", " And one more sentence that no engine has seen."])
def test_a_hit_is_predicted_for_what_is_shared_only(stack: Stack, suffix: str) -> None:
    """A prompt that shares its first half with a cached one is predicted to hit that half and no more."""
    half = prose(230, 100)
    stack.complete(half, max_tokens=1)
    stack.settle()
    answer = stack.complete(half + suffix, max_tokens=1)
    assert answer.predicted == answer.cached
    assert answer.cached <= expected_hit(answer.prompt_tokens)
    assert answer.cached >= expected_hit(len(stack.tokenize(half))) - BLOCK
