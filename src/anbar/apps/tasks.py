"""Tasks that run beside whoever started them."""

import asyncio
from collections.abc import Coroutine


class Tasks(set["asyncio.Task[None]"]):
    """Those that still run: the event loop itself holds no reference that would keep them alive."""

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run it in a task of its own."""
        task = asyncio.get_running_loop().create_task(work)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    async def give_up(self) -> None:
        """Cancel what still runs; returns when it has ended. Raises nothing of it."""
        for task in self:
            task.cancel()
        await asyncio.gather(*self, return_exceptions=True)
