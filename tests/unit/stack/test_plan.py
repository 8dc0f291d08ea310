"""What is decided before anything is started."""

import sys
from pathlib import Path

from anbar.apps.stack.placement import place
from anbar.apps.stack.plan import plan_stack
from anbar.config.load import ENVIRONMENT
from anbar.config.models import AnbarConfig
from tests.unit.stack.test_placement import machine


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


def test_emulated_engines_run_in_our_own_interpreter() -> None:
    """Whatever vLLM a real engine beside them needs; each is a process of its own, without shared memory."""
    config = AnbarConfig.model_validate(
        {
            "state_dir": "/state",
            "engines": [
                {"name": "a", "launch": {"model": "/m"}},
                {"name": "b", "launch": {"model": "/m", "device": "emulated", "count": 2, "port": 8200}},
            ],
        }
    )
    models = {"a": "/m", "b": "/m"}
    slots = place(config, machine(), cpu_build=True, models=models, scratch_dir=Path("/scratch"))
    vllm = Path("/venv/bin/python")
    plan = plan_stack(config, slots, python=vllm, scratch_dir=Path("/scratch"), environ={"PATH": "/bin"})
    real, *emulated = plan.engines
    assert (real.kind, real.child.argv[0], len(real.shm)) == ("engine", str(vllm), 1)
    assert [part.child.name for part in emulated] == ["b-0", "b-1"]
    assert {(part.kind, part.child.argv[0], part.shm) for part in emulated} == {
        ("emulated", sys.executable, ())
    }
    alone = config.model_copy(update={"engines": config.engines[1:]})
    plan = plan_stack(alone, slots, python=None, scratch_dir=Path("/scratch"), environ={})
    assert len(plan.engines) == 2
