"""Where engines' API keys come from, and that what is wrong with one is told without showing it."""

from pathlib import Path

import pytest

from anbar.apps.engine_key import engine_key
from anbar.config.models import EngineConfig
from anbar.core.errors import ConfigError


def test_line_end_is_no_part_of_the_key(tmp_path: Path) -> None:
    """Keys that came with a line end, as files and `export X=$(cat …)` have them, are cut to the word."""
    (tmp_path / "key").write_text("k3y\n")
    assert engine_key(EngineConfig(name="a", url="http://h:1", api_key_file=tmp_path / "key"), {}) == "k3y"
    assert engine_key(EngineConfig(name="a", url="http://h:1", api_key_env="K"), {"K": "k3y\r\n"}) == "k3y"
    assert engine_key(EngineConfig(name="a", url="http://h:1"), {}) is None


@pytest.mark.parametrize("key", ["sk-secret one", "sk-secret\nx: y", "sk-secret-é", " \n"])
def test_key_that_is_no_header_value_is_refused_unseen(key: str) -> None:
    """Blanks, line breaks within, characters outside ASCII, nothing at all: ConfigError without the key."""
    with pytest.raises(ConfigError, match="'a' is empty or contains blanks") as caught:
        engine_key(EngineConfig(name="a", url="http://h:1", api_key_env="K"), {"K": key})
    assert "secret" not in str(caught.value)
