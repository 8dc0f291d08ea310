"""The host region of one engine: a file in /dev/shm that its processes map, and that should not outlive them.

vLLM's workers create or open the file by its name, which follows from `engine_id`; the scheduler's
process opens it last. From then on nobody needs the name. On the CPU platform the scheduler removes it
there, so that the kernel takes the memory back however the engine ends, SIGKILL included. (On GPUs vLLM's
own worker removes it.)"""

import fcntl
import os
from contextlib import suppress

from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

from anbar.core.errors import ConfigError


class HostRegion(SharedOffloadRegion):  # type: ignore[misc]  # vLLM is not there when types are checked
    """A worker's mapping. Its creator removes the file at the end only if the name still stands for it: by
    then it may be gone, or be another engine's."""

    _creator: bool

    def cleanup(self) -> None:
        if self._creator and not _has_its_name(self):
            self._creator = False
        super().cleanup()


def claim(region: SharedOffloadRegion) -> None:
    """Make sure that `region`, mapped by the scheduler's process, is the workers' and no other engine's.

    Raises ConfigError when it is not: two engines would write their KV into one memory, or an engine would
    look for its workers' KV in another. The lock holds as long as the process.
    """
    if region._creator:
        raise ConfigError(
            f"{region.mmap_path} vanished while the engine started: "
            "wait for an engine with the same engine_id to end before starting it again"
        )
    try:
        fcntl.flock(region.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(
            f"{region.mmap_path} is in use by another engine: give each engine its own engine_id"
        ) from error


def remove_name(region: SharedOffloadRegion) -> None:
    """Remove the file's name; mappings stay valid."""
    if _has_its_name(region):
        with suppress(FileNotFoundError):
            os.unlink(region.mmap_path)


def _has_its_name(region: SharedOffloadRegion) -> bool:
    """Whether the region's path leads to the file that the region maps."""
    try:
        return region.fd is not None and os.path.samestat(os.stat(region.mmap_path), os.fstat(region.fd))
    except FileNotFoundError:
        return False
