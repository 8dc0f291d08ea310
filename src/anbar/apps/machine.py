"""What this machine has: cores, instructions, memory, GPUs."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_NVIDIA_SMI_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Machine:
    """`cores` are the CPU ids that this process may use; `flags` those of /proc/cpuinfo; memory in bytes, the
    smaller of the machine's and the container's; `gpus` the visible CUDA devices."""

    cores: tuple[int, ...]
    flags: frozenset[str]
    total_memory: int
    free_memory: int
    shm_total: int
    shm_free: int
    gpus: tuple[str, ...]

    @property
    def has_fast_bfloat16(self) -> bool:
        """Without these instructions bfloat16 is emulated, a hundred times slower than float32."""
        return bool({"avx512_bf16", "amx_bf16", "bf16"} & self.flags)


def read_machine(environ: Mapping[str, str]) -> Machine:
    """Look at the machine; takes milliseconds, or as long as nvidia-smi does."""
    memory = psutil.virtual_memory()
    limit, used = container_memory(_CGROUP)
    shm = os.statvfs("/dev/shm")
    return Machine(
        cores=tuple(sorted(os.sched_getaffinity(0))),
        flags=_cpu_flags(),
        total_memory=min(memory.total, limit),
        free_memory=min(memory.available, max(0, limit - used)),
        shm_total=shm.f_blocks * shm.f_frsize,
        shm_free=shm.f_bavail * shm.f_frsize,
        gpus=_gpus(environ),
    )


def _cpu_flags() -> frozenset[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def container_memory(root: Path) -> tuple[int, int]:
    """Limit and use of the container in bytes (cgroup 2, then 1); a huge limit when there is none.

    The kernel counts cached files as use: what it would drop before memory gets short is not counted here.
    """
    forms = (
        (root, "memory.max", "memory.current", "inactive_file"),
        (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    for place, limit, used, cached in forms:
        try:
            total, now = int((place / limit).read_text()), int((place / used).read_text())
        except (OSError, ValueError):
            continue
        return total, max(0, now - _statistic(place / "memory.stat", cached))
    return 1 << 62, 0


def _statistic(file: Path, name: str) -> int:
    """The number beside `name`; 0 when there is none."""
    try:
        lines = (line.split() for line in file.read_text().splitlines())
        return int(next(fields[1] for fields in lines if fields[:1] == [name]))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0


def _gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(part.strip() for part in visible.split(",") if part.strip() not in ("", "-1"))
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_NVIDIA_SMI_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(done.stdout.split()) if done.returncode == 0 else ()
