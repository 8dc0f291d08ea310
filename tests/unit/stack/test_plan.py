"""What is decided before anything is started."""

from pathlib import Path

from anbar.apps.stack.plan import plan_stack
from anbar.config.load import ENVIRONMENT
from anbar.config.models import AnbarConfig


def test_environment_of_the_router() -> None:
    """Variables that set values were applied when its file was written; a key of an engine must reach it,
    whatever its variable is called."""
    config = AnbarConfig.model_validate(
        {
            "state_dir": "/state",
            "engines": [{"name": "a", "url": "http://x", "api_key_env": "ANBAR_ROUTER_KEY"}],
        }
    )
    environ = {**dict.fromkeys(ENVIRONMENT, "1"), "ANBAR_ROUTER_KEY": "sk", "PATH": "/bin"}
    plan = plan_stack(config, {}, python=None, scratch_dir=Path("/scratch"), environ=environ)
    assert plan.router.child.env == {"ANBAR_ROUTER_KEY": "sk", "PATH": "/bin"}
    assert str(plan.router_yaml) in plan.router.child.argv
