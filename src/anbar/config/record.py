"""What the planner learns from: `router.record`."""

from typing import Annotated

from pydantic import Field

from anbar.config.fields import Bytes, ConfigModel, Int, NamedPath


class RecordConfig(ConfigModel):
    """The block log: for each recorded request its lengths, times and blocks by name, to plan caches with.
    No text and no tokens: blocks and sessions have keyed names (key: `<state_dir>/record.key`)."""

    path: NamedPath | None = None
    """File to append to, mode 0600; not shared between routers: of several workers the second writes
    `<name>-w1<suffix>`, and so on. null: nothing is recorded."""

    rate: Annotated[float, Field(strict=True, ge=0, le=1)] = 1.0
    """Share of the conversations that are recorded, each with all its requests (`router.session.header`)."""

    file_bytes: Annotated[Bytes, Field(ge=64 * 1024)] = 64 * 1024**2
    """Size at which a new file is begun; the one before becomes `<path>.1`. About 20 bytes a block."""

    files: Annotated[Int, Field(ge=1, le=1000)] = 8
    """Number of files that are kept, the current one included."""
