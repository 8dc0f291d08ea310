"""Traces as they are found on disk, good and bad."""

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from anbar.apps.advise.trace import read_trace
from anbar.core.errors import ConfigError
from anbar.plan.workload import Asked

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"


def line(**fields: Any) -> str:
    content = {"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    return (
        json.dumps({name: value for name, value in {**content, **fields}.items() if value is not ...}) + "\n"
    )


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "t"
    path.write_text(text)
    return path


def test_a_block_log_is_sorted_by_arrival(tmp_path: Path) -> None:
    """Routers write a line when a request has ended; empty lines are nothing."""
    trace = read_trace(written(tmp_path, line(timestamp=3000) + "\n" + line(hash_ids=[7])))
    assert trace.workload.requests == [Asked(1.0, 600, 5, (7,)), Asked(3.0, 600, 5, (1, 2))]
    assert (trace.workload.block_size, trace.workload.span_s, trace.notes) == (512, 2.0, ())


def test_compressed_is_read_alike(tmp_path: Path) -> None:
    """Whatever the file is called."""
    path = tmp_path / "trace"
    for compressed in (gzip.compress(line().encode()), lzma.compress(line().encode())):
        path.write_bytes(compressed)
        assert len(read_trace(path).workload.requests) == 1
    path.write_bytes(lzma.compress(line().encode())[:-9])
    with pytest.raises(ConfigError, match="trace: cannot be read"):
        read_trace(path)


def test_azures_csv_tells_nothing_of_what_is_shared(tmp_path: Path) -> None:
    """Times have seven digits; a mark of byte order and DOS lines are no matter."""
    path = written(tmp_path, "\ufeff" + AZURE.replace("\n", "\r\n"))
    workload = read_trace(path).workload
    assert not workload.has_blocks
    (asked,) = workload.requests
    assert (asked.num_prompt, asked.num_answer, round(asked.at_s % 1, 4)) == (4808, 10, 0.98)


def test_a_torn_last_line_is_left_out_and_said(tmp_path: Path) -> None:
    """As a router that was killed leaves it. Torn in the middle it is an error."""
    trace = read_trace(written(tmp_path, line() + line()[:20]))
    assert len(trace.workload.requests) == 1
    assert trace.notes == (f"{tmp_path}/t:2: is cut off, and was left out",)
    with pytest.raises(ConfigError, match="t:1: is not JSON"):
        read_trace(written(tmp_path, line()[:20] + "\n" + line()))
    with pytest.raises(ConfigError, match="t:2: is not JSON"):
        read_trace(written(tmp_path, line() + line(timestamp=float("nan"))))  # it ends: nothing was cut off


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "t: is empty; allowed: lines of JSON"),
        ("\n\n", "t: is empty"),
        ("hello\n", "t:1: begins with 'hello'; allowed: lines of JSON (the router's block log"),
        (AZURE.splitlines()[0] + "\n", "t: has no requests"),
        (line(input_length=...), "t:1: object missing required field `input_length`"),
        (line() + line(input_length="x"), "t:2: input_length: expected `int`, got `str`"),
        (line() + line(hash_ids=[1, "a"]), "t:2: hash_ids[1]: expected `int`, got `str`"),
        (line(input_length=0), "t:1: input_length is 0, must be at least 1"),
        (line(output_length=-1), "t:1: output_length is -1, must be at least 0"),
        (line(block_size=0), "t:1: block_size is 0, must be at least 1"),
        (line() + line(block_size=16), "t:2: block_size is 16, and was 512 before"),
        (line(hash_ids=[1, 2, 3]), "t:1: hash_ids has 3 blocks, but 600 tokens have 2"),
        (AZURE + "2023,1,2\n", "t:3: TIMESTAMP is '2023', must be like 2023-11-16 18:15:46.6805900"),
        (AZURE + "2023-11-16 18:17:03,1\n", "t:3: has 2 fields; allowed: TIMESTAMP, ContextTokens"),
        (
            AZURE + "2023-11-16 18:17:03,0,2\n",
            "t:3: ContextTokens is '0', must be a whole number",
        ),
        (AZURE + "2023-11-16 18:17:03,5,-2\n", "t:3: GeneratedTokens is '-2', must be a whole number"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    """File, line and field, and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        read_trace(written(tmp_path, text))
    assert words in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Not there, a directory, not text, a broken archive."""
    for content, words in ((b"\xff\xfe{", "is not text"), (b"\x1f\x8bnothing", "cannot be read")):
        (tmp_path / "b").write_bytes(content)
        with pytest.raises(ConfigError, match=words):
            read_trace(tmp_path / "b")
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_trace(path)
