"""The router inside the test's process, made as `anbar router` makes it."""

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from anbar.apps.router.app import Router
from anbar.config.load import load


@asynccontextmanager
async def running_router(path: Path) -> AsyncIterator[io.BytesIO]:
    """A router that listens as the file at `path` says; yields its log."""
    log = io.BytesIO()
    router = Router(load(path, environ={}).config, {}, log)
    await router.start()
    try:
        yield log
    finally:
        await router.drain()
        await router.stop()
