"""The official `openai` client, unchanged, against the router."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

from anbar.apps.emulator import Ending, Fault, FaultKind, steady
from tests.integration.harness import eventually
from tests.integration.stack import MODEL, Stack, text_prompt

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCRIPTS = "سلام دنیا، نمی‌دانم چرا؛ नमस्ते दुनिया, क्षेत्र में ज्ञान — 👩‍👩‍👧 ok"
MESSAGES = [{"role": "system", "content": "کوتاه بنویس"}, {"role": "user", "content": "नमस्ते, سلام!"}]


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="a-user's-key", max_retries=0) as made:
        yield made


async def test_chat_whole_and_streamed(client: AsyncOpenAI) -> None:
    """A chat answered whole and as a stream has the same text, finish reason and usage."""
    whole = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=24)
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=24, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert text
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens > 0


async def test_completions_whole_and_streamed(client: AsyncOpenAI) -> None:
    """The same for /v1/completions; without `include_usage` no chunk has usage."""
    whole = await client.completions.create(model=MODEL, prompt="the store", max_tokens=24)
    stream = await client.completions.create(model=MODEL, prompt="the store", max_tokens=24, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert all(chunk.usage is None for chunk in chunks)
    assert whole.usage is not None
    assert whole.usage.prompt_tokens_details is not None


async def test_synchronous_client(stack: Stack) -> None:
    """The synchronous client, from another thread: whole, streamed, and the list of models."""

    def use() -> tuple[str | None, str, list[str]]:
        with OpenAI(base_url=f"{stack.url}/v1", api_key="k", max_retries=0) as client:
            whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=16)
            stream = client.chat.completions.create(
                model=MODEL, messages=MESSAGES, max_tokens=16, stream=True
            )
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            return whole.choices[0].message.content, text, [model.id for model in client.models.list()]

    whole, streamed, models = await asyncio.to_thread(use)
    assert whole == streamed
    assert models == [MODEL]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("dripping", [False, True])
async def test_persian_and_hindi(stack: Stack, client: AsyncOpenAI, streamed: bool, dripping: bool) -> None:
    """Text whose characters are split over tokens, and over tiny writes, arrives as it was sent."""
    for engine in stack.engines.values():
        engine.answer = SCRIPTS
        if dripping:
            engine.arm(Fault(FaultKind.DRIP, drip_bytes=7))
    if streamed:
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    else:
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        text = answer.choices[0].message.content or ""
    assert text == SCRIPTS


async def test_models_are_listed_and_retrieved(client: AsyncOpenAI) -> None:
    """What the list shows can be asked for by its name; what it does not is a NotFoundError."""
    listed = [model async for model in client.models.list()]
    assert MODEL in [model.id for model in listed]
    for model in listed:
        assert await client.models.retrieve(model.id) == model
    with pytest.raises(NotFoundError) as caught:
        await client.models.retrieve("org/nothing")
    assert caught.value.code == "model_not_found"


async def test_errors_are_the_clients_own(client: AsyncOpenAI) -> None:
    """The client raises its own exceptions for an unknown model and for a prompt that is too long."""
    with pytest.raises(NotFoundError) as unknown:
        await client.chat.completions.create(model="gpt-nothing", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(BadRequestError) as long:
        await client.completions.create(model=MODEL, prompt="a long road " * 4000)
    assert long.value.code == "context_length_exceeded"


async def test_closing_a_stream_cancels_it(stack: Stack, client: AsyncOpenAI) -> None:
    """A client that stops reading in the middle and closes leaves nothing running in the engine."""
    for engine in stack.engines.values():
        engine.pace.cost = steady(step_s=0.01)
    stream = await client.completions.create(
        model=MODEL, prompt=text_prompt("x"), max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    )
    async for _ in stream:
        break
    await stream.close()
    await stack.assert_idle()
    (seen,) = (seen for engine in stack.engines.values() for seen in engine.records.seen)
    assert seen.ending is Ending.CANCELLED


async def test_many_at_once(stack: Stack, client: AsyncOpenAI) -> None:
    """Sixty concurrent streams all arrive whole, and both engines worked on them."""
    for engine in stack.engines.values():
        engine.arm(Fault(FaultKind.HANG, count=0))  # so that all of them are there before any is answered

    async def ask(number: int) -> str:
        stream = await client.completions.create(
            model=MODEL, prompt=f"{number} grain", max_tokens=20, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    asked = [asyncio.create_task(ask(number)) for number in range(60)]
    await eventually(lambda: stack.num_open == len(asked))
    for engine in stack.engines.values():
        engine.faults.clear()
    texts = await asyncio.gather(*asked)
    alone = await client.completions.create(model=MODEL, prompt="7 grain", max_tokens=20)
    assert texts[7] == alone.choices[0].text
    assert all(engine.records.seen for engine in stack.engines.values())
