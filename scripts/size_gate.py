"""Fails on files, functions and signatures that have grown too long: it gates the tail, not the average."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 6
FOREIGN_SIGNATURES = ROOT / "src" / "anbar" / "adapters" / "vllm"
"""Here signatures are vLLM's."""
COMMANDS = ROOT / "src" / "anbar" / "cli"
"""Here a parameter is an option of the command line."""


def main() -> int:
    """Exit status 1 when anything is too long; a line for each."""
    folders = ("src", "tests", "scripts", "benchmarks")
    files = sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    problems = [problem for file in files for problem in check(file)]
    for problem in problems:
        print(problem)
    print(f"size gate: {len(files)} files, {len(problems)} too long")
    return 1 if problems else 0


def check(file: Path) -> Iterator[str]:
    """What is too long in one file."""
    text = file.read_text(encoding="utf-8")
    where = file.relative_to(ROOT)
    lines = text.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"{where}: {lines} lines, at most {MAX_FILE_LINES}"
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > MAX_FUNCTION_LINES:
            yield f"{where}:{node.lineno}: {node.name} has {length} lines, at most {MAX_FUNCTION_LINES}"
        if any(file.is_relative_to(folder) for folder in (FOREIGN_SIGNATURES, COMMANDS, ROOT / "tests")):
            continue
        count = _num_parameters(node)
        if count > MAX_PARAMETERS:
            yield f"{where}:{node.lineno}: {node.name} has {count} parameters, at most {MAX_PARAMETERS}"


def _num_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = node.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (1 if names and names[0] in ("self", "cls") else 0)


if __name__ == "__main__":
    sys.exit(main())
