"""The router beside what it says of itself: schemathesis asks for what the OpenAPI document allows, and for
what it does not. The values at the edges of what is allowed come once, then each call 20 times at random;
`ANBAR_FUZZ_S` seconds in all, round after round with other values, where that is set. A case takes a tenth of
a second, nearly all of it schemathesis' own."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.stack import MODEL, Setup, Stack, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

FUZZ_S = int(os.environ.get("ANBAR_FUZZ_S", "0"))
EXTENT = ("--max-time", str(FUZZ_S), "--seed", "1") if FUZZ_S else ("--generation-deterministic",)
LIMIT_S = 340 + FUZZ_S
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)
"""That what is allowed is accepted is none of them: values that are right each may not be right together."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def common(tokenizer_dir: Path, module_dir: Path) -> AsyncIterator[Stack]:
    """Engines that refuse what would take long: by default 16,384 answers of 8,192 tokens are allowed."""
    small = {"max_n": 4, "max_model_len": 512}
    async with running_stack(Setup(tokenizer_dir, module_dir, engine=small)) as running:
        yield running


async def document(stack: Stack) -> dict[str, Any]:
    """As the router gives it, with the model that it has, and without fields that it refuses: else little of
    what is allowed would come further."""
    content = (await stack.get("/openapi.json")).json
    for name in ("Chat", "Completion"):
        fields = content["components"]["schemas"][name]["properties"]
        fields["model"]["enum"] = [MODEL]
        for refused in ("cache_salt", "kv_transfer_params", "ec_transfer_params"):
            fields[refused] = {"type": "null"}
    return content


async def test_the_router_does_what_its_document_says(stack: Stack, tmp_path: Path) -> None:
    """Every call with good and bad parameters, headers and bodies: no 5xx, bad ones are refused, and
    statuses, types and pages are those of the document. No engine is blamed."""
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(await document(stack)))
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", str(path), "--url", stack.url, "--no-color"),
        *("--checks", ",".join(CHECKS), "--phases", "coverage,fuzzing", "--continue-on-failure"),
        *("--max-examples", "20", *EXTENT),
        *("--suppress-health-check", "all", "--request-timeout", "100"),
    ]
    asked = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(asked.communicate(), LIMIT_S)
    finally:
        if asked.returncode is None:
            asked.kill()
            await asked.wait()
    assert asked.returncode == 0, output.decode()
    described = (await stack.described()).values()
    assert {(engine["state"], engine["breaker"]) for engine in described} == {("ready", "closed")}
