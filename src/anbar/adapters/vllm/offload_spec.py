"""The offloading spec that vLLM loads: stock tiering, with a copy worker where the platform is the CPU."""

from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingManager, OffloadingWorker
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from anbar.adapters.vllm.host_region import HostRegion, claim, remove_name
from anbar.adapters.vllm.host_worker import HostWorker
from anbar.core.errors import ConfigError


class HostOffloadingSpec(TieringOffloadingSpec):  # type: ignore[misc]  # vLLM is not there for mypy
    """`TieringOffloadingSpec` that also serves the CPU platform. Elsewhere nothing differs but the check that
    no other live engine uses the same host region."""

    _manager: OffloadingManager | None
    _worker: OffloadingWorker | None

    def get_manager(self) -> OffloadingManager:
        """The tiering manager of the scheduler's process.

        Raises ConfigError when host RAM holds not even one chunk, and when the host region is not this
        engine's alone (see `host_region.claim`).
        """
        if self.num_chunks < 1:
            raise ConfigError(
                f"cpu_bytes_to_use is {self.extra_config['cpu_bytes_to_use']}, but one chunk of KV takes "
                f"{self.kv_bytes_per_chunk} bytes: give the host tier more memory"
            )
        is_new = self._manager is None
        manager = super().get_manager()
        if is_new:
            claim(self._scheduler_mmap)
            if current_platform.is_cpu():
                remove_name(self._scheduler_mmap)
        return manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The copy worker of a worker's process."""
        if not current_platform.is_cpu():
            return super().get_worker(kv_caches)
        if self._worker is None:
            self._worker = self._host_worker(kv_caches)
        return self._worker

    def _host_worker(self, kv_caches: CanonicalKVCaches) -> HostWorker:
        if self.config.canonical_layout:
            raise ConfigError("canonical_layout is not available on the CPU platform: remove it")
        region = HostRegion(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=0 if self.replicated_layout else self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        return HostWorker(kv_caches, self.blocks_per_chunk, region)
