"""The models themselves."""

from collections.abc import Iterator

import pytest
from pydantic import BaseModel, ValidationError

from anbar.config import models
from anbar.config.models import AnbarConfig


def all_models() -> Iterator[type[BaseModel]]:
    for value in vars(models).values():
        if isinstance(value, type) and issubclass(value, BaseModel) and value.model_fields:
            yield value


def test_every_key_is_documented() -> None:
    """The text under each field is what documentation is generated from."""
    missing = [
        f"{model.__name__}.{name}"
        for model in all_models()
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert missing == []


def test_models_are_frozen_and_closed() -> None:
    """No later change, no unknown key."""
    config = AnbarConfig()
    with pytest.raises(ValidationError, match="frozen"):
        config.router.port = 1  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs"):
        AnbarConfig.model_validate({"planner": {}})


def test_defaults_pass_their_own_checks() -> None:
    """A dump of the defaults loads again to the same."""
    config = AnbarConfig()
    assert AnbarConfig.model_validate(config.model_dump(mode="json")) == config
