"""Logs of requests with their text."""

import json
from pathlib import Path
from typing import Any

import pytest

from anbar.apps.advise.trace import read_trace
from anbar.core.errors import ConfigError

MODEL = str(Path(__file__).resolve().parents[3] / "src/anbar/apps/emulator/tiny-model")
DOCUMENT = "This sentence of a document is long enough that it is not the same as another one by chance."


def log(tmp_path: Path, *requests: dict[str, Any], **more: Any) -> Path:
    path = tmp_path / "requests.jsonl"
    lines = [{"timestamp": 1000 * n, "request": request, **more} for n, request in enumerate(requests)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_prompts_are_compared_by_their_tokens(tmp_path: Path) -> None:
    """Two that begin alike have blocks in common as far as they do; the model is part of a block's name."""
    same, other = "word " * 200, "word " * 150 + "other " * 50
    asked = [{"model": "m", "prompt": same}, {"model": "m", "prompt": other}, {"model": "n", "prompt": same}]
    workload = read_trace(log(tmp_path, *asked, output_tokens=7), MODEL).workload
    first, second, third = workload.requests
    common = [a == b for a, b in zip(first.blocks, second.blocks, strict=False)]
    assert 0 < sum(common) < len(common)
    assert common == sorted(common, reverse=True)
    assert not set(first.blocks) & set(third.blocks)
    assert (first.num_answer, workload.block_size, len(first.blocks)) == (7, 16, first.num_prompt // 16)


def test_text_behind_another_beginning_is_counted(tmp_path: Path) -> None:
    """What no cache of prefixes finds: the same document after another one."""
    second = DOCUMENT.replace("sentence", "paragraph")
    ordered = {"prompt": f"{DOCUMENT}\n{second}"}
    turned = {"prompt": f"{second}\n{DOCUMENT}"}
    assert read_trace(log(tmp_path, ordered, ordered), MODEL).workload.outside_prefix == 0.0
    found = read_trace(log(tmp_path, ordered, turned), MODEL).workload.outside_prefix
    assert found == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({}, "requests.jsonl:1: request has neither `messages` nor `prompt`"),
        ({"prompt": ""}, "requests.jsonl:1: request has no tokens"),
        ({"messages": "hello"}, "requests.jsonl:1: request cannot be tokenized"),
        (7, "requests.jsonl:1: request: expected `object`, got `int`"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, request_: Any, words: str) -> None:
    """File, line, and what."""
    with pytest.raises(ConfigError) as caught:
        read_trace(log(tmp_path, request_), MODEL)
    assert words in str(caught.value)


def test_the_tokenizer_is_asked_for_by_name(tmp_path: Path) -> None:
    """Without it nothing is guessed."""
    with pytest.raises(ConfigError, match="give the model's directory with --tokenizer"):
        read_trace(log(tmp_path, {"prompt": "a"}))
