"""The emulator's own calls: what cannot be is refused by field, value and what is allowed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from anbar.adapters.http.message import Answer, Request
from anbar.apps.emulator import EngineSettings
from anbar.apps.emulator.admin import Admin
from anbar.apps.emulator.errors import ApiError
from anbar.apps.emulator.state import EngineState

Post = Callable[[str, str], Answer]


@pytest.fixture
def deaths() -> list[float]:
    return []


@pytest.fixture
def post(model_dir: Path, deaths: list[float]) -> Post:
    admin = Admin(EngineState(EngineSettings(model_dir=model_dir)), deaths.append)

    def call(path: str, body: str) -> Answer:
        headers = ((b"content-type", b"application/json"),)
        return admin.posts()[path](Request(b"POST", path.encode(), headers, body.encode()))

    return call


@pytest.mark.parametrize(
    ("path", "body", "field", "text"),
    [
        ("pace", '{"step_s": NaN}', "step_s", "step_s is nan, allowed: 0 to 86400"),
        ("pace", '{"front_s": 1e308}', "front_s", "front_s is 1e+308, allowed: 0 to 86400"),
        ("pace", '{"step_s": "slow"}', "step_s", "step_s is 'slow', allowed: a number"),
        ("die", '{"for_s": NaN}', "for_s", "for_s is nan, allowed: -86400 to 86400"),
        ("die", '{"for_s": Infinity}', "for_s", "for_s is inf, allowed: -86400 to 86400"),
        ("events", '{"drop": -1}', "drop", "drop is -1, allowed: 0 to 1000000000"),
        ("events", '{"swap": 1.5}', "swap", "swap is 1.5, allowed: a whole number"),
        ("fault", '{"kind": "slow", "delay_s": 1e308}', "delay_s", "delay_s is 1e+308, allowed: 0 to 86400"),
        ("fault", '{"kind": "slow", "count": -1}', "count", "count is -1, allowed: 0 to 1000000000"),
        ("fault", '{"kind": "status", "retry_after_s": NaN}', "retry_after_s", "retry_after_s is nan"),
        ("fault", '{"kind": "status", "retry_after_s": []}', "retry_after_s", "a number or null"),
        ("fault", '{"kind": "boom"}', "kind", "kind is 'boom', allowed: hang, hang_mid_stream, slow, drip"),
        ("fault", '{"kind": "hang", "scope": "x"}', "scope", "scope is 'x', allowed: generate, all"),
        ("fault", "{}", "kind", "kind is missing, allowed: hang"),
        ("health", '{"healthy": 1}', "healthy", "healthy is 1, allowed: true, false"),
        ("answer", '{"text": 5}', "text", "text is 5, allowed: a text or null"),
        ("answer", '{"words": 5}', "words", "unknown field 'words'; allowed: text"),
    ],
)  # fmt: skip
def test_impossible_bodies(
    post: Post, deaths: list[float], path: str, body: str, field: str, text: str
) -> None:
    """400, and nothing has changed."""
    with pytest.raises(ApiError) as refused:
        post(f"/emulator/{path}", body)
    assert (refused.value.status, refused.value.param) == (400, f"body.{field}")
    assert text in refused.value.message
    assert not deaths


def test_possible_bodies(post: Post, deaths: list[float]) -> None:
    """Bounds are allowed themselves, and whole numbers where others are."""
    assert json.loads(post("/emulator/pace", '{"step_s": 86400}').body)["step_s"] == 86400
    assert json.loads(post("/emulator/events", '{"drop": 0}').body)["drop"] == 0
    spoiled = {"drop": 1, "lose": 2, "duplicate": 3, "swap": 4, "mute": 5}
    assert json.loads(post("/emulator/events", json.dumps(spoiled)).body) == spoiled
    post("/emulator/fault", '{"kind": "status", "count": 0, "status": 599, "retry_after_s": null}')
    post("/emulator/die", '{"for_s": -1}')
    assert deaths == [-1]
