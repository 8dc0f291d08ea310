"""Names of models: aliases, canaries, and what clients see of them."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from anbar.route.rendezvous import lot
from tests.integration.stack import COMPLETIONS, MODEL, Setup, Stack, completion, running_stack, text_prompt

pytestmark = pytest.mark.asyncio(loop_scope="module")
NAMES = {
    "gpt-4o": MODEL,
    "canary": [
        {"model": MODEL, "engines": ["e0", "e1"], "weight": 80},
        {"model": MODEL, "engines": ["e2"], "weight": 20},
    ],
    "spare": [{"model": "nobody-has-it"}, {"model": MODEL, "weight": 0}],
    "typo": "nobody-has-it",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def common(tokenizer_dir: Path, module_dir: Path) -> AsyncIterator[Stack]:
    setup = Setup(tokenizer_dir, module_dir, num_engines=3, router={"models": NAMES})
    async with running_stack(setup) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def stack(common: Stack) -> AsyncIterator[Stack]:
    yield common
    await common.recover()


async def test_an_alias_is_put_into_the_body_in_place(stack: Stack) -> None:
    """The engine gets the served name where the client wrote the alias, and every other byte as it was sent,
    unknown members and odd spaces included; the cache is the same under both names."""
    prompt = text_prompt("alias")
    first = await stack.complete(prompt)
    await stack.followed()
    body = b'{ "x_unknown" : 1e0,\n "model":"gpt-4o" , "prompt": %b, "max_tokens": 4 }' % (
        json.dumps(prompt).encode()
    )
    again = await stack.post(COMPLETIONS, body)
    assert (again.status, again.engine) == (200, first.engine)
    assert again.predicted == again.cached > 0
    assert again.json["model"] == MODEL
    seen = stack.engines[first.engine].records.seen[-1]
    assert seen.body == body.replace(b'"gpt-4o"', json.dumps(MODEL).encode())


async def test_aliases_are_listed_as_models(stack: Stack) -> None:
    """Clients find the names that work, each with the card of what it stands for."""
    cards = {card["id"]: card for card in (await stack.get("/v1/models")).json["data"]}
    assert cards.keys() == {MODEL, "gpt-4o", "canary", "spare"}
    assert {**cards["gpt-4o"], "id": MODEL} == cards[MODEL]
    assert (await stack.get("/v1/models/gpt-4o")).json == cards["gpt-4o"]


async def test_a_canary_gets_its_share_and_keeps_its_sessions(stack: Stack) -> None:
    """Which of forty sessions go to the canary's engine is told by their hashes beforehand; they go there
    each time. Without a session the request's id draws."""
    sent: Counter[bool] = Counter()
    of_ada = set()
    for at in range(40):
        body = completion(f"{at}", model="canary", max_tokens=1)
        answers = [await stack.post(COMPLETIONS, body, {"x-request-id": f"r-{at}"}) for _ in range(2)]
        engines = {answer.engine for answer in answers}
        is_canary = lot(f"canary\0r-{at}") >= 0.8
        assert (engines == {"e2"}) is is_canary
        sent[is_canary] += 1
        with_user = await stack.post(COMPLETIONS, {**body, "user": "ada"}, {"x-request-id": f"r-{at}"})
        of_ada.add(with_user.engine == "e2")
    assert sent[True] > 2
    assert sent[False] > 25
    assert len(of_ada) == 1


async def test_a_group_that_is_gone_leaves_its_share_to_the_others(stack: Stack) -> None:
    """While the canary's engine is away its requests go to the others, and back when it is back."""
    key = next(f"k{at}" for at in range(100) if lot(f"canary\0k{at}") >= 0.8)
    body = completion("x", model="canary", max_tokens=1)
    await stack.engines["e2"].die()
    await stack.becomes("e2", "unhealthy")
    assert (await stack.post(COMPLETIONS, body, {"x-request-id": key})).engine in ("e0", "e1")
    await stack.engines["e2"].revive()
    await stack.becomes("e2", "ready")
    assert (await stack.post(COMPLETIONS, body, {"x-request-id": key})).engine == "e2"


async def test_what_nobody_serves(stack: Stack) -> None:
    """A target without weight takes over from one that no engine has; alone, that is an unknown model, by the
    name that the client sent."""
    asked = [stack.post(COMPLETIONS, completion("x", model=name)) for name in ("spare", "typo")]
    spare, typo = await asyncio.gather(*asked)
    assert spare.status == 200
    assert (typo.status, typo.json["error"]["code"]) == (404, "model_not_found")
    assert "'typo'" in typo.json["error"]["message"]
