"""Keeps the tenants' salts current: a purge, by whomever, is in force within half a second."""

import asyncio
from collections.abc import Callable, Mapping

from anbar.adapters.keys.files import KeyFiles
from anbar.apps.router.tenancy import Table, Tenancy
from anbar.config.tenants import TenantsConfig
from anbar.core.errors import ConfigError, KeyFileError
from anbar.core.outcome import Emit, SupervisorCaught

LOOK_S = 0.25
"""Between two looks at the directory of keys. A change is seen by the first; the second is for one more
within the same tick of the file system's clock."""


class TenantWatch:
    """Fills `tenancy`. `log` takes a line's kind and fields."""

    def __init__(
        self,
        files: KeyFiles,
        tenancy: Tenancy,
        log: Callable[[str, Mapping[str, object]], None],
        emit: Emit,
    ) -> None:
        self._files = files
        self._tenancy = tenancy
        self.log = log
        self._emit = emit
        self._config: TenantsConfig | None = None
        self._looks = (-1, -1)
        """What the last two have found; -1: nothing was looked at yet."""
        self._trouble = ""
        self._task: asyncio.Task[None] | None = None

    async def read(self, config: TenantsConfig | None) -> Table | None:
        """These tenants, with their salts. Raises ConfigError."""
        try:
            return None if config is None else await asyncio.to_thread(Table, config, self._files)
        except KeyFileError as error:
            raise ConfigError(f"tenants: {error}") from error

    def use(self, config: TenantsConfig | None, table: Table | None) -> None:
        """Let these tenants be known from now on; `table`: what was read of them."""
        self._config, self._tenancy.table, self._looks = config, table, (-1, -1)

    def start(self) -> None:
        """Look again and again."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self._config is None:
                continue
            try:
                await self._look(self._config)
            except KeyFileError as error:
                self._say(str(error))
            except Exception as error:  # noqa: BLE001 - the supervisor of looks
                self._emit(SupervisorCaught.of("tenants", error))

    async def _look(self, config: TenantsConfig) -> None:
        now = await asyncio.to_thread(self._files.changed)
        if {now} != set(self._looks) or self._trouble:
            table = await asyncio.to_thread(Table, config, self._files)
            if config is self._config:  # not one that was replaced while this was read
                self._tenancy.table = table
        self._looks = now, self._looks[0]
        self._say("")

    def _say(self, trouble: str) -> None:
        """The files cannot be read any more, or can again: said once. Salts stay what they were."""
        if trouble != self._trouble:
            self._trouble = trouble
            fields = {"error": trouble} if trouble else {}
            self.log("tenant_keys_failing" if trouble else "tenant_keys_work", fields)
