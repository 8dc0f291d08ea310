"""Checks of this machine: instructions, cores, memory, shared memory, ports, directories."""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from anbar.apps.doctor.finding import Finding, fail, ok, warn
from anbar.apps.machine import Machine
from anbar.apps.stack.placement import Slots
from anbar.apps.stack.ports import TAKEN, bind_problem, can_listen, holder_of
from anbar.config.models import AnbarConfig, Device, LaunchConfig
from anbar.config.render import CPU_KV_BYTES, EngineSlot
from anbar.config.sizes import format_size

_PROCESS_BYTES = 2 * 1024**3
"""Memory of one CPU engine's processes without weights and caches: measured 1.6 GiB, with some room."""
_EMULATOR_BYTES = 256 * 1024**2
"""Memory of one emulated engine: measured 150 MiB, with room for its blocks."""
_SHM_PER_WORKER = 64 * 1024**2
"""vLLM's message rings and semaphores in /dev/shm."""
_MIN_DISK = 2 * 1024**3


def check_cpu(machine: Machine, slots: Slots) -> Iterator[Finding]:
    """Instructions that vLLM's CPU kernels need or profit from, and cores for all workers."""
    cpu_slots = [slot for group in slots.values() for slot in group if slot.device is Device.CPU]
    if not cpu_slots:
        return
    if platform.machine() == "x86_64":
        if "avx2" not in machine.flags:
            yield fail(
                "cpu", "no AVX2", "vLLM's CPU kernels need AVX2: use another machine, or attach by `url`"
            )
            return
        known = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
        yield ok("cpu", ", ".join(flag for flag in known if flag in machine.flags))
    num_workers = sum(len(slot.threads) for slot in cpu_slots)
    cores = len(machine.cores)
    if num_workers > cores:
        fix = "lower launch.count or launch.tensor_parallel"
        yield warn("cores", f"{num_workers} workers share {cores} cores: slow", fix)
    else:
        yield ok("cores", f"{cores} for {num_workers} workers")


def memory_need(launch: LaunchConfig, slot: EngineSlot, config: AnbarConfig, weights: int) -> int:
    """Bytes of main memory that one engine takes; on a GPU only the host tier counts here. An emulated one
    has no KV and no weights."""
    if slot.device is Device.EMULATED:
        return _EMULATOR_BYTES
    tier = config.cache.host_tier_bytes
    if slot.device is not Device.CPU:
        return tier
    kv = launch.kv_cache_bytes if launch.kv_cache_bytes is not None else CPU_KV_BYTES
    return _PROCESS_BYTES + weights + kv * launch.tensor_parallel + tier


def check_memory(machine: Machine, need: int) -> Finding:
    """`need` bytes in all against what is free."""
    if need > machine.free_memory:
        return fail(
            "memory",
            f"the engines need about {format_size(need)}, {format_size(machine.free_memory)} are free",
            "lower launch.count, cache.host_bytes or launch.kv_cache_bytes, or free memory",
        )
    return ok("memory", f"about {format_size(need)} of {format_size(machine.free_memory)} free")


def check_shm(machine: Machine, config: AnbarConfig, slots: Slots) -> Finding:
    """/dev/shm holds every engine's host tier and vLLM's message rings; nothing of an emulated one's."""
    engines = [slot for group in slots.values() for slot in group if slot.device is not Device.EMULATED]
    tier = config.cache.host_tier_bytes
    workers = sum(max(len(slot.threads), len(slot.gpus), 1) for slot in engines)
    need = len(engines) * tier + workers * _SHM_PER_WORKER
    if need <= machine.shm_free:
        return ok("/dev/shm", f"needs {format_size(need)} of {format_size(machine.shm_free)} free")
    free = f"{format_size(machine.shm_free)} of {format_size(machine.shm_total)} are free"
    return fail(
        "/dev/shm",
        f"needs {format_size(need)}, {free}",
        f"lower cache.host_bytes, or enlarge it: mount -o remount,size={-(-need // 1024**3)}G /dev/shm; "
        "docker run --shm-size; in Kubernetes an emptyDir with medium: Memory on /dev/shm",
    )


def check_ports(wanted: Sequence[tuple[str, str, int]]) -> Iterator[Finding]:
    """`wanted`: (who, host, port). Free means that it can be bound now."""
    for who, host, port in wanted:
        problem = bind_problem(host, port)
        if problem is None:
            continue
        pid = holder_of(port)
        holder = f" by process {pid}" if pid is not None else ""
        key = "router.port" if who == "router" else "launch.port"
        fix = f"stop it, or choose another {key}" if problem == TAKEN else f"choose another {key}"
        if not can_listen(host, 0):
            fix = "correct router.host: an address of this machine, 127.0.0.1 or 0.0.0.0"
            holder = ""
        yield fail("port", f"{host}:{port} for {who} cannot be used: {problem}{holder}", fix)
    if wanted and all(can_listen(host, port) for _, host, port in wanted):
        yield ok("ports", ", ".join(f"{port} ({who})" for who, _, port in wanted) + " are free")


def check_directory(topic: str, path: Path, *, key: str) -> Finding:
    """Can be made and written; has some room."""
    place = path
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    within = "" if place == path else f"{path} cannot be made: "
    if not os.path.isdir(place):  # (Path.is_dir raises where access is denied)
        return fail(topic, f"{within}{place} is not a directory", f"choose another {key}")
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return fail(
            topic,
            f"{within}{place} cannot be written: {error.strerror}",
            f"choose another {key}, or chown it",
        )
    if path == place and path.stat().st_uid != os.getuid():
        return warn(topic, f"{path} belongs to another user", f"choose another {key}")
    free = shutil.disk_usage(place).free
    if free < _MIN_DISK:
        return warn(topic, f"{path}: {format_size(free)} free", f"free some disk, or choose another {key}")
    return ok(topic, f"{path}, {format_size(free)} free")
