"""A guide as a program: its shell and Python blocks in order, and what it says that they print."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """`code` in `language` ("sh" or "python"); `expected`: the `text` block right after it, in which `…`
    means anything, and a line of nothing else any lines."""

    language: str
    code: str
    expected: str | None


def read_blocks(page: Path) -> list[Block]:
    """The blocks of a page that can be run. A `text` block after prose is only shown."""
    text = page.read_text()
    found: list[Block] = []
    end = 0
    for match in _FENCE.finditer(text):
        language, body = match.groups()
        follows = not text[end : match.start()].strip()
        end = match.end()
        if language in ("sh", "python"):
            found.append(Block(language, body, None))
        elif language == "text" and follows and found:
            found[-1] = Block(found[-1].language, found[-1].code, body)
    return found


@dataclass(frozen=True)
class Following:
    """How a guide is followed: `renamed` maps its ports to free ones, `replaced` its texts to what waits for
    what a reader's eyes would wait for."""

    renamed: Mapping[str, str]
    replaced: Mapping[str, str]
    limit_s: float


def follow(page: Path, directory: Path, how: Following) -> int:
    """Run all blocks of a guide in a directory; returns their number. AssertionError when one fails or prints
    something else than the guide says."""
    blocks = read_blocks(page)
    env = {name: value for name, value in os.environ.items() if not name.startswith("ANBAR_")}
    env["PATH"] = f"{REPO / '.venv/bin'}:{env['PATH']}"
    script = f"set -eo pipefail\n{shell_script(blocks, how.renamed, how.replaced)}"
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=directory,
            env=env,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            status = process.wait(how.limit_s)
        except subprocess.TimeoutExpired:
            status = -1
        finally:
            # What a script that was cut short has left running; launchers take their engines with them.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
    text = (directory / "output").read_text()
    printed = outputs(text)
    assert status == 0, text
    assert len(printed) == len(blocks)
    wrong = [
        (block.expected, printed[number])
        for number, block in enumerate(blocks)
        if not matches(block, printed[number], how.renamed)
    ]
    for expected, found in wrong:
        print(f"expected:\n{expected}found:\n{found}")
    assert wrong == []
    return len(blocks)


def shell_script(blocks: list[Block], renamed: Mapping[str, str], replaced: Mapping[str, str]) -> str:
    """One bash script of all blocks, each of which begins by printing its mark; `renamed` maps numbers of
    four digits in the guide, its ports, to others, and `replaced` its texts. ValueError when it has not all
    of those."""
    script = "\n".join(_part(number, block, renamed) for number, block in enumerate(blocks))
    for text, other in replaced.items():
        if text not in script:
            raise ValueError(f"{text!r} is no longer in the guide")
        script = script.replace(text, other)
    return script


def outputs(text: str) -> dict[int, str]:
    """What each block printed, by its number."""
    parts = re.split(r"^<<(\d+)>>\n", text, flags=re.MULTILINE)
    return {int(number): output for number, output in zip(parts[1::2], parts[2::2], strict=True)}


def matches(block: Block, output: str, renamed: Mapping[str, str]) -> bool:
    """Whether a block printed what the guide says."""
    return (
        block.expected is None or re.fullmatch(_pattern(_rename(block.expected, renamed)), output) is not None
    )


def _part(number: int, block: Block, renamed: Mapping[str, str]) -> str:
    code = _rename(block.code, renamed)
    if block.language == "python":
        code = f"python - <<'END_OF_PYTHON'\n{code}END_OF_PYTHON\n"
    return f"echo '<<{number}>>'\n{code}"


def _rename(text: str, renamed: Mapping[str, str]) -> str:
    return re.sub(r"\b\d{4}\b", lambda match: renamed.get(match[0], match[0]), text)


def _pattern(expected: str) -> str:
    return "".join(_line_patterns(expected.splitlines()))


def _line_patterns(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if line == "…":
            yield r"(?:.*\n)*?"
        else:
            yield ".*".join(re.escape(piece) for piece in line.rstrip().split("…")) + r" *\n"
