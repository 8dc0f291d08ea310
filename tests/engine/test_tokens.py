"""The router's token ids beside those of vLLM's own renderer, request by request, without an engine."""

import json
import subprocess
from pathlib import Path

import pytest

from anbar.adapters.vllm.chat_messages import Reason
from anbar.adapters.vllm.chat_template import ContentFormat
from anbar.adapters.vllm.tokens import NotReproducible, Tokenizer, TokenizerOptions, load_tokenizer
from tests.engine.prompt_cases import Case, cases

pytestmark = pytest.mark.contract
CASES = list(cases())
MAX_MODEL_LEN = 2048
REFUSED = frozenset((Reason.MALFORMED, Reason.TEMPLATE_FAILED, Reason.UNTRUSTED_TEMPLATE, Reason.MEDIA))
"""Why there may be no ids for what vLLM refuses too. A text model refuses media."""


@pytest.fixture(scope="module")
def rendered(
    engine_python: Path, smollm2: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[list[int] | None]:
    """What vLLM makes of all cases: one process, half a minute."""
    folder = tmp_path_factory.mktemp("rendered")
    source, target = folder / "cases.json", folder / "ids.json"
    source.write_text(json.dumps(CASES))
    script = Path(__file__).with_name("render_prompts.py")
    command = [engine_python, script, smollm2, source, target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[list[int] | None] = json.loads(target.read_text())
    return found


def tokenizer_of(model: Path, server: dict[str, object]) -> Tokenizer:
    """The router's tokenizer for an engine that was started so."""
    form = server.get("chat_template_content_format")
    options = TokenizerOptions(
        max_model_len=MAX_MODEL_LEN,
        chat_template=server.get("chat_template"),  # type: ignore[arg-type]
        chat_template_kwargs=server.get("default_chat_template_kwargs", {}),  # type: ignore[arg-type]
        trust_request_template=bool(server.get("trust_request_chat_template")),
        content_format=ContentFormat(form) if form else None,
        exclude_tools_when_none=bool(server.get("exclude_tools_when_tool_choice_none")),
    )
    return load_tokenizer(model, options)


def told(case: Case) -> str:
    return json.dumps({"server": sorted(case["server"]), **case["body"]}, ensure_ascii=False)[:400]


def test_ids_are_vllms(rendered: list[list[int] | None], smollm2: Path) -> None:
    """Persian, Hindi, emoji, special tokens in what users write, parts, tools and their results, developer
    and prefilled messages, template arguments, truncation: vLLM's ids, or a reason why there are none. Never
    other ids, and no ids only where vLLM refuses the request. (Ids for what it refuses do no harm.)"""
    assert len(rendered) == len(CASES)
    assert sum(ids is not None for ids in rendered) > 0.8 * len(CASES)
    made: dict[str, Tokenizer] = {}
    wrong: list[str] = []
    for case, expected in zip(CASES, rendered, strict=True):
        key = json.dumps(case["server"], sort_keys=True)
        if key not in made:
            made[key] = tokenizer_of(smollm2, case["server"])
        tokenizer = made[key]
        found = tokenizer.chat(case["body"]) if case["chat"] else tokenizer.completion(case["body"])
        if isinstance(found, NotReproducible):
            if expected is not None or found.reason not in REFUSED:
                wrong.append(f"no ids ({found.reason.value}): {told(case)}")
        elif expected is not None and found != expected:
            wrong.append(f"other ids: {told(case)}")
    assert not wrong, "\n".join(wrong)
