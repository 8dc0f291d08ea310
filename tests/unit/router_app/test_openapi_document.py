"""The OpenAPI document and the endpoints that it speaks of."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

from anbar.apps.router import endpoints, openapi

REPO = Path(__file__).resolve().parents[3]


def test_every_path_that_is_answered_is_described() -> None:
    """The paths of the tables of endpoints are those of the document, but for those with a parameter."""
    answered = re.findall(r'b"(/[^"]*)":', inspect.getsource(endpoints.Endpoints.__init__))
    routed = [endpoint.value for endpoint in openapi.Endpoint]
    described = [path for path in openapi.document()["paths"] if "{" not in path]
    assert sorted(described) == sorted([*answered, *routed])


def test_references_of_the_document_lead_somewhere() -> None:
    """Every `$ref` names a schema that is there."""
    content = openapi.document()
    named: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                named.add(value["$ref"].removeprefix("#/components/schemas/"))
            for each in value.values():
                walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)

    walk(content)
    assert {"Chat", "Completion", "Error", "ReadyPage"} <= named
    assert named <= set(content["components"]["schemas"])


def test_the_served_document_is_the_one_of_the_reference() -> None:
    """What `GET /openapi.json` answers is `docs/reference/openapi.json`."""
    assert json.loads(openapi.rendered()) == json.loads((REPO / "docs/reference/openapi.json").read_text())
