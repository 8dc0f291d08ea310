"""Which engine gets what."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.apps.machine import Machine
from anbar.apps.stack.placement import place, region_file, split_cores
from anbar.config.models import AnbarConfig, Device, Dtype
from anbar.config.render import EngineSlot
from anbar.core.errors import ConfigError

GIB = 1024**3


def machine(**values: Any) -> Machine:
    defaults = {
        "cores": (0, 1),
        "flags": frozenset({"avx2"}),
        "total_memory": 8 * GIB,
        "free_memory": 8 * GIB,
        "shm_total": GIB,
        "shm_free": GIB,
        "gpus": (),
    }
    return Machine(**{**defaults, **values})


def slots(machine_: Machine, *, cpu_build: bool, **launch: Any) -> tuple[EngineSlot, ...]:
    config = AnbarConfig.model_validate(
        {"state_dir": "/state", "engines": [{"name": "a", "launch": {"model": "/m", "count": 2, **launch}}]}
    )
    found = place(config, machine_, cpu_build=cpu_build, models={"a": "/m"}, scratch_dir=Path("/scratch"))
    return found["a"]


def test_two_engines_on_two_cores() -> None:
    """Each computes on its own core, in float32 where bfloat16 is emulated."""
    first, second = slots(machine(), cpu_build=True)
    assert (first.id, first.port, first.threads) == ("a-0", 8100, ((0,),))
    assert (second.id, second.port, second.threads) == ("a-1", 8101, ((1,),))
    assert (first.device, first.dtype) == (Device.CPU, Dtype.FLOAT32)
    assert region_file(first) != region_file(second)


@pytest.mark.parametrize("flag", ["amx_bf16", "avx512_bf16"])
def test_fast_bfloat16_is_used(flag: str) -> None:
    """Where the cores have the instructions; an explicit dtype wins."""
    fast = machine(flags=frozenset({"avx2", flag}))
    assert slots(fast, cpu_build=True)[0].dtype is Dtype.BFLOAT16
    assert slots(fast, cpu_build=True, dtype="float32")[0].dtype is Dtype.FLOAT32


def test_gpus_are_dealt_out() -> None:
    """Two engines of two GPUs each; the model's own dtype."""
    first, second = slots(machine(gpus=("0", "1", "2", "3")), cpu_build=False, tensor_parallel=2)
    assert (first.gpus, second.gpus) == (("0", "1"), ("2", "3"))
    assert (first.device, first.dtype, first.threads) == (Device.CUDA, Dtype.AUTO, ())


def test_too_few_gpus() -> None:
    """Refused, unless memory is bounded by hand so that engines can share one."""
    with pytest.raises(ConfigError, match="need 2 GPUs, 1 are visible"):
        slots(machine(gpus=("0",)), cpu_build=False)
    shared = slots(machine(gpus=("0",)), cpu_build=False, args=["--gpu-memory-utilization", "0.4"])
    assert [slot.gpus for slot in shared] == [("0",), ("0",)]


@pytest.mark.parametrize(
    ("device", "gpus", "cpu_build", "words"),
    [
        ("cuda", (), False, "no GPU is visible"),
        ("cuda", ("0",), True, "is the cpu build"),
        ("cpu", ("0",), False, "is a CUDA build"),
    ],
)
def test_devices_that_cannot_be(device: str, gpus: tuple[str, ...], cpu_build: bool, words: str) -> None:
    """The message says what is missing and what to do."""
    with pytest.raises(ConfigError, match=words):
        slots(machine(gpus=gpus), cpu_build=cpu_build, device=device)


def test_emulated_engines_take_nothing() -> None:
    """No cores, no GPUs, any machine; real engines beside them get all that there is."""
    first, second = slots(machine(cores=()), cpu_build=False, device="emulated", tensor_parallel=8)
    assert (first.id, first.device, first.threads, first.gpus) == ("a-0", Device.EMULATED, (), ())
    assert second.port == 8101
    config = AnbarConfig.model_validate(
        {
            "engines": [
                {"name": "a", "launch": {"model": "/m"}},
                {"name": "b", "launch": {"model": "/m", "device": "emulated", "port": 8200}},
            ]
        }
    )
    models = {"a": "/m", "b": "/tiny"}
    found = place(config, machine(), cpu_build=True, models=models, scratch_dir=Path("/s"))
    assert found["a"][0].threads == ((0, 1),)
    assert (found["b"][0].model, found["b"][0].served_name) == ("/tiny", "m")


@given(st.integers(1, 64), st.integers(1, 64))
def test_core_shares(num_cores: int, num_workers: int) -> None:
    """Every worker has a core; shares are equal, and disjoint as long as there are enough cores."""
    cores = tuple(range(10, 10 + num_cores))
    shares = split_cores(cores, num_workers)
    assert len(shares) == num_workers
    assert len({len(share) for share in shares}) == 1
    assert all(share and set(share) <= set(cores) for share in shares)
    used = [core for share in shares for core in share]
    if num_workers <= num_cores:
        assert len(used) == len(set(used)) > num_cores - num_workers


def test_regions_differ_between_stacks() -> None:
    """Two stacks with engines of one name on one machine must not share host memory."""
    config = {"engines": [{"name": "a", "launch": {"model": "/m"}}]}
    files = set()
    for state_dir in ("/one", "/two"):
        parsed = AnbarConfig.model_validate({"state_dir": state_dir, **config})
        (slot,) = place(parsed, machine(), cpu_build=True, models={"a": "/m"}, scratch_dir=Path("/s"))["a"]
        files.add(region_file(slot))
    assert len(files) == 2
